"""What the job script does after srun, in the cases that a cluster does not bring about at will: Slurm's commands and
the verdict are functions of the shell here, which write down how they are called. (On a cluster: ``tests/slurm``.)
"""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mrt_hpc.attempt.ledger import record_submission, shown_submissions, submissions
from mrt_hpc.backends.slurm.after_srun import ABANDONED, FORBIDDEN, awaited_tasks, ended
from mrt_hpc.backends.slurm.parameters import EPILOGUE
from mrt_hpc.plan.compile import build_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.events import EventKind, EventLog, event_file
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
TRAINER, INFERENCE = "segment-000.trainer", "segment-000.inference"
WAITING = TaskRecord(TaskState.GAVE_BACK, attempt="7.1", awaited=(INFERENCE,))
SCRIPT = """
(exit {code}); code=$?; AGAIN=0; OVER=4; DONE=3; GAVE_BACK=75; MOST_AWAITED=2; WAITED_FOR={waited_for}; LATE_S=5
SLURM_JOB_ID=7; id=7
export SLURM_TIME_FORMAT=%s SQUEUE_FORMAT=%j
end() {{ case ${{SLURM_TIME_FORMAT-}}$1 in %s????-*) date --date="$1" +%s;; *) echo "$1";; esac; }}
settle() {{ echo "settle $*" >&2; if [ "$*" ]; then return 4; fi; printf '%s' '{said}'; return {verdict}; }}
sleep() {{ :; }}
answers() {{ echo Welcome; echo; echo "mrt-hpc=$1"; }}
squeue() {{
  case "$*" in
    *%T*) answers {state};; *%e*) answers "$(end {end})";; *) echo Welcome; printf '%s' '{queue}'; return {listed};;
  esac
}}
exec 3>&2
scontrol() {{ echo "scontrol $*" >&3; {refusal}; }}
"""
REQUEUED = "scontrol requeue 7"


def calls(
    said: str = "",
    *,
    verdict: int = 0,
    queue: str = "",
    listed: int = 0,
    state: str = "RUNNING",
    code: int = 75,
    waited_for: str = "",
    end: str = "N/A",
    refusal: str = "true",
) -> tuple[list[str], int]:
    """What was called after the first verdict, and how the script ended."""
    listing = {"queue": queue, "listed": listed, "state": state, "end": end}
    given = SCRIPT.format(said=said, verdict=verdict, code=code, waited_for=waited_for, refusal=refusal, **listing)
    done = subprocess.run(["bash", "-c", given + EPILOGUE.read_text()], capture_output=True, text=True, check=False)
    assert not done.stdout
    called = done.stderr.splitlines()
    return [line for n, line in enumerate(called) if n or line != "settle "], done.returncode


def waiting_for(*tasks: str) -> list[str]:
    return [REQUEUED, f"scontrol update JobId=7 Dependency=after:{'?after:'.join(tasks)}"]


def test_a_task_that_waits_for_no_other_is_queued_again() -> None:
    assert calls() == ([REQUEUED], 75)


def test_one_that_waits_for_others_waits_for_those_in_the_queue() -> None:
    assert calls("12_0\n12_1\n13\n", queue="7\n12_1\n13\n9\n") == (waiting_for("12_1", "13"), 75)


def test_no_more_tasks_are_named_than_slurm_should_look_at() -> None:
    assert calls("12_0\n12_1\n13\n", queue="7\n12_0\n12_1\n13\n") == (waiting_for("12_0", "12_1"), 75)


def test_one_that_waits_for_no_task_in_the_queue_ends() -> None:
    assert calls("12_0\n12_1\n", queue="7\n9\n112_0\n") == (["settle abandoned"], 75)


@pytest.mark.parametrize(("queue", "listed"), [("", 1), ("", 0), ("9\n", 0)], ids=["no answer", "empty", "hidden"])
def test_a_listing_without_the_task_itself_proves_nothing(queue: str, listed: int) -> None:
    assert calls("12_0\n", queue=queue, listed=listed) == ([REQUEUED], 75)


def test_what_somebody_else_prints_is_no_task() -> None:
    assert calls("Welcome to node 12\n12_0 \n", queue="7\n") == ([REQUEUED], 75)


@pytest.mark.parametrize(("code", "comes_back"), [(75, True), (143, True), (1, False), (137, False)])
def test_where_no_answer_says_what_becomes_of_a_task_its_exit_code_decides(code: int, comes_back: bool) -> None:
    assert calls("12_0\n", verdict=1, code=code) == (["settle "] * 3 + [REQUEUED] * comes_back, code)


@pytest.mark.parametrize(("verdict", "code"), [(4, 75), (3, 0)])
def test_one_that_is_over_is_not_queued_again(verdict: int, code: int) -> None:
    assert calls("12_0\n", verdict=verdict, queue="7\n12_0\n") == ([], code)


NOT_AGAIN = "this task is not queued again; the same submit command continues the run"


