"""Why a run waits or has failed: the cause before its consequences. Most situations are in tests/golden/explain.txt."""

import os
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from basics import INFERENCE, ROOT, TRAINER
from canned_queue import PREPARE, CannedRun, canned_run, submitted_run
from commands import typed
from run_of import task_of

from mrt_hpc.attempt.early_end import settle
from mrt_hpc.attempt.entry import ending_of
from mrt_hpc.attempt.ledger import record_site, remember_site
from mrt_hpc.attempt.next_state import next_state
from mrt_hpc.attempt.run_progress import failed_tasks_error
from mrt_hpc.backends.slurm.arrays import sbatch_texts
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import UserError
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.task.peers import PeersFailedError
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.retries import PAUSED, SHORTAGES, Shortage
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, task_file


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    return submitted_run(tmp_path, monkeypatch)


def explain(run: CannedRun, *task: str) -> str:
    return typed("explain", run.layout.root, *task).output.replace(str(run.layout.root), "RUN")


def first(text: str) -> tuple[str, str]:
    sentence, command, *_ = text.splitlines()
    assert command.startswith("  next:     ")
    return sentence, command.removeprefix("  next:     ")


def test_a_failure_comes_with_its_last_traceback_and_before_what_follows_from_it(run: CannedRun) -> None:
    run.task(TRAINER, TaskState.FAILED, message="ValueError: loss is not finite")
    run.task(INFERENCE, TaskState.FAILED, 1, message="it has failed", awaited=(TRAINER,))
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 3\nValueError: loss is not finite\n'
    run.log(f"{TRAINER}/13_0_log.out", f"starting\n{traceback}")
    text = explain(run)
    assert TRAINER in first(text)[0]
    assert traceback.splitlines()[1] in text
    (follows,) = [line for line in text.splitlines() if f"{INFERENCE}[1]" in line]
    assert TRAINER in follows


@pytest.mark.parametrize("lacking", SHORTAGES)
def test_a_task_that_waits_for_room_on_the_disk_says_so(run: CannedRun, lacking: Shortage) -> None:
    run.queue("13|RUNNING|1|None|node1")
    run.task(TRAINER, TaskState.RUNNING, attempt="13.0")
    run.log(f"{TRAINER}/13_0_log.err", f"working\n2026 WARNING {PAUSED}: {lacking.what} (no space). The task waits\n")
    sentence, command = first(explain(run))
    assert lacking.what in sentence and f"`{lacking.shown_by} RUN`" in command
    assert lacking.what in typed("status", run.layout.root).output
    run.log(f"{TRAINER}/13_0_log.err", f"{PAUSED}: {lacking.what}\nworking again\n")
    assert lacking.what not in explain(run)


def test_where_the_queue_is_not_reached_files_hearts_and_what_was_set_aside_speak(run: CannedRun) -> None:
    run.unreached()
    aside = {"kind": "set_aside", "path": "weights/v000003", "reason": "checksum"}
    started = {"kind": "task_started", "job": TRAINER, "task": 0, "rank": 0, "attempt": "13.0", "world_size": 1}
    run.events(TRAINER, "13.0", started, aside)
    text = explain(run)
    assert [fact for fact in ("job 12", "Slurm: squeue refused", "1 file(s)") if fact not in text] == []
    run.task(TRAINER, TaskState.RUNNING, attempt="13.0")
    write_json(run.layout.heart(TRAINER, 0), {"attempt": "13.0", "beat": 1})
    text = explain(run, TRAINER)
    for fact in (f"{TRAINER} runs since", "1 attempt(s)", "weights/v000003", "checksum"):
        assert fact in text


def test_a_run_that_its_user_cancelled_says_so_until_it_is_submitted_again(run: CannedRun) -> None:
    run.task(INFERENCE, TaskState.STOPPED, attempt="12_0.0")
    run.queue()
    run.command("scontrol", "exit 0")
    (run.commands / "empty").write_text((run.commands / "queue").read_text())
    run.queue("13|PENDING|N/A|Priority|")
    run.command("scancel", f"cp {run.commands}/empty {run.commands}/queue")
    typed("cancel", run.layout.root)
    sentence, command = first(explain(run))
    assert f"{INFERENCE}[0] was stopped by `mrt-hpc cancel` at " in sentence
    assert command.startswith("mrt-hpc submit RUN")
    run.submitted(trainer="23")
    assert "mrt-hpc cancel" not in explain(run)
    (record := run.layout.jobs / "cancelled.json").unlink()
    record.mkdir()  # it cannot be written, as on a full disk
    run.queue("23|PENDING|N/A|Priority|")
    assert "explain will not say that the run was cancelled" in typed("cancel", run.layout.root).output


