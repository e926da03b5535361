"""What a submission makes of a run that is there: which queued jobs stay, and whose directory it is."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slurm_texts import squeue_prints
from submitted import current_ids

from mrt_hpc.attempt.ledger import current_submissions, record_submission, task_ids
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.queued_jobs import LiveJob
from mrt_hpc.backends.slurm import commands as slurm_commands
from mrt_hpc.backends.slurm import queue as slurm_queue
from mrt_hpc.backends.slurm.arrays import array_of
from mrt_hpc.backends.slurm.queue import QueuedTask, QueueState, queue_states
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import build_plan, compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.submit.create import create_or_open
from mrt_hpc.submit.submission import awaited_as, without_hope

if TYPE_CHECKING:
    from mrt_hpc.plan.jobs import Plan

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
INFERENCE, TRAINER, EVALUATION = (f"segment-000.{role}" for role in ("inference", "trainer", "evaluation"))
SECOND = tuple(f"segment-001.{role}" for role in ("inference", "trainer", "evaluation"))


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Of two segments."""
    changes = ("schedule.iterations=4", "schedule.iterations_per_job=2")
    return build_plan(load_recipe(QUICKSTART, changes), max_array_size=None)


def hopeless(
    plan: Plan, queued: tuple[str, ...], at_work: tuple[str, ...] = (), done: tuple[str, ...] = ()
) -> set[str]:
    live = {name: LiveJob(str(number), name in at_work) for number, name in enumerate((*queued, *at_work))}
    return set(without_hope([job for job in plan.jobs if job.name not in done], live, done))


def test_what_waits_for_living_or_finished_jobs_stays(plan: Plan) -> None:
    names = [job.name for job in plan.jobs]
    assert hopeless(plan, tuple(names)) == set()
    assert hopeless(plan, tuple(names[3:]), at_work=(INFERENCE, TRAINER), done=("prepare",)) == set()


def test_what_waits_for_a_job_that_has_failed_is_sent_again_all_the_way_down(plan: Plan) -> None:
    """Slurm cancels them one after the other, and lets the report go that waits for any end."""
    left = (EVALUATION, *SECOND, "report")
    assert hopeless(plan, left, at_work=(INFERENCE,), done=("prepare",)) == set(left)
    assert hopeless(plan, ("report",), done=("prepare", INFERENCE)) == {"report"}


def test_a_job_that_runs_is_left_alone(plan: Plan) -> None:
    assert hopeless(plan, ("report",), at_work=(EVALUATION,), done=("prepare", INFERENCE, TRAINER)) == {"report"}


def test_what_waits_for_an_array_of_which_a_part_is_lost_is_sent_again(plan: Plan) -> None:
    live = {name: LiveJob(str(n), name == TRAINER) for n, name in enumerate(job.name for job in plan.jobs[1:])}
    assert set(without_hope(plan.jobs, live, ["prepare"], partly=[EVALUATION])) == {"report"}
    assert without_hope(plan.jobs, live, ["prepare"]) == []


def test_a_dependency_on_an_array_in_parts_names_its_living_tasks() -> None:
    assert awaited_as(LiveJob("12", True, {0: "12_0", 1: "12_1"}), partly=False) == ("12",)
    assert awaited_as(LiveJob("12", True, {0: "12_0", 2: "12_2"}), partly=True) == ("12_0", "12_2")
    assert awaited_as(LiveJob("15", True, {0: "12_0", 1: "15_1"}), partly=False) == ("12_0", "15_1")