def test_a_cluster_that_forbids_it_is_asked_once_and_one_that_is_busy_again() -> None:
    disabled = "echo Requested operation is presently disabled for job 7 >&2; false"
    called, code = calls(refusal=disabled)
    assert (called[0], called[2:], code) == (REQUEUED, ["settle forbidden"], 75)
    called, _ = calls(refusal="echo slurm_update error: Unable to contact slurm controller >&2; false")
    assert [line for line in called if not line.startswith("slurm_update")] == [REQUEUED] * 5 + [NOT_AGAIN]


def test_one_that_was_cancelled_is_not_queued_again() -> None:
    assert calls("12_0\n", queue="7\n12_0\n", state="COMPLETING") == ([], 75)


@pytest.mark.parametrize("state", ["RUNNING", "SIGNALING"])
def test_one_that_is_being_signalled_runs_still(state: str) -> None:
    assert calls(state=state) == ([REQUEUED], 75)


def in_seconds(seconds: float) -> str:
    """A time as squeue writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds))


@pytest.mark.parametrize(
    ("waited_for", "end", "again"),
    [("yes", -3, True), ("yes", 2, True), ("yes", 60, False), ("", -3, False)],
)
def test_one_that_ends_well_when_its_time_is_over_is_queued_again_for_those_who_wait_for_it(
    waited_for: str, end: int, again: bool
) -> None:
    assert calls(code=0, waited_for=waited_for, end=in_seconds(end)) == ([REQUEUED] * again, 0)
    assert calls(code=9, verdict=3, waited_for=waited_for, end=in_seconds(end)) == ([REQUEUED] * again, 0)


@pytest.mark.parametrize("end", ["N/A", "NONE", ""])
def test_one_whose_time_is_not_known_ends(end: str) -> None:
    assert calls(code=0, waited_for="yes", end=end) == ([], 0)


def run_with_ledger(tmp_path: Path, inference_tasks: int = 2) -> RunLayout:
    layout = RunLayout(tmp_path)
    recipe = load_recipe(QUICKSTART, (f"resources.inference.tasks={inference_tasks}",))
    layout.plan.write_text(build_plan(recipe, max_array_size=None).model_dump_json())
    layout.jobs.mkdir()
    record_submission(layout, INFERENCE, "12", "site")
    return layout


def test_awaited_are_those_that_are_not_over(tmp_path: Path) -> None:
    layout = run_with_ledger(tmp_path)
    assert awaited_tasks(layout, TRAINER, 0, "7.1", WAITING) == ["12_0", "12_1"]
    write_task(layout, INFERENCE, 0, TaskRecord(TaskState.DONE))
    assert awaited_tasks(layout, TRAINER, 0, "7.1", WAITING) == ["12_1"]


def test_a_job_of_one_task_goes_by_its_plain_id(tmp_path: Path) -> None:
    assert awaited_tasks(run_with_ledger(tmp_path, 1), TRAINER, 0, "7.1", WAITING) == ["12"]


def test_a_task_that_has_done_something_keeps_its_turn_in_the_queue(tmp_path: Path) -> None:
    layout = run_with_ledger(tmp_path)
    EventLog(event_file(layout.events, TRAINER, 0, 0, "7.1")).emit(EventKind.CHECKPOINT, iteration=1)
    assert awaited_tasks(layout, TRAINER, 0, "7.1", WAITING) == []


def test_an_earlier_attempt_does_not_tell_whom_this_one_waits_for(tmp_path: Path) -> None:
    assert awaited_tasks(run_with_ledger(tmp_path), TRAINER, 0, "7.2", WAITING) == []


@pytest.mark.parametrize(("word", "named"), [(ABANDONED, INFERENCE), (FORBIDDEN, "scontrol requeue")])
def test_a_task_that_will_not_run_again_says_why_and_what_to_do(tmp_path: Path, word: str, named: str) -> None:
    layout = RunLayout(tmp_path)
    assert ended(layout, TRAINER, 0, "7.0", WAITING, word) == WAITING, "another attempt has spoken since"
    ended(layout, TRAINER, 0, "7.1", WAITING, word)
    record = read_task(layout, TRAINER, 0)
    assert record.state is TaskState.FAILED
    assert named in record.message
    assert "submit" in record.message.partition("next:")[2]
    done = TaskRecord(TaskState.DONE, attempt="7.1")
    assert ended(layout, TRAINER, 0, "7.1", done, word) == done


def test_what_comes_later_is_not_told_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second submission comes from a login node whose clock is five minutes behind."""
    layout = run_with_ledger(tmp_path, 1)
    now = time.time()
    monkeypatch.setattr("mrt_hpc.attempt.ledger.time.time", lambda: now - 300)
    record_submission(layout, INFERENCE, "15", "other")
    assert awaited_tasks(layout, TRAINER, 0, "7.1", WAITING) == ["15"]
    assert [one.job_id for one in submissions(layout)] == ["12", "15"]
    assert [one.job_id for one in shown_submissions(layout)[0]] == ["12", "15"]


def test_two_submissions_at_once_are_both_recorded(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: record_submission(layout, TRAINER, str(n), "site"), range(40)))
    assert sorted(int(one.job_id) for one in submissions(layout)) == list(range(40))
    assert sorted(p.name for p in layout.jobs.iterdir())[-1] == "queued-000040.json"