def test_a_local_run_says_what_its_tasks_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = canned_run(tmp_path, monkeypatch)
    run.claim(os.getpid())
    run.task(PREPARE, TaskState.RUNNING, attempt="ab")
    assert first(explain(run, PREPARE))[0].startswith("prepare runs since ")
    assert "prepare, which runs" in first(explain(run, TRAINER))[0]
    run.done(PREPARE)
    run.task(INFERENCE, TaskState.RUNNING, attempt="cd")
    assert "GPUs of the machine" in first(explain(run, TRAINER))[0]


def test_a_run_that_was_killed_here_needs_the_same_command(tmp_path: Path) -> None:
    """A real run of an earlier version, killed after the first of two iterations."""
    shutil.unpack_archive(ROOT / "tests" / "data" / "begun_run.tar.xz", tmp_path / "begun")
    sentence, command = first(typed("explain", tmp_path / "begun").output)
    assert INFERENCE in sentence
    assert command.startswith(f"mrt-hpc submit {tmp_path / 'begun'}, which")
    assert "the run has stopped" in typed("logs", tmp_path / "begun", "--follow").output


def ends(task: Task, error: BaseException, time: float) -> str:
    """A task ends by an error at some time, by its node's clock; returns the reason for which its run has failed."""
    before = TaskRecord(TaskState.RUNNING, attempt="a")
    after = replace(next_state(before, ending_of(task, error)), state=TaskState.FAILED, time=time)
    write_json(task_file(task.layout, task.job.name, task.index), asdict(after))
    return failed_tasks_error(task.plan, task.layout).message()


@pytest.fixture
def tasks(run: CannedRun) -> tuple[Task, Task]:
    return task_of(run.layout, TRAINER), task_of(run.layout, INFERENCE)


def test_the_reason_is_the_failure_that_was_first_in_time(tasks: tuple[Task, Task]) -> None:
    trainer, inference = tasks
    ends(inference, UserError("the later one"), 2000.0)
    reason = ends(trainer, UserError("the earlier one"), 1000.0)
    assert "the earlier one" in reason and "the later one" not in reason
    assert f"mrt-hpc logs {trainer.layout.root} trainer" in reason


def test_a_consequence_hides_no_cause_whatever_the_clocks_of_the_nodes_say(tasks: tuple[Task, Task]) -> None:
    trainer, inference = tasks
    consequence = PeersFailedError("weights", inference.peers(trainer.job.role), "mrt-hpc status")
    assert "weights" in ends(inference, consequence, 1000.0), "where only a consequence is known it is shown"
    assert read_task(inference.layout, INFERENCE, 0).awaited == (TRAINER,)
    assert "its own words" in ends(trainer, UserError("its own words"), 2000.0)


def test_a_reason_is_shown_whole_and_a_defect_with_its_type_and_place(tasks: tuple[Task, Task]) -> None:
    error = UserError("two parts: both are shown", where="a file", value=7, expected="8", advice="put 8 there")
    reason = ends(tasks[0], error, 1.0)
    assert all(part in reason for part in ("two parts: both are shown", "a file", "7", "8", "put 8 there"))
    with pytest.raises(ValueError) as defect:
        b"text".partition(b"")
    reason = ends(tasks[0], defect.value, 1.0)
    assert "Traceback" not in reason
    assert all(part in reason for part in ("ValueError: empty separator", "test_explain.py", "mrt-hpc logs"))


def test_an_incomplete_report_comes_after_the_task_that_it_lacks(run: CannedRun) -> None:
    run.task(TRAINER, TaskState.STOPPED, attempt="a", message="stopped")
    run.task("report", TaskState.FAILED, attempt="b", message="the report is incomplete: no weights")
    lines = typed("explain", run.layout.root).output.splitlines()
    assert "report has failed" not in lines[0] and any(line.startswith("report has failed") for line in lines)
    run.done(*(job.name for job in run.plan.jobs if job.name != "report"))
    assert "report has failed" in typed("explain", run.layout.root).output.splitlines()[0]


