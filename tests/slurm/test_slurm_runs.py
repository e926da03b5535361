"""Three runs that go on side by side on a real cluster: the quickstart recipe, shrunk, to its report, with room for one
role at a time; the same colocated, pushed out of its node once; and trivial tasks whose hours are reckoned.
"""

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from chaos_auditor import audit
from run_of import read_events
from slurm_cluster import Cluster, notes, wait_for_end
from slurm_submissions import SHRUNK, accounting, all_logs, begun, job, plan, quickstart, sent
from slurm_trivial_tasks import SPENT_S
from slurm_verifier import HELD_FROM, HELD_S, HELD_UNTIL

from mrt_hpc.analysis.spending import Accounts, spending
from mrt_hpc.attempt.ledger import submissions
from mrt_hpc.backends.slurm.queue import QueueState
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.recipe.lock import read_lock
from mrt_hpc.run.events import EventKind, Use
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import wait_until
from mrt_hpc.run.task_state import TaskState

WHOLE_NODE = 8  # processors that a node of the tests' cluster claims
IN_TURN = {
    **SHRUNK, "resources.inference.tasks": 1, "resources.trainer.ranks": 1, "resources.inference.cpus": WHOLE_NODE,
    "resources.trainer.cpus": WHOLE_NODE, "resources.evaluation.max_parallel": 2, "resources.evaluation.memory_gib": 6,
    "resilience.wait_limit_minutes": 0.1, "resilience.heartbeat_limit_s": 5.0,
}  # fmt: skip
RANKS, SEGMENT = 2, "segment-000.colocated"
COLOCATED = {
    **SHRUNK, "schedule.coupling": "colocated", "data.verifier": "slurm_verifier:HeldVerifier",
    "evaluation.benchmarks": "[]", "grading.time_limit_s": HELD_S, "resources.inference.tasks": 1,
    "resources.trainer.ranks": RANKS, "resources.trainer.memory_gib": 3, "resilience.heartbeat_limit_s": 5.0,
    "sampling.max_tokens": 64, "serving.kv_cache_gib": 0.25,
}  # fmt: skip
RECKONED = plan(job("requeued", tasks=2, gpus=1), job("trainer", role=Role.TRAINER, gpus=2))
ATTEMPTS_GPUS = 5  # three attempts of the two tasks with one GPU each, and one of the trainer with two
LONGEST_END_S = 5.0  # from the last event of an attempt to the end that accounting knows


@dataclass(frozen=True)
class Runs:
    """What has been submitted: directories and ids."""

    in_turn: tuple[RunLayout, dict[str, str]]
    colocated: tuple[RunLayout, dict[str, str]]
    reckoned: tuple[RunLayout, dict[str, str]]
    node: str  # of the colocated run; no other run goes there


@pytest.fixture(scope="module")
def runs(cluster: Cluster) -> Runs:
    """The answers of the colocated run's second iteration are judged only after the push, so it cannot end before."""
    first, second, *_ = cluster.as_user("sinfo", "-h", "-N", "-p", "cpu", "-o", "%N").stdout.split()
    run, own = cluster.folder("in-turn") / "run", cluster.site().environment
    where = {"sbatch": {"nodelist": first}, "environment": {**own, "OMP_NUM_THREADS": "2"}}
    in_turn = sent(cluster, run, IN_TURN, **where)
    again = cluster.mrt_hpc("submit", *quickstart(cluster, run, IN_TURN, **where))
    assert "0 job(s) submitted" in again.stdout, again.stderr

    run = cluster.folder("colocated") / "run"
    held = {HELD_FROM: str(RunLayout(run).weights_version(1)), HELD_UNTIL: str(run.parent / "judge")}
    where = {"partitions": {"cpu": "preempt"}, "sbatch": {"nodelist": second}, "environment": {**own, **held}}
    colocated = sent(cluster, run, COLOCATED, **where)
    reckoned = begun(cluster, RECKONED, "spends", site=cluster.site(sbatch={"exclude": f"{first},{second}"}))
    return Runs(in_turn, colocated, reckoned, second)


