"""A sweep of three values on a real cluster, two runs at a time, through preemption, a lost node and a cancellation:
all runs end, what they share is sampled once, and one command compares them. `test_sweep_of_new_user` sweeps seeds.
"""

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

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
from mrt_hpc.run.retries import wait_until

VALUES, AT_ONCE = ("0.25", "0.5", "1"), 2
RUNS = len(VALUES)
SWEEP = ("--sweep", f"algorithm.alpha={','.join(VALUES)}", "--at-once", str(AT_ONCE))
FAULTS = (FaultKind.PREEMPT, FaultKind.CUT_NODE)  # one of each run
PROBLEMS = 4
CHANGES = {
    **SHRUNK, "schedule.iterations": 1, "schedule.iterations_per_job": 1,
    "evaluation.benchmarks.0.problems": f"{{type: small_world, split: held_out, problems: {PROBLEMS}}}",
    "resources.inference.tasks": 1, "resources.trainer.ranks": 1, "resilience.heartbeat_limit_s": 5.0,
}  # fmt: skip
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo", "sacctmgr")
LONGEST_S = 900


@dataclass(frozen=True)
class Swept:
    """A sweep that has ended, and what happened to it."""

    root: Path
    hits: dict[FaultKind, str]
    calls: Counter[str]  # of Slurm's commands, by the submission of all runs
    resumed: str  # what the resumption of a run printed, which was cancelled while it waited for the first


@pytest.fixture(scope="module")
def swept(cluster: Cluster) -> Swept:
    folder = cluster.folder("sweep")
    root = folder / "family"
    words = quickstart(cluster, root, CHANGES, partitions={"cpu": "preempt"})
    counted, calls = counting(cluster, folder)
    command = (cluster.python, "-m", "mrt_hpc", "submit", *words, *SWEEP)
    done = cluster.as_user("env", f"PATH={counted}:/usr/bin:/bin", *command, timeout=300)
    assert done.returncode == 0, done.stderr
    submitted = Counter(calls.read_text().split())
    runs = runs_of(root)
    first, waiting = runs[0], runs[AT_ONCE]
    stopped = cluster.mrt_hpc("cancel", str(waiting))
    assert stopped.returncode == 0, stopped.stderr
    hits = {FAULTS[0]: struck(cluster, first, FAULTS[0])}
    resumed = cluster.mrt_hpc("resume", str(waiting))
    assert resumed.returncode == 0, resumed.stderr
    hits[FAULTS[1]] = struck(cluster, waiting, FAULTS[1])
    await_end(runs)
    return Swept(root, hits, submitted, resumed.stdout)


def counting(cluster: Cluster, folder: Path) -> tuple[Path, Path]:
    """A folder with Slurm's commands that note their names before they run, and the file with the names. Tasks that
    begin meanwhile have the same PATH, and are not counted.
    """
    commands, calls = folder / "commands", folder / "calls"
    commands.mkdir()
    calls.touch(mode=0o666)
    calls.chmod(0o666)
    for name in COMMANDS:
        where = cluster.as_user("which", name).stdout.strip()
        note = f'[ -n "$SLURM_JOB_ID" ] || echo {name} >> {calls}'
        (commands / name).write_text(f'#!/bin/sh\n{note}\nexec {where} "$@"\n')
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
    runs = list(map(RunLayout, runs_of(swept.root)))
    assert len(runs) == RUNS
    for run in runs:
        assert run.report.is_file() and "missing" not in run.report.read_text().lower(), run.root.name
    for run in (runs[0], runs[AT_ONCE]):
        attempts = {event["attempt"] for event in read_events(run.events, EventKind.TASK_STARTED)}
        assert not all(attempt.endswith(".0") for attempt in attempts), f"{run.root.name} was not hit"


def test_what_the_runs_share_is_sampled_once(swept: Swept) -> None:
    """Weights version 0 and its evaluation do not depend on alpha."""
    events = [e for run in runs_of(swept.root) for e in read_events(RunLayout(run).events, EventKind.PART_COMMITTED)]
    assert sorted(event["position"] for event in events if event["version"] == 0) == [*range(PROBLEMS)]


def test_a_cancelled_run_is_resumed_alone(swept: Swept) -> None:
    assert str(runs_of(swept.root)[AT_ONCE]) in swept.resumed
    assert "5 job(s) submitted, 0 queued before, 0 done" in swept.resumed


def test_a_submission_asks_slurm_as_often_as_that_of_its_runs(swept: Swept) -> None:
    """Of each job whether it is taken, itself, and how it was queued; of each run its limits twice, what is queued
    twice, how jobs ended, and the cluster.
    """
    jobs = 5 * RUNS
    assert swept.calls["sbatch"] == 2 * jobs
    assert swept.calls.total() - 3 * jobs <= 6 * RUNS


def test_one_command_compares_the_runs_and_one_draws_them(cluster: Cluster, swept: Swept) -> None:
    compared = cluster.mrt_hpc("compare", str(swept.root))
    assert compared.returncode == 0, compared.stderr
    assert all(f"alpha {value}" in compared.stdout for value in VALUES)
    reported = cluster.mrt_hpc("report", str(swept.root))
    assert reported.returncode == 0, reported.stderr
    assert all(run.name in (swept.root / "report.html").read_text() for run in runs_of(swept.root))
