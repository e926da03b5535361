"""What the job script does after srun. Slurm's commands and the verdict are functions of the shell here."""

import subprocess
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from basics import INFERENCE, ROOT, TRAINER, resources
from run_of import bare_run, run_of
from tables import tables

from mrt_hpc import ExitCode, RunLayout, UserError
from mrt_hpc.attempt.ledger import record_submission, shown_submissions, submissions
from mrt_hpc.backends.slurm import after_srun
from mrt_hpc.backends.slurm.after_srun import ABANDONED, FORBIDDEN, AttemptOutcome, awaited_tasks, give_up, main
from mrt_hpc.backends.slurm.parameters import EPILOGUE, PROLOGUE
from mrt_hpc.run.events import EventKind, EventLog, event_file
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task

TABLES = tables("after_srun")
WAITING = TaskRecord(TaskState.GAVE_BACK, attempt="7.1", awaited=(INFERENCE,))
SCRIPT = (ROOT / "tests" / "cases" / "after_srun.sh").read_text()
USUAL = {
    "said": "", "verdict": 0, "queue": "", "listed": 0, "state": "RUNNING", "code": 75, "waited_for": "", "end": "N/A",
    "refusal": "true",
}  # fmt: skip
REQUEUED = "scontrol requeue 7"


def calls(said: str = "", **other: object) -> tuple[list[str], int]:
    """What was called after the first verdict, and how the script ended."""
    given = SCRIPT.format(**{**USUAL, "said": said, **other})
    begin = f"JOB=trainer; EVENTS=/nowhere\n{PROLOGUE.read_text()}\ntrap - ERR\n"
    script = f"{begin}{given}{EPILOGUE.read_text()}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert not done.stdout
    return [line for n, line in enumerate(done.stderr.splitlines()) if n or line != "settle "], done.returncode


def in_seconds(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds))


@pytest.mark.parametrize(("said", "given", "called"), [
    *TABLES["called"],
    # one that ended well when its time was over is queued again for those who wait for it
    *(
        ("", {"code": code, "verdict": 3, "waited_for": waited_for, "end": in_seconds(end)}, [REQUEUED] * again)
        for waited_for, end, again in (("yes", -3, 1), ("yes", 2, 1), ("yes", 86400, 0), ("", -3, 0))
        for code in (0, 9)
    ),
    *(("", {"code": 0, "waited_for": "yes", "end": end}, []) for end in ("N/A", "NONE", "''")),
])  # fmt: skip
def test_what_is_called_after_srun(said: str, given: dict[str, object], called: list[str]) -> None:
    assert calls(said, **given) == (called, 0 if given.get("verdict") == 3 else given.get("code", 75))


def test_a_cluster_that_forbids_it_is_asked_once_and_one_that_is_busy_again() -> None:
    called, code = calls(refusal="echo Requested operation is presently disabled for job 7 >&2; false")
    assert (called[0], called[2:], code) == (REQUEUED, ["settle forbidden"], 75)
    called, _ = calls(refusal="echo slurm_update error: Unable to contact slurm controller >&2; false")
    assert called.count(REQUEUED) == 5
    assert called[-1] == "this task is not queued again; the same submit command continues the run"


def run_with_ledger(tmp_path: Path, inference_tasks: int = 2) -> RunLayout:
    layout = run_of(tmp_path / "run", f"resources.inference.tasks={inference_tasks}")
    record_submission(layout, INFERENCE, "12", "site")
    return layout


def test_awaited_are_those_that_are_not_over(tmp_path: Path) -> None:
    layout = run_with_ledger(tmp_path)
    assert awaited_tasks(layout, TRAINER, 0, "7.1", WAITING) == ["12_0", "12_1"]
    assert awaited_tasks(layout, TRAINER, 0, "7.2", WAITING) == [], "an earlier attempt does not tell for this one"
    write_task(layout, INFERENCE, 0, TaskRecord(TaskState.DONE))
    assert awaited_tasks(layout, TRAINER, 0, "7.1", WAITING) == ["12_1"]
    EventLog(event_file(layout.events, TRAINER, 0, 0, "7.1")).emit(EventKind.CHECKPOINT, iteration=1)
    assert awaited_tasks(layout, TRAINER, 0, "7.1", WAITING) == [], "what has done something keeps its turn"


def test_what_comes_later_does_not_follow_from_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second submission comes from a login node whose clock is five minutes behind."""
    layout = run_with_ledger(tmp_path, 1)
    assert awaited_tasks(layout, TRAINER, 0, "7.1", WAITING) == ["12"], "a job of one task goes by its plain id"
    now = time.time()
    monkeypatch.setattr("mrt_hpc.attempt.ledger.time.time", lambda: now - 300)
    record_submission(layout, INFERENCE, "15", "other")
    assert awaited_tasks(layout, TRAINER, 0, "7.1", WAITING) == ["15"]
    for found in (submissions(layout), shown_submissions(layout)[0]):
        assert [one.job_id for one in found] == ["12", "15"]


def test_a_task_that_will_not_run_again_says_why_and_what_to_do(tmp_path: Path) -> None:
    done = TaskRecord(TaskState.DONE, attempt="7.1")
    for word, named in ((ABANDONED, INFERENCE), (FORBIDDEN, "scontrol requeue")):
        layout = bare_run(tmp_path / word)
        assert give_up(layout, TRAINER, 0, "7.0", WAITING, word) == WAITING, "another attempt has spoken since"
        give_up(layout, TRAINER, 0, "7.1", WAITING, word)
        record = read_task(layout, TRAINER, 0)
        assert (record.state, named in record.message) == (TaskState.FAILED, True)
        assert give_up(layout, TRAINER, 0, "7.1", done, word) == done


def test_what_is_a_fault_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = UserError("the driver gave no answer", exit_code=ExitCode.RETRYABLE)
    with_gpu = resources(gpus_per_rank=1)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(after_srun, "look", lambda: None)
    for found, fault in ((None, ""), (hangs, hangs.what), (UserError("none given", exit_code=ExitCode.FATAL), "")):
        monkeypatch.setattr(after_srun, "verdict", lambda *_, found=found: found)
        assert (after_srun.node_fault(with_gpu), after_srun.node_fault(resources())) == (fault, "")
    monkeypatch.setattr(after_srun, "look", Mock(side_effect=hangs))
    assert after_srun.node_fault(with_gpu) == hangs.what
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    assert str(tmp_path / "none") in after_srun.node_fault(resources())


def test_the_job_script_and_the_record_say_where_an_attempt_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = run_of(tmp_path / "run")
    monkeypatch.setenv("SLURM_JOB_ID", "46")
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    monkeypatch.setattr(after_srun, "node_fault", lambda _: "no room")
    for state, code in ((TaskState.RUNNING, 1), (TaskState.GAVE_BACK, ExitCode.GIVE_BACK), (TaskState.DONE, 0)):
        write_task(layout, "prepare", 0, TaskRecord(state, attempt="46.0", message="why it ended"))
        assert main([str(layout.root), "prepare", "0", str(int(code))]) in (AttemptOutcome.AGAIN, AttemptOutcome.DONE)
        assert ("node-fault" in capsys.readouterr().out.splitlines()) == (code == 1), state
        assert ("n7: no room" in read_task(layout, "prepare", 0).message) == (code == 1), state
