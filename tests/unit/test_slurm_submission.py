"""What a submission does with what Slurm answers, and what it makes of a run that is there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from basics import EVALUATION, INFERENCE, QUICKSTART, TRAINER
from canned_queue import CannedRun, canned_run
from run_of import run_of
from submitted import current_ids, latest_ids

from mrt_hpc.attempt.ledger import current_submissions, record_submission, submissions, task_ids
from mrt_hpc.backends.queued_jobs import LiveJob
from mrt_hpc.backends.slurm import arrays, queue
from mrt_hpc.backends.slurm.arrays import array_of
from mrt_hpc.backends.slurm.commands import MARKS
from mrt_hpc.backends.slurm.parameters import require_plain_path
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.compile import build_plan
from mrt_hpc.plan.jobs import Plan, read_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.submit.submission import Listener, awaited_as, start, without_hope

SITE = SlurmSite(name="x")
COUNT = "cd $(dirname $0); n=$(grep -c sbatch calls); "
LIMIT = "echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2; echo 'sbatch: error: Job violates policy' >&2; exit 1"
BUSY = "echo 'sbatch: error: Batch job submission failed: Resource temporarily unavailable' >&2; exit 1"
TIMED_OUT = "echo 'Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"


def submits(layout: RunLayout) -> list[str]:
    lines: list[str] = []
    listener = Listener(lines.append, lines.append, nullcontext)
    start(read_recipe_lock(layout.recipe_lock), read_plan(layout.plan), layout, SITE, listener)
    return lines


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    """Nothing of it is queued, and sbatch gives out ids from 1."""
    run = canned_run(tmp_path, monkeypatch, "resources.inference.tasks=2")
    run.command("scontrol", "exit 0")
    run.command("scancel", 'cd $(dirname $0); echo "$@" >> cancelled; sed -i "/(|$1|/d" queue')
    run.command("sbatch", f'for script; do :; done\n{COUNT} cp "$script" script-$n; echo $n')
    return run


def test_a_submission_that_stops_half_way_names_what_it_submitted(run: CannedRun) -> None:
    run.command("sbatch", f"{COUNT} [ $n -le 2 ] || {{ {BUSY}; }}; echo $n")
    with pytest.raises(UserError) as refused:
        submits(run.layout)
    assert refused.value.exit_code is ExitCode.RETRYABLE
    for words in ("unavailable", f"prepare as job 1, {INFERENCE} as job 2", f"left: {TRAINER}, {EVALUATION}, report"):
        assert words in str(refused.value)
    assert latest_ids(run.layout) == {"prepare": "1", INFERENCE: "2"}


def test_a_submission_without_an_answer_may_have_been_queued(run: CannedRun) -> None:
    run.command("sbatch", TIMED_OUT)
    with pytest.raises(UserError, match="may be queued all the same") as refused:
        submits(run.layout)
    assert refused.value.exit_code is ExitCode.RETRYABLE


def test_a_job_finds_its_call_also_where_nothing_can_be_told(run: CannedRun) -> None:
    run.command("sbatch", "echo Projekt; echo 71")

    def closed(line: str) -> None:
        raise BrokenPipeError(line)

    jobs = read_plan(run.layout.plan).jobs
    with pytest.raises(BrokenPipeError, match="Projekt"):
        arrays.submit_arrays(jobs, SITE, run.layout, known_ids={}, record=lambda *_: None, show=closed)
    assert (run.layout.logs / jobs[0].name / "71_submitted.pkl").exists()


def test_accounting_may_be_away(run: CannedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "ACCOUNTING_S", 0.5)
    record_submission(run.layout, "prepare", "12", "x")
    run.queue("12|RUNNING|N/A|None|n1")
    run.command("sacct", "exec sleep 60")
    began = time.monotonic()
    assert len([line for line in submits(run.layout) if line.startswith("submitted ")]) == 4, "one runs"
    assert time.monotonic() - began < 20
    for refuses in ("sacct: error: Connection refused", "sacct: fatal: Bad job/step specified"):
        run.command("sacct", f"echo '{refuses}' >&2; exit 1")
        assert queue.queue_states(["12"])["12"].state.name == "RUNNING"


@pytest.mark.parametrize("refusals", [1, 9])
def test_room_below_a_limit_is_waited_for(run: CannedRun, monkeypatch: pytest.MonkeyPatch, refusals: int) -> None:
    monkeypatch.setattr(arrays, "ROOM_S", 1.0)
    monkeypatch.setattr(arrays, "OFFER_EVERY_S", 0.2)
    run.command("sbatch", f"{COUNT} [ $n -gt {refusals} ] || {{ {LIMIT}; }}; echo $n")
    if refusals == 1:
        assert len([line for line in submits(run.layout) if "AssocMaxSubmitJobLimit" in line]) == 1
    else:
        with pytest.raises(UserError) as refused:
            submits(run.layout)
        assert refused.value.exit_code is ExitCode.RETRYABLE


def test_what_a_site_says_to_those_who_submit_is_shown_once(run: CannedRun) -> None:
    note = "sbatch: You have used 99 % of project lab"
    run.command("sbatch", f"{COUNT} echo '{note}' >&2; echo banner; echo $n")
    lines = submits(run.layout)
    assert [sum(word in line for line in lines) for word in (note, "banner")] == [1, 1]


def test_the_ledger_holds_nothing_that_is_no_id(run: CannedRun) -> None:
    for job_id in ("Submitted batch job 4", "", "a/b", "1_2", "71;box", "1\n2", "x" * 200):
        with pytest.raises(UserError):
            record_submission(run.layout, "prepare", job_id, "x")
    assert list(run.layout.jobs.iterdir()) == []


def test_two_submissions_at_once_are_both_recorded(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: record_submission(layout, TRAINER, str(n), "site"), range(40)))
    assert sorted(int(one.job_id) for one in submissions(layout)) == list(range(40))
    assert sorted(p.name for p in layout.jobs.iterdir())[-1] == "queued-000040.json"


@pytest.fixture(scope="module")
def plan() -> Plan:
    changes = ("schedule.iterations=4", "schedule.iterations_per_job=2")
    return build_plan(load_recipe(QUICKSTART, changes), max_array_size=None)


def test_each_task_goes_by_its_latest_submission(plan: Plan, tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    for slurm_id, tasks in (("10", None), ("12", None), ("15", (1, 2)), ("16", (2,))):
        record_submission(layout, INFERENCE, slurm_id, "here", tasks)
    array = plan.job(INFERENCE).model_copy(update={"tasks": 4})
    assert task_ids(array, current_submissions(layout)[INFERENCE]) == ["12_0", "15_1", "16_2", "12_3"]
    assert current_ids(layout) == ["12", "15", "16"]
    assert array_of((1, 3), None) == "1,3%2"
    assert awaited_as(LiveJob("12", True, {0: "12_0", 1: "12_1"}), partly=False) == ("12",)
    assert awaited_as(LiveJob("12", True, {0: "12_0", 2: "12_2"}), partly=True) == ("12_0", "12_2")
    assert awaited_as(LiveJob("15", True, {0: "12_0", 1: "15_1"}), partly=False) == ("12_0", "15_1")


def test_what_waits_for_a_job_that_has_failed_is_sent_again_all_the_way_down(plan: Plan) -> None:
    """Slurm cancels them one after the other, and lets the report go that waits for any end."""
    names = tuple(job.name for job in plan.jobs)
    left = (EVALUATION, *(f"segment-001.{role}" for role in ("inference", "trainer", "evaluation")), "report")
    for queued, at_work, done, again in (
        (names, (), (), ()),
        (names[3:], (INFERENCE, TRAINER), ("prepare",), ()),
        (left, (INFERENCE,), ("prepare",), left),
        (("report",), (), ("prepare", INFERENCE), ("report",)),
        (("report",), (EVALUATION,), ("prepare", INFERENCE, TRAINER), ("report",)),  # a job that runs is left alone
    ):
        live = {name: LiveJob(str(number), name in at_work) for number, name in enumerate((*queued, *at_work))}
        jobs = [job for job in plan.jobs if job.name not in done]
        assert set(without_hope(jobs, live, done)) == {*again}, (queued, at_work)


SUBMIT = """
import sys
from pathlib import Path
from mrt_hpc.run.layout import RunLayout
from test_slurm_submission import submits
print("\\n".join(submits(RunLayout(Path(sys.argv[1])))))
"""


def submitted_by_a_process(run: CannedRun) -> str:
    """A process holds the run as long as it lives."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", SUBMIT, str(run.layout.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_submission_names_to_slurm_the_parts_of_an_array_that_others_wait_for(run: CannedRun) -> None:
    """One evaluation task is lost: it is sent again, and the report, which waits for all of them, after it."""
    of_others = 'cd $(dirname $0); case "$*" in *--me*) head -n 1 queue ;; *) cat queue ;; esac'
    run.command("squeue", of_others)
    assert "5 job(s) submitted" in submitted_by_a_process(run)
    write_task(run.layout, "prepare", 0, TaskRecord(TaskState.DONE))
    alive = ["2_0|RUNNING", "2_1|RUNNING", "3|RUNNING", "4_0|RUNNING", "5|PENDING"]
    run.queue(*(f"{task}|N/A|None|n1" for task in alive))
    run.command("squeue", of_others)
    again = submitted_by_a_process(run)
    assert "2 job(s) submitted, 3 queued before, 1 done" in again
    assert "task(s) 1 had been lost" in again
    assert (run.commands / "cancelled").read_text() == "5\n"
    lost, report = ((run.commands / f"script-{number}").read_text() for number in (6, 7))
    assert "#SBATCH --array=1%1\n" in lost
    assert "#SBATCH --dependency=afterany:3,afterany:4_0:6\n" in report


def test_a_run_directory_that_others_may_write_to_or_a_listing_would_cut_is_refused(tmp_path: Path) -> None:
    for mark in MARKS:
        with pytest.raises(UserError):
            require_plain_path(RunLayout(tmp_path / f"a{mark}b"))
    layout = run_of(tmp_path / "run")
    assert run_of(tmp_path / "run") == layout
    layout.root.chmod(0o770)
    with pytest.raises(UserError) as refused:
        run_of(tmp_path / "run")
    assert "chmod go-w" in str(refused.value.advice)
    layout.root.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(layout.root, 4321, -1)
        with pytest.raises(UserError, match="others can write"):
            run_of(tmp_path / "run")
