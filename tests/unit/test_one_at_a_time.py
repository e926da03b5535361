"""Of two jobs of a task one works at a time, and a run on this machine runs in one place at a time."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Barrier

import pytest
from basics import TRAINER
from commands import refusal, typed
from run_of import run_of, task_of

from mrt_hpc import ExitCode, RunLayout, UserError
from mrt_hpc.attempt import sole_attempt as holding
from mrt_hpc.attempt.entry import run_task
from mrt_hpc.attempt.ledger import LOCAL, LocalProcess, claim_run, local_process
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.attempt.sole_attempt import sole_attempt
from mrt_hpc.backends import queued_jobs
from mrt_hpc.backends.slurm.after_srun import AttemptOutcome
from mrt_hpc.backends.slurm.after_srun import main as after_srun
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.leases import BEATS_A_LIMIT, NO_BEAT, Beat, Heart, read_beat
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task

LIMIT_S = 0.5


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    monkeypatch.setattr(holding, "LOOK_EVERY_S", 0.05)
    return run_of(tmp_path / "run", f"resilience.heartbeat_limit_s={LIMIT_S}")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    read: list[Path] = []
    monkeypatch.setattr(holding, "read_beat", lambda path: read.append(path) or read_beat(path))
    return read


@pytest.mark.parametrize("second", ["47.0", "45_0.0", "44.3"])
def test_a_second_job_does_nothing(layout: RunLayout, monkeypatch: pytest.MonkeyPatch, second: str) -> None:
    write_task(layout, TRAINER, 0, TaskRecord(TaskState.RUNNING, attempt="46.0"))
    began: list[Task] = []
    monkeypatch.setenv("SLURM_JOB_ID", second.partition(".")[0])
    monkeypatch.setenv("SLURM_RESTART_COUNT", second[-1])
    with sole_attempt(task_of(layout, TRAINER, attempt="46.0")):
        with pytest.raises(UserError) as refused:
            run_task(str(layout.root), TRAINER, 0, Placement(0, 1, 0, second), began.append)
        outcome = after_srun([str(layout.root), TRAINER, "0", "143"])  # of a rank that was ended with the first one
    assert (refused.value.exit_code, outcome, began) == (ExitCode.GIVE_BACK, AttemptOutcome.AGAIN, [])
    assert read_task(layout, TRAINER, 0).attempt == "46.0", "what the first has recorded stays"
    run_task(str(layout.root), TRAINER, 0, Placement(0, 1, 0, second), began.append)
    assert len(began) == 1, "the first has ended"


@pytest.mark.parametrize(
    ("left", "taker", "at_once"),
    [("45.0", "45.1", True), ("45_3.0", "45_3.1", True), ("45.0", "47.0", False), ("1234abcd", "5678abcd", True)],
)
def test_a_killed_one_is_taken_over(layout: RunLayout, looks: list[Path], left: str, taker: str, at_once: bool) -> None:
    """At once by the next attempt of the same job; by another job when the heart has stood still for long enough."""
    with sole_attempt(task_of(layout, TRAINER, attempt=left)):
        kept = {path: path.read_bytes() for path in layout.heart(TRAINER, 0).parent.iterdir()}
    for path, content in kept.items():  # its claim, and a heart that stands still
        path.write_bytes(content)
    began = time.monotonic()
    with pytest.raises(ValueError, match="ends"), sole_attempt(task_of(layout, TRAINER, attempt=taker)):
        assert (len(looks) == 1) == at_once
        assert at_once or time.monotonic() - began >= LIMIT_S
        looks.clear()
        raise ValueError("ends")
    with sole_attempt(task_of(layout, TRAINER, attempt="99.0")):
        assert len(looks) == 1, "the end is written whatever ends the attempt"


def test_one_that_beats_too_late_is_refused(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (task_of(layout, TRAINER, attempt=attempt) for attempt in ("45.0", "47.0"))
    with ExitStack() as other:

        class Slow(Heart):
            """The first has claimed, and before its first beat the second one works."""

            def __enter__(self) -> Heart:
                if self.attempt == first.attempt:
                    other.enter_context(sole_attempt(second))
                return super().__enter__()

        monkeypatch.setattr(holding, "Heart", Slow)
        with pytest.raises(UserError) as refused, sole_attempt(first):
            pytest.fail("two work at once")
        assert refused.value.exit_code is ExitCode.GIVE_BACK


def test_one_that_only_stood_still_works_on_alone(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job took it for dead, sees that it beats, and comes back."""
    first, *others = (task_of(layout, TRAINER, attempt=attempt) for attempt in ("45.0", "47.0", "47.1", "47.2"))
    path, last = layout.heart(TRAINER, 0), holding.TaskClaim(1, "45.0", Beat("45.0", 0))
    with sole_attempt(first):
        with monkeypatch.context() as patch:
            patch.setattr(holding, "finished_claim", lambda *_: last)
            with pytest.raises(UserError), sole_attempt(others[0]):
                pytest.fail("two work at once")
        with Heart(path, "45.0", 0.1), pytest.raises(UserError), sole_attempt(others[1]):
            pytest.fail("it came back beside the first")
    with sole_attempt(others[2]):
        assert read_beat(path).attempt == "47.2"