def test_each_task_goes_by_its_latest_submission(plan: Plan, tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    for slurm_id, tasks in (("10", None), ("12", None), ("15", (1, 2)), ("16", (2,))):
        record_submission(layout, INFERENCE, slurm_id, "here", tasks)
    array = plan.job(INFERENCE).model_copy(update={"tasks": 4})
    assert task_ids(array, current_submissions(layout)[INFERENCE]) == ["12_0", "15_1", "16_2", "12_3"]
    assert current_ids(layout) == ["12", "15", "16"]
    assert array_of((1, 3), None) == "1,3%2"


def states(monkeypatch: pytest.MonkeyPatch, squeue: str, sacct: str) -> dict[str, QueueState]:
    printed = squeue_prints(*squeue.splitlines())
    monkeypatch.setattr(slurm_queue, "ask_slurm", lambda _: printed)
    monkeypatch.setattr(slurm_queue, "run_slurm", lambda _, timeout_s: sacct if timeout_s else "")
    found = queue_states(["12"])
    assert all(isinstance(state, QueuedTask) for state in found.values())
    return {task: state.state for task, state in found.items()}


def test_what_accounting_calls_alive_and_the_queue_does_not_know_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounting lags behind, and never learns of some ends."""
    lagging = "12_0|RUNNING|0:0|n1|5\n12_1|COMPLETED|0:0|n1|5\n12_2|PENDING|0:0||0\n"
    assert states(monkeypatch, "12_2|PENDING|N/A|Resources|\n", lagging) == {
        "12_0": QueueState.UNKNOWN, "12_1": QueueState.COMPLETED, "12_2": QueueState.PENDING,
    }  # fmt: skip


def test_how_a_task_ended_accounting_knows_best(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "12_0|FAILED|100|NonZeroExitCode|n1\n12_1|CANCELLED|100|None|n1\n"
    accounted = "12_0|FAILED|0:125|n1|5\n12_0.0|OUT_OF_MEMORY|0:125|n1|5\n12_1|RUNNING|0:0|n1|5\n"
    assert states(monkeypatch, listed, accounted) == {"12_0": QueueState.OUT_OF_MEMORY, "12_1": QueueState.CANCELLED}
    assert states(monkeypatch, listed, "") == {"12_0": QueueState.FAILED, "12_1": QueueState.CANCELLED}


@pytest.mark.parametrize(("seconds", "state"), [(-2, QueueState.ENDING), (90, QueueState.RUNNING)])
def test_whether_a_task_that_is_ending_comes_back_is_told_by_its_end(
    monkeypatch: pytest.MonkeyPatch, seconds: int, state: QueueState
) -> None:
    """Without accounting; a task that is queued again has its whole time before it."""
    listed = f"12_0|COMPLETING|{int(time.time()) + seconds}|None|n1\n"
    assert states(monkeypatch, listed, "") == {"12_0": state}
    assert states(monkeypatch, listed, "12_0|CANCELLED|0:0|n1|5\n") == {"12_0": QueueState.CANCELLED}


def test_tasks_of_one_line_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = states(monkeypatch, "", "12_[0-4:2,7]|CANCELLED by 5|0:0||0\n")
    assert set(found) == {"12_0", "12_2", "12_4", "12_7"}


def test_habits_of_the_shell_do_not_change_what_slurm_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    options = (
        "SBATCH_TIMELIMIT",
        "SBATCH_WAIT",
        "SBATCH_EXPORT",
        "SBATCH_NO_REQUEUE",
        "SQUEUE_STATES",
        "SCANCEL_STATE",
    )
    of_a_job = ("SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV", "SLURM_MEM_PER_CPU", "SLURM_ARRAY_JOB_ID")
    of_the_site = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_SACK_SOCKET", "SLURM_ROOT", "MY_SLURM")
    for name in (given := (*options, *of_a_job, *of_the_site)):
        monkeypatch.setenv(name, "x")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    printed = slurm_commands.run_slurm(["env"]).splitlines()
    assert {name for name in given if f"{name}=x" in printed} == set(of_the_site)
    assert slurm_commands.ignored_options() == sorted(f"{name}=x" for name in options if name.startswith("SBATCH"))


def test_a_run_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    recipe = load_recipe(QUICKSTART)
    plan = compile_plan(recipe, LocalSite())
    layout = create_or_open(tmp_path / "run", recipe, plan)
    assert create_or_open(tmp_path / "run", recipe, plan) == layout
    layout.root.chmod(0o770)
    with pytest.raises(UserError, match="others can write to the run directory") as refused:
        create_or_open(tmp_path / "run", recipe, plan)
    assert refused.value.advice is not None
    assert "chmod go-w" in refused.value.advice


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory away")
def test_a_run_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    recipe = load_recipe(QUICKSTART)
    plan = compile_plan(recipe, LocalSite())
    layout = create_or_open(tmp_path / "run", recipe, plan)
    os.chown(layout.root, 4321, -1)
    with pytest.raises(UserError, match="others can write to the run directory"):
        create_or_open(tmp_path / "run", recipe, plan)
