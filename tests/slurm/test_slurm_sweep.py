"""A sweep of two values and two seeds on a real cluster, two runs at a time, through a preemption, a lost node and a
cancelled run: all runs end, what they share is sampled once, and one command compares them.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from chaos_faults import FaultKind, strike
from chaos_target import Target
from run_of import read_events
from slurm_cluster import Cluster, wait_for_end
from slurm_submissions import SHRUNK, quickstart
from submitted import current_ids

from mrt_hpc.run.events import EventKind
from mrt_hpc.run.family import runs_of
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

VALUES, SEEDS, AT_ONCE = ("0.5", "1"), range(2), 2
SWEEP = ("--sweep", "seed=0..1", "--sweep", f"algorithm.alpha={','.join(VALUES)}", "--at-once", str(AT_ONCE))
FAULTS = (FaultKind.PREEMPT, FaultKind.CUT_NODE)  # of the first runs, one each
PROBLEMS = 4
CHANGES = {
    **SHRUNK,
    "schedule.iterations": 1,
    "schedule.iterations_per_job": 1,
    "evaluation.benchmarks.0.problems": f"{{type: small_world, split: held_out, problems: {PROBLEMS}}}",
    "resources.inference.tasks": 1,
    "resources.trainer.ranks": 1,
    "resilience.heartbeat_limit_s": 5.0,
}
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo", "sacctmgr")
LONGEST_S = 900


@dataclass(frozen=True)
class Swept:
    """A sweep that has ended, and what happened to it."""

    root: Path
    hits: dict[FaultKind, str]
    calls: Counter[str]  # of Slurm's commands, by the submission of all runs
    cancelled: Path
    resumed: str  # what the resumption of the cancelled run printed


@pytest.fixture(scope="module")
def swept(cluster: Cluster) -> Swept:
    folder = cluster.run_dir("sweep")
    root = folder / "family"
    words = quickstart(cluster, root, CHANGES, partitions={"cpu": "preempt"})
    counted, calls = counting(cluster, folder)
    command = (cluster.python, "-m", "mrt_hpc.cli.main", "submit", *words, *SWEEP)
    done = cluster.as_user("env", f"PATH={counted}:/usr/bin:/bin", *command, timeout=300)
    assert done.returncode == 0, done.stderr
    submitted = Counter(calls.read_text().split())
    runs = runs_of(root)
    hits = {kind: struck(cluster, run, kind) for kind, run in zip(FAULTS, runs[:AT_ONCE], strict=True)}
    stopped = cluster.mrt_hpc("cancel", str(runs[-1]))
    assert stopped.returncode == 0, stopped.stderr
    await_end(runs)
    resumed = cluster.mrt_hpc("resume", str(runs[-1]))
    assert resumed.returncode == 0, resumed.stderr
    await_end(runs)
    return Swept(root, hits, submitted, runs[-1], resumed.stdout)


def counting(cluster: Cluster, folder: Path) -> tuple[Path, Path]:
    """A folder with Slurm's commands that note their names before they run, and the file with the names."""
    commands, calls = folder / "commands", folder / "calls"
    commands.mkdir()
    calls.touch(mode=0o666)
    calls.chmod(0o666)
    for name in COMMANDS:
        where = cluster.as_user("which", name).stdout.strip()
        (commands / name).write_text(f'#!/bin/sh\necho {name} >> {calls}\nexec {where} "$@"\n')
        (commands / name).chmod(0o755)
    return commands, calls


def struck(cluster: Cluster, run: Path, kind: FaultKind) -> str:
    """Hit a run as soon as its tasks have something to lose; what was hit."""
    target = Target(RunLayout(run), None, cluster, None)
    rng = random.Random(0)
    return wait_until(lambda: strike(kind, target, rng), reason=f"a task of {run.name}", deadline_s=LONGEST_S)


def await_end(runs: list[Path]) -> None:
    wait_for_end({job_id: job_id for run in runs for job_id in current_ids(RunLayout(run))}, LONGEST_S)


@pytest.mark.timeout(3 * LONGEST_S)
def test_all_runs_end_whatever_hit_them(swept: Swept) -> None:
    print(swept.hits, swept.calls)
    runs = [RunLayout(run) for run in runs_of(swept.root)]
    assert len(runs) == len(VALUES) * len(SEEDS)
    for run in runs:
        assert run.report.is_file() and "missing" not in run.report.read_text().lower(), run.root.name
    for run in runs[:AT_ONCE]:
        attempts = {event["attempt"] for event in read_events(run.events, EventKind.TASK_STARTED)}
        assert not all(attempt.endswith(".0") for attempt in attempts), f"{run.root.name} was not hit"


def test_what_the_runs_share_is_sampled_once(swept: Swept) -> None:
    """Weights version 0 is evaluated for each seed; the runs of two values with one seed share it."""
    committed = [
        (run.name.partition("+")[0], event["position"])
        for run in runs_of(swept.root)
        for event in read_events(RunLayout(run).events, EventKind.PART_COMMITTED)
        if event["version"] == 0
    ]
    assert Counter(committed) == {(f"seed={seed}", position): 1 for seed in SEEDS for position in range(PROBLEMS)}


def test_a_cancelled_run_is_resumed_alone(swept: Swept) -> None:
    """It waits for no other run: its jobs alone are sent again."""
    assert str(swept.cancelled) in swept.resumed
    assert " job(s) submitted, 0 queued before" in swept.resumed


def test_a_submission_asks_slurm_as_often_as_that_of_its_runs(swept: Swept) -> None:
    """Of each job how it was queued; of each run its limits twice, what is queued twice, and once how jobs ended."""
    runs, jobs = len(VALUES) * len(SEEDS), swept.calls["sbatch"]
    assert jobs == 5 * runs
    assert swept.calls.total() - 2 * jobs <= 5 * runs


def test_one_command_compares_the_runs_and_one_draws_them(cluster: Cluster, swept: Swept) -> None:
    compared = cluster.mrt_hpc("compare", str(swept.root))
    assert compared.returncode == 0, compared.stderr
    assert all(f"alpha {value}" in compared.stdout for value in VALUES)
    reported = cluster.mrt_hpc("report", str(swept.root))
    assert reported.returncode == 0, reported.stderr
    assert all(run.name in (swept.root / "report.html").read_text() for run in runs_of(swept.root))
