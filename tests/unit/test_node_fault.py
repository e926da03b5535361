"""Where the node of an attempt that failed is at fault, the job script is told to leave it out."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm import after_srun
from mrt_hpc.backends.slurm.after_srun import AttemptOutcome, main
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import JobResources
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import lock_text
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
RESOURCES = JobResources(
    nodes=1, ranks_per_node=1, gpus_per_rank=1, cpus_per_rank=1, memory_gib_per_node=1.0, time_limit_minutes=1
)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (None, ""),
        (UserError("the driver gave no answer", exit_code=ExitCode.RETRYABLE), "the driver gave no answer"),
        (UserError("no GPU was given out", exit_code=ExitCode.FATAL), ""),
    ],
)
def test_a_driver_that_fails_is_a_fault_and_a_gpu_that_was_not_asked_for_is_none(
    monkeypatch: pytest.MonkeyPatch, found: UserError | None, fault: str
) -> None:
    monkeypatch.setattr(after_srun, "look", lambda: None)
    monkeypatch.setattr(after_srun, "verdict", lambda *_: found)
    assert after_srun.node_fault(RESOURCES) == fault
    assert after_srun.node_fault(RESOURCES.model_copy(update={"gpus_per_rank": 0})) == ""


def test_a_driver_that_hangs_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs() -> None:
        raise UserError("the driver gave no answer", exit_code=ExitCode.RETRYABLE)

    monkeypatch.setattr(after_srun, "look", hangs)
    assert after_srun.node_fault(RESOURCES) == "the driver gave no answer"


def test_temporary_files_that_cannot_be_written_are_a_fault(scratch: Path) -> None:
    scratch.rmdir()
    assert after_srun.node_fault(RESOURCES).startswith(f"{scratch} takes no file there")


@pytest.mark.parametrize(
    ("state", "code", "told"),
    [(TaskState.RUNNING, 1, True), (TaskState.GAVE_BACK, ExitCode.GIVE_BACK, False), (TaskState.DONE, 0, False)],
)
def test_the_job_script_and_the_user_are_told_where_an_attempt_has_failed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: TaskState,
    code: int,
    told: bool,
) -> None:
    recipe = load_recipe(QUICKSTART)
    layout = RunLayout(tmp_path)
    layout.recipe_lock.write_text(lock_text(recipe))
    layout.plan.write_text(compile_plan(recipe, LocalSite()).model_dump_json())
    write_task(layout, "prepare", 0, TaskRecord(state, attempt="46.0", message="why it ended"))
    monkeypatch.setenv("SLURM_JOB_ID", "46")
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    monkeypatch.setattr(after_srun, "node_fault", lambda _: "no room")
    assert main([str(tmp_path), "prepare", "0", str(code)]) in (AttemptOutcome.AGAIN, AttemptOutcome.DONE)
    assert ("node-fault" in capsys.readouterr().out.splitlines()) == told
    assert ("n7: no room" in read_task(layout, "prepare", 0).message) == told
