"""A live view asks the queue from time to time, and never waits for a later answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from canned_queue import TRAINER, CannedRun, canned_run

from mrt_hpc.run.waiting import wait_until
from mrt_hpc.view.snapshot_reader import ASK_EVERY_S, QueueLooks

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    run = canned_run(tmp_path, monkeypatch)
    run.submitted(trainer="12")
    run.queue("12|PENDING|N/A|Priority|")
    return run


def reason(looks: QueueLooks) -> str:
    return looks.latest().tasks[TRAINER][0].reason


def test_the_queue_is_asked_again_only_when_it_is_due(run: CannedRun) -> None:
    now = 1000.0
    with QueueLooks(run.layout, within_s=60.0, clock=lambda: now) as looks:
        assert reason(looks) == "Priority"
        run.queue("12|PENDING|N/A|Resources|")
        now += ASK_EVERY_S - 1
        assert reason(looks) == "Priority"
        assert run.calls.count("squeue") == 1
        now += 2
        wait_until(lambda: reason(looks) == "Resources", reason="the second answer", deadline_s=60)
        assert run.calls.count("squeue") == 2


def test_a_later_answer_that_does_not_come_holds_nothing_back(run: CannedRun) -> None:
    now = 1000.0
    with QueueLooks(run.layout, within_s=60.0, clock=lambda: now) as looks:
        last = looks.latest()
        assert not last.unreached
        run.command("squeue", "exec sleep 60")
        looks.within_s = 3.0
        now += ASK_EVERY_S + 1
        assert looks.latest() is last, "until the next one comes"
        wait_until(lambda: "Slurm" in looks.latest().unreached, reason="the end of the question", deadline_s=60)
