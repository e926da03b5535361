"""Of two jobs in the queue for one task, one works on it at a time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, Event
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.attempt import sole_attempt as holding
from mrt_hpc.attempt.entry import load_task, run_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.attempt.sole_attempt import sole_attempt
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.after_srun import AttemptOutcome, main
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.heartbeats import Beat, Heart, read_beat
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.layout import RunLayout

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
TRAINER, LIMIT_S = "segment-000.trainer", 0.5


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    monkeypatch.setattr(holding, "LOOK_EVERY_S", 0.05)
    recipe = load_recipe(QUICKSTART, (f"resilience.heartbeat_limit_s={LIMIT_S}",))
    return create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The hearts that were read to learn whether another attempt works."""
    read: list[Path] = []

    def looked(path: Path) -> Beat:
        read.append(path)
        return read_beat(path)

    monkeypatch.setattr(holding, "read_beat", looked)
    return read


def task(layout: RunLayout, attempt: str) -> Task:
    return load_task(layout, TRAINER, 0, Placement(0, 1, 0, attempt))


def abandon(layout: RunLayout, attempt: str) -> None:
    """Leave what an attempt leaves that was killed: its claim, and a heart that stands still."""
    heart = layout.heart(TRAINER, 0)
    with sole_attempt(task(layout, attempt)):
        kept = {path: path.read_bytes() for path in heart.parent.iterdir()}
    for path, content in kept.items():
        path.write_bytes(content)


@pytest.mark.parametrize("second", ["47.0", "45_0.0", "44.3"])
def test_a_second_job_does_nothing_while_the_first_works(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    record = TaskRecord(TaskState.RUNNING, attempt="46.0")
    write_task(layout, TRAINER, 0, record)
    began: list[Task] = []
    for name, value in {"SLURM_JOB_ID": second.partition(".")[0], "SLURM_RESTART_COUNT": second[-1]}.items():
        monkeypatch.setenv(name, value)
    with sole_attempt(task(layout, "46.0")):
        with pytest.raises(UserError) as refused:
            run_task(str(layout.root), TRAINER, 0, Placement(0, 1, 0, second), began.append)
        outcome = main([str(layout.root), TRAINER, "0", "143"])  # of a rank that was ended with the first one
    assert (refused.value.exit_code, outcome, began) == (ExitCode.GIVE_BACK, AttemptOutcome.AGAIN, [])
    assert read_task(layout, TRAINER, 0).attempt == "46.0", "what the first has recorded stays"
    run_task(str(layout.root), TRAINER, 0, Placement(0, 1, 0, second), began.append)
    assert len(began) == 1, "the first has ended"


@pytest.mark.parametrize(
    ("left", "taker", "at_once"),
    [("45.0", "45.1", True), ("45_3.0", "45_3.1", True), ("45.0", "47.0", False), ("1234abcd", "5678abcd", True)],
)
def test_what_a_killed_attempt_held_is_taken_over(
    layout: RunLayout, looks: list[Path], left: str, taker: str, at_once: bool
) -> None:
    """At once by the next attempt of the same job; by another job when the heart has stood still for long enough."""
    abandon(layout, left)
    began = time.monotonic()
    with sole_attempt(task(layout, taker)):
        assert (not looks) == at_once
        assert at_once or time.monotonic() - began >= LIMIT_S


def test_one_that_is_just_ending_is_waited_for(layout: RunLayout) -> None:
    begun, other = Event(), task(layout, "45.0")

    def work() -> None:
        with sole_attempt(other):
            begun.set()
            time.sleep(LIMIT_S / 2)

    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(work)
        assert begun.wait(60)
        with sole_attempt(task(layout, "47.0")):
            assert "45.0" not in {path.read_text() for path in layout.heart(TRAINER, 0).parent.iterdir()}
    ending.result()


def test_one_that_stood_still_before_its_first_beat_is_refused(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as other:

        class Slow(Heart):
            def __enter__(self) -> Heart:
                if self.attempt == "45.0":
                    other.enter_context(sole_attempt(task(layout, "47.0")))
                return super().__enter__()

        monkeypatch.setattr(holding, "Heart", Slow)
        with pytest.raises(UserError) as refused, sole_attempt(task(layout, "45.0")):
            pytest.fail("two work at once")
        assert refused.value.exit_code is ExitCode.GIVE_BACK


def test_the_end_is_written_whatever_ends_the_attempt(layout: RunLayout, looks: list[Path]) -> None:
    with pytest.raises(ValueError, match="ends"), sole_attempt(task(layout, "45.0")):
        raise ValueError("ends")
    with sole_attempt(task(layout, "47.0")):
        assert not looks


@dataclass
class Work:
    """What is at work at a time."""

    now: list[str] = field(default_factory=list)
    most: int = 0
    done: int = 0

    def do(self, one: Task, start: Barrier) -> None:
        start.wait()
        try:
            with sole_attempt(one):
                self.now.append(one.attempt)
                self.most = max(self.most, len(self.now))
                time.sleep(0.05)
                self.now.remove(one.attempt)
                self.done += 1
        except UserError as refused:
            assert refused.exit_code is ExitCode.GIVE_BACK


def test_of_many_that_begin_at_once_never_two_work_together(layout: RunLayout) -> None:
    work, jobs = Work(), 8
    with ThreadPoolExecutor(jobs) as pool:
        for turn in range(5):
            start = Barrier(jobs)
            names = [f"{100 * turn + number + 1}.0" for number in range(jobs)]
            for one in [pool.submit(work.do, task(layout, name), start) for name in names]:
                one.result()
    assert work.most == 1
    assert work.done >= 5, "one of each turn works"