# -- A job that ends before any Python of the package has begun has a reason


SRUN = 'until [ "$1" = /bin/bash ]; do shift; done; exec "$@"'
ANOTHER_MACHINE = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00" + bytes(44)
"""The head of a program for aarch64."""


@pytest.fixture
def first_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    first_job = canned_run(tmp_path, monkeypatch)
    first_job.submitted(prepare="11")
    for name, script in (("squeue", "exit 0"), ("scontrol", "exit 0"), ("sleep", "exit 0"), ("srun", SRUN)):
        first_job.command(name, script)
    return first_job


def job_ends(first_job: CannedRun, **fields: object) -> str:
    """The job script of the first job runs here as Slurm would run it, with these fields of the profile; returns what
    explain then says.
    """
    site = SlurmSite(name="cluster", **fields)  # type: ignore[arg-type]
    record_site(first_job.layout, site)
    remember_site(first_job.layout, site)
    script = dict(sbatch_texts(first_job.plan, site, first_job.layout))[PREPARE]
    logs = first_job.layout.logs / PREPARE
    logs.mkdir()
    own = {**os.environ, "SLURM_JOB_ID": "11", "SLURMD_NODENAME": "node1"}
    with (logs / "11_0_log.out").open("w") as out, (logs / "11_0_log.err").open("w") as err:
        code = subprocess.run(["bash", "-c", script], env=own, stdout=out, stderr=err, check=False).returncode
    first_job.queue()
    first_job.accounts(f"11|FAILED|{code}:0|node1|90")
    return typed("explain", first_job.layout.root).output


def advice(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("  next:")).removeprefix("  next:     ")


def test_a_python_that_is_not_there(first_job: CannedRun) -> None:
    text = job_ends(first_job, python="/opt/nowhere/bin/python")
    for fact in ("before it began its work", "exit code 127", "not found", "python could not be started", "node1"):
        assert fact in text, text
    assert "/opt/nowhere/bin/python" in text, "the last line of its log"
    assert advice(text).startswith("correct python")
    assert "mrt-hpc doctor --site cluster" in advice(text)


def test_a_python_of_another_machine(first_job: CannedRun, tmp_path: Path) -> None:
    (other := tmp_path / "python").write_bytes(ANOTHER_MACHINE)
    other.chmod(0o755)
    text = job_ends(first_job, python=str(other))
    assert "exit code 126" in text and "another kind of machine" in text and "python could not be started" in text
    assert advice(text).startswith("correct python")


def test_a_setup_line_that_takes_srun_away_is_named_by_the_record_too(first_job: CannedRun) -> None:
    text = job_ends(first_job, setup=("module load nosuch/1.0", f"export PATH={bare(first_job)}"))
    for fact in ("exit code 127", "the setup line `module load nosuch/1.0` ended with", "srun could not be started"):
        assert fact in text, text
    assert advice(text).startswith("correct setup in the site profile")


def bare(first_job: CannedRun) -> Path:
    """A folder of commands without srun."""
    folder = first_job.commands.with_name("bare")
    folder.mkdir()
    for name in ("bash", "date", "hostname", "grep", "timeout", "sed", "tail", "id", "sleep", "squeue"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


def test_a_setup_line_that_ends_the_script(first_job: CannedRun) -> None:
    text = job_ends(first_job, setup=("set -e", 'test "a\\b" = \'"c"\'', "true"))
    assert "the setup line `test" in text and advice(text).startswith("correct setup in the site profile"), text


def test_a_setup_line_that_fails_keeps_no_job_from_its_work(first_job: CannedRun) -> None:
    first_job.command("srun", "exit 0")
    job_ends(first_job, setup=("false",))
    assert "srun" in first_job.calls
    log = (first_job.layout.logs / PREPARE / "11_0_log.err").read_text()
    assert "a setup line of the site profile ended with exit code 1: false" in log


def test_the_record_of_a_killed_attempt_has_its_exit_code_in_words_and_advice_about_it(first_job: CannedRun) -> None:
    for code, words in ((132, "another kind of processor"), (134, "aborted"), (135, "bus error"), (139, "crashed")):
        record = settle(first_job.layout, PREPARE, 0, f"{code}.0", code, retries=0)
        assert record.state is TaskState.FAILED and words in record.message and f"exit code {code}" in record.message
        assert ("next:     correct python" in record.message) == (code == 132)