def test_of_many_that_begin_at_once_never_two_work_together(layout: RunLayout) -> None:
    jobs, at_work, most = 8, set[str](), list[int]()
    start = Barrier(jobs)

    def work(one: Task) -> None:
        start.wait()
        try:
            with sole_attempt(one):
                at_work.add(one.attempt)
                most.append(len(at_work))
                time.sleep(0.05)
                at_work.remove(one.attempt)
        except UserError as refused:
            assert refused.exit_code is ExitCode.GIVE_BACK

    with ThreadPoolExecutor(jobs) as pool:
        for turn in range(5):
            tasks = [task_of(layout, TRAINER, attempt=f"{100 * turn + number + 1}.0") for number in range(jobs)]
            list(pool.map(work, tasks))
    assert len(most) >= 5 and set(most) == {1}, "one of each turn works"


HOLD = """
import signal, sys, time
from pathlib import Path
from mrt_hpc.attempt.ledger import claim_run
from mrt_hpc.run.layout import RunLayout
with claim_run(RunLayout(Path(sys.argv[1])), 10.0):
    if "deaf" in sys.argv:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("held", flush=True)
    while True:  # as a run waits: a signal to a suspended process may reach another of its threads than the main one
        time.sleep(0.05)
"""


@contextmanager
def held(layout: RunLayout, *how: str) -> Iterator[subprocess.Popen[str]]:
    """Another process holds the run, in a group of its own as the jobs of a shell are."""
    command = [sys.executable, "-c", HOLD, str(layout.root), *how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_run_held_by_a_live_process_is_refused_until_that_has_ended(layout: RunLayout) -> None:
    with held(layout) as process:
        with pytest.raises(UserError, match=f"process {process.pid} on"), claim_run(layout, 10.0):
            pass
        assert (found := local_process(layout)) and found.pid == process.pid
    assert local_process(layout) is None, "killed"
    with claim_run(layout, 10.0):
        assert read_beat(layout.heart(LOCAL, 2)) != NO_BEAT, "the second claim"
    assert read_beat(layout.heart(LOCAL, 2)) == NO_BEAT


def test_a_cancelled_process_has_ended(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    for suspended in (False, True):
        with held(layout) as process:
            if suspended:
                os.killpg(process.pid, signal.SIGSTOP)
            typed("cancel", layout.root)
            assert process.poll() is not None
    monkeypatch.setattr(queued_jobs, "ENDS_WITHIN_S", 0.3)
    with held(layout, "deaf") as process:
        left = refusal(lambda: list(queued_jobs.cancel_run(layout)))
        assert all(str(process.pid) in text for text in (left.what, str(left.advice)))


@pytest.mark.parametrize("refused_since", [0, 2])
def test_a_process_on_another_host_is_known_by_its_heart(layout: RunLayout, refused_since: int) -> None:
    """Also where others have claimed since, and were refused."""
    holder, heart = LocalProcess(os.getpid(), "1", "another-host", 1, held=True), layout.heart(LOCAL, 1)
    for process in (holder, *(LocalProcess(1, "1", f"host-{number}", 2 + number) for number in range(refused_since))):
        (layout.jobs / f"local-{process.generation:05d}.json").write_text(json.dumps(asdict(process)))
    beating, refused = Heart(heart, holder.name, 0.02 * BEATS_A_LIMIT), pytest.raises(UserError, match="another-host")
    with beating, refused, claim_run(layout, 10.0):
        pass
    with Heart(heart, holder.name, 1000.0), claim_run(layout, 0.3):
        assert read_beat(layout.heart(LOCAL, 2 + refused_since)) != NO_BEAT
