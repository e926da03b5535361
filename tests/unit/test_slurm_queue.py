"""What is taken for the state of a job, its end and an answer; and how tasks and views go on asking."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from basics import INFERENCE, TRAINER
from canned_queue import CannedRun, canned_run
from commands import refusal
from submitted import age
from tables import tables

from mrt_hpc.attempt.entry import ending_of, load_task
from mrt_hpc.attempt.ledger import submissions
from mrt_hpc.attempt.next_state import next_state
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.slurm import commands as slurm_commands
from mrt_hpc.backends.slurm import queue
from mrt_hpc.backends.slurm.commands import run_slurm
from mrt_hpc.backends.slurm.parameters import queue_name
from mrt_hpc.backends.slurm.task import ASK_EVERY_S, QueueWatch
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.jobs import Role
from mrt_hpc.roles.task import peers as peers_module
from mrt_hpc.run.retries import wait_until
from mrt_hpc.run.task_state import TaskRecord, TaskState
from mrt_hpc.view import snapshot_reader

WORDS = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
LEAVES = 'sed -i "/(|$1|/d" $(dirname $0)/queue'


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    return canned_run(tmp_path, monkeypatch)


def test_the_state_of_a_job(run: CannedRun) -> None:
    soon, later = (str(int(time.time()) + left) for left in (-2, 86400))
    for records, accounted, states in tables("slurm_queue")["states"]:
        run.queue(*(record.replace("SOON", soon).replace("LATER", later) for record in records))
        run.accounts(*(accounted or []))
        if accounted is None:
            (run.commands / "sacct").chmod(0o644)
        found = {task: one.state.name for task, one in queue.queue_states(["12"]).items()}
        assert found == states or {*found.values()} == {*states.values()} == {"UNKNOWN"}, (records, accounted)


@pytest.mark.parametrize(("scancel", "asked", "left"), [
    (LEAVES, ["1", "2", "3"], ""),
    (f"{LEAVES}; echo Invalid job id >&2; exit 1", ["1", "2"], ""),  # refused, and done
    (LEAVES, ["1", "Submitted batch job 2", "3"], ""),
    (LEAVES, ["1", "9", "2"], ""),  # one has ended
    ("echo Invalid job id specified >&2; exit 1", ["1", "2"], "12"),
    ("exit 0", ["1", "2"], "12"),
    (f"[ $1 = 2 ] || {LEAVES}", ["1", "2", "3"], "2"),
])  # fmt: skip
def test_what_was_cancelled_is_what_the_queue_no_longer_holds(
    run: CannedRun, monkeypatch: pytest.MonkeyPatch, scancel: str, asked: list[str], left: str
) -> None:
    monkeypatch.setattr(queue, "GONE_S", 0.1)
    run.command("scontrol", "exit 0")
    run.command("scancel", scancel)
    run.queue(*(f"{job}|PENDING|N/A|Priority|" for job in "123"))
    if left:
        refused = refusal(queue.cancel, asked)
        assert {word.strip(",") for word in str(refused.value).partition("(")[0].split()} == {*left}
    else:
        assert set(queue.cancel(asked)) == {*asked} & {*"123"}
    queued = (run.commands / "queue").read_text()
    assert {job for job in "123" if f"(|{job}|" in queued} == {*"123"} - {*asked} | {*left}


def test_a_job_of_a_run_is_known_by_several_marks(run: CannedRun) -> None:
    root, named = run.layout.root, queue_name("prepare", run.layout)
    link = root.with_name("link")
    link.symlink_to(root)
    for name, script, found in (
        ("rewritten", f"{root}/logs/prepare/submission.sh", True),
        ("rewritten", f"{link}/logs/prepare/submission.sh", True),
        (named, "(null)", True),
        (named, "/var/spool/wrapped/submission.sh", True),
        ("run.prepare.00000000", "(null)", False),  # of another run of this name
        ("run.prepare", "(null)", False),
        ("rewritten", "(null)", False),
    ):
        record, odd = f"12|PENDING|N/A|None||{name}|{script}|900", "40|PENDING|N/A|None||a\n12|line break|/home/me/x.sh"
        run.prints(odd, record, record.replace("12|PENDING", "11|RUNNING"))
        assert queue.own_jobs(run.layout) == ({"prepare": ["11", "12"]} if found else {}), record


def test_a_command_that_waits_is_shown_and_one_that_does_not_answer_is_ended(
    run: CannedRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm_commands, "QUIET_S", 0.3)
    run.command("sbatch", f"echo '{WORDS}' >&2; sleep 1; echo 7")
    assert (run_slurm(["sbatch"]), capsys.readouterr().err) == ("7\n", f"waiting for sbatch: {WORDS}\n")
    run.command("sbatch", f"echo '{WORDS}' >&2; exec sleep 60")
    assert WORDS in str(refusal(lambda: run_slurm(["sbatch"], timeout_s=0.5)))
    run.command("sbatch", "sleep 60 & echo 71")
    assert run_slurm(["sbatch"], timeout_s=30.0).strip() == "71", "children hold nothing"


def test_habits_of_the_shell_do_not_change_what_slurm_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["SBATCH_EXPORT", "SBATCH_NO_REQUEUE", "SBATCH_TIMELIMIT", "SBATCH_WAIT"]
    others = ["SQUEUE_STATES", "SCANCEL_STATE", "SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV", "SLURM_ARRAY_JOB_ID"]
    of_the_site = ["SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_SACK_SOCKET", "SLURM_ROOT", "MY_SLURM"]
    for name in (given := [*options, *others, *of_the_site]):
        monkeypatch.setenv(name, "x")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    printed = run_slurm(["env"]).splitlines()
    assert [name for name in given if f"{name}=x" in printed] == of_the_site
    assert slurm_commands.ignored_options() == [f"{name}=x" for name in options]


OWN, PARTNER, NEWER = "7", "12", "13"


def lists(run: CannedRun, *job_ids: str) -> None:
    """What squeue prints of the user's jobs; the asking task is of the run's inference."""
    if "inference" not in {sent.job.rpartition(".")[2] for sent in submissions(run.layout)}:
        run.submitted(inference=OWN)
    run.queue(*(f"{job_id}|RUNNING|N/A|None|n1" for job_id in job_ids))


class Watching:
    def __init__(self, run: CannedRun) -> None:
        self.now = 1000.0
        self.watch = QueueWatch(run.layout, OWN, lambda: self.now)

    def looks(self, times: int, pause_s: float = ASK_EVERY_S) -> bool:
        """Whether the partner is gone, at the last of so many looks."""
        gone = False
        for _ in range(times):
            gone = self.watch((TRAINER,))
            self.now += pause_s
        return gone


def test_a_job_that_two_listings_of_one_wait_lack_is_gone(run: CannedRun) -> None:
    lists(run, OWN)
    assert not Watching(run).looks(3), "it was never submitted"
    run.submitted(trainer=PARTNER)
    before = run.calls.count("squeue")
    assert not Watching(run).looks(29, pause_s=1.0), "squeue is asked at a slow pace"
    assert run.calls.count("squeue") == before + 1
    watching = Watching(run)
    assert not watching.looks(1)
    watching.now += 100 * ASK_EVERY_S
    assert not watching.looks(1), "an earlier wait says nothing about this one"
    run.command("squeue", f"cat {run.commands}/queue; exit 1")
    assert not watching.looks(1), "errors are waited out"
    lists(run, OWN)
    assert watching.looks(2)
    for listed in ((OWN, PARTNER), (PARTNER,), (), ("9",)):  # queued, hidden, empty, of others
        lists(run, *listed)
        assert not Watching(run).looks(5), listed
    run.submitted(trainer=NEWER)
    lists(run, OWN, NEWER)
    assert not Watching(run).looks(3), "it was submitted again"
    lists(run, OWN)
    age(run.layout, 60.0)
    assert not Watching(run).looks(3), "the listing may be older than the submission"
    age(run.layout, 3600.0)
    run.prints(
        f"{OWN}|RUNNING|N/A|None|n1|{run.marks(OWN)}", f"{NEWER}|RUNNING|N/A|None|n1|thesis|/home/me/thesis.sh|1"
    )
    assert Watching(run).looks(2), "another job that has its id"


def test_inference_ends_when_its_trainer_has_left_the_queue(run: CannedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "LOOK_EVERY_S", 0.0)
    run.submitted(trainer=PARTNER)
    lists(run, OWN)
    run.task(TRAINER, TaskState.STOPPED, attempt="12.0")
    watching, placement = Watching(run), Placement(0, 1, 0, "7.0")
    task = replace(load_task(run.layout, INFERENCE, 0, placement), gone=watching.watch)
    wait = task.peer_wait("weights", task.peers(Role.TRAINER))
    wait.check()
    watching.now += ASK_EVERY_S
    with pytest.raises(UserError, match=TRAINER) as left:
        wait.check()
    assert left.value.exit_code is ExitCode.FATAL
    after = next_state(TaskRecord(TaskState.RUNNING, attempt="7.0"), ending_of(task, left.value))
    assert (after.state, after.awaited) == (TaskState.FAILED, (TRAINER,))


def test_a_live_view_asks_the_queue_only_when_it_is_due_and_waits_for_no_answer(run: CannedRun) -> None:
    run.submitted(trainer=PARTNER)
    run.queue("12|PENDING|N/A|Priority|")
    now = 1000.0
    with snapshot_reader.QueueLooks(run.layout, within_s=60.0, clock=lambda: now) as looks:

        def reason() -> str:
            return looks.latest().tasks[TRAINER][0].reason

        assert reason() == "Priority"
        run.queue("12|PENDING|N/A|Resources|")
        now += snapshot_reader.ASK_EVERY_S - 1
        assert (reason(), run.calls.count("squeue")) == ("Priority", 1)
        now += 2
        wait_until(lambda: reason() == "Resources", reason="the second answer", deadline_s=60)
        run.queue("12|PENDING|N/A|Dependency|")
        looks.renew()
        assert reason() == "Dependency", "the last frame of a view waits for an answer of that time"
        last = looks.latest()
        run.command("squeue", "exec sleep 60")
        looks.within_s = 1.0
        now += snapshot_reader.ASK_EVERY_S + 1
        assert looks.latest() is last, "until the next one comes"
        wait_until(lambda: "Slurm" in looks.latest().unreached, reason="the end of the question", deadline_s=60)


@pytest.mark.parametrize("task", ["12_[-]", "12_[0-3:0]", "12_[1,]", "12_[0-99999999]"])
def test_tasks_in_a_form_that_is_not_known_are_passed_over(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(queue._expand(task)) == []
    assert task in capsys.readouterr().err
    assert [*queue._expand("12_[0-4:2,7%2]"), *queue._expand("12_3")] == ["12_0", "12_2", "12_4", "12_7", "12_3"]