# -- hours -------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_the_hours_are_those_of_accounting(cluster: Cluster, runs: Runs) -> None:
    layout, ids = runs.reckoned
    goes_on = ("requeued", 0, "goes on")
    wait_until(lambda: goes_on in [(n["job"], n["index"], n["what"]) for n in notes(layout.root)],
               reason="the task that is to be requeued", deadline_s=200)  # fmt: skip
    assert cluster.as_user("scontrol", "requeue", f"{ids['requeued']}_0").returncode == 0
    wait_for_end(ids)

    accounted = gpu_hours(ids.values())
    told = json.loads(cluster.mrt_hpc("cost", str(layout.root), "--json").stdout)
    assert (told["source"], told["attempts"]) == ("accounting", 4)
    assert told["gpu_hours"] == pytest.approx(accounted, rel=0.01)
    assert sum(row["gpu_hours"] for row in told["by_role_and_use"]) == pytest.approx(told["gpu_hours"], rel=1e-9)

    submitted = Accounts(submitted=dict.fromkeys(ids.values(), 0.0))
    alone = spending(layout, RECKONED, read_lock(layout.recipe_lock), submitted)
    print(f"by accounting {accounted:.5f} GPU-hours, by events {alone.gpu_hours:.5f}")
    assert not alone.accounted
    assert alone.gpu_hours == pytest.approx(accounted, abs=ATTEMPTS_GPUS * LONGEST_END_S / 3600)
    sampling_s, waiting_s, going_on_s = SPENT_S
    generating_s = 3 * sampling_s + 2 * going_on_s
    for spent in (uses(told["by_role_and_use"]), uses(map(asdict, alone.rows))):
        assert spent[Use.WAITING] == pytest.approx(3 * waiting_s, abs=2)
        assert spent[Use.GENERATING] == pytest.approx(generating_s * 0.75, abs=4)
        assert spent[Use.BRANCHING] == pytest.approx(generating_s * 0.25, abs=2) and spent[Use.LOST] > 0
        assert Use.UNACCOUNTED not in spent


def uses(rows: Iterable[dict[str, Any]]) -> dict[Use, float]:
    return {Use(row["use"]): row["hours"] * 3600 for row in rows if row["role"] == "inference"}


def gpu_hours(ids: Iterable[str]) -> float:
    """What accounting itself says: the seconds of all attempts, times their GPUs."""
    command = ["sacct", "-X", "-D", "-n", "-P", f"--jobs={','.join(ids)}", "--format=ElapsedRaw,AllocTRES"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = (line.partition("|") for line in lines)
    gpus = ((int(seconds), dict(item.split("=") for item in held.split(",") if item)) for seconds, _, held in found)
    return sum(seconds * int(held.get("gres/gpu", 0)) for seconds, held in gpus) / 3600


# -- a colocated run ---------------------------------------------------------------------------------------------------


@pytest.mark.timeout(1500)
def test_a_colocated_segment_is_one_job_that_comes_back(cluster: Cluster, runs: Runs) -> None:
    layout, ids = runs.colocated
    wait_until(lambda: layout.weights_version(1).exists(), reason="weights version 1", deadline_s=600)
    wait_for_end({"important": cluster.push_out(runs.node)}, seconds=200)
    (layout.root.parent / "judge").touch()
    await_completion(cluster, layout, ids)
    assert [one.name for one in read_plan(layout.plan).jobs] == ["prepare", SEGMENT, "report"]
    events = [event for event in read_events(layout.events) if event.get("job") == SEGMENT]
    begins = [(e["attempt"][-1], e["rank"]) for e in events if e["kind"] == EventKind.TASK_STARTED]
    assert sorted(begins) == [(n, rank) for n in "01" for rank in range(RANKS + 1)], all_logs(cluster, layout)
    pushed_out, last = [e["outcome"] for e in events if e["kind"] == EventKind.TASK_ENDED and e["rank"] == 0]
    assert pushed_out in (TaskState.GAVE_BACK, TaskState.STOPPED)
    assert last == TaskState.DONE
    found = audit(layout.root)
    assert (found.violations, found.steps_redone, found.groups_discarded, found.set_aside) == ([], 0, 0, 0)


def await_completion(cluster: Cluster, layout: RunLayout, ids: Mapping[str, str]) -> None:
    states = wait_for_end(ids, seconds=1300)
    print(accounting(ids.values()))
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}, all_logs(cluster, layout)


# -- a whole run -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(1500)
def test_a_run_finishes_with_room_for_one_role_at_a_time(cluster: Cluster, runs: Runs) -> None:
    """Both roles gave their node back at least once, and said so; nothing was sampled or computed twice."""
    layout, ids = runs.in_turn
    assert len(submissions(layout)) == len(ids) == 5
    await_completion(cluster, layout, ids)
    assert layout.report.owner() == cluster.user
    status = cluster.mrt_hpc("status", str(layout.root))
    assert status.returncode == 0, status.stderr
    assert "2 done" in status.stdout, "the two evaluations"
    assert str(layout.report) in status.stdout
    ends = read_events(layout.events, EventKind.TASK_ENDED)
    gave_back = {e["job"] for e in ends if e["outcome"] == TaskState.GAVE_BACK}
    assert gave_back >= {"segment-000.inference", "segment-000.trainer"}
    found = audit(layout.root)
    assert (found.violations, found.steps_redone, found.groups_discarded) == ([], 0, 0)
