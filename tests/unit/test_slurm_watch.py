"""A task knows soon when the jobs that it waits for have left the queue for good, and believes no listing too early."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from slurm_texts import squeue_prints

from mrt_hpc.attempt.entry import record_after
from mrt_hpc.attempt.ledger import record_submission
from mrt_hpc.backends.slurm.task import ASK_EVERY_S, QueueWatch
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.compile import build_plan
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.task import peers as peers_module
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.events import EventLog
from mrt_hpc.run.heartbeats import Observer
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
TRAINER, INFERENCE = "segment-000.trainer", "segment-000.inference"
OWN, PARTNER, NEWER = "7", "12", "13"


@dataclass
class Cluster:
    """A run with a watching task 7 and a partner 12, and a squeue that prints what a file holds."""

    folder: Path
    layout: RunLayout
    now: float = 1000.0

    def queue(self, *ids: str, code: int = 0) -> None:
        lines = ["#!/bin/sh", f"echo '{squeue_prints(*ids)}'", f"echo x >> {self.asked}", f"exit {code}"]
        (self.folder / "squeue").write_text("\n".join(lines))
        (self.folder / "squeue").chmod(0o755)

    @property
    def asked(self) -> Path:
        return self.folder / "asked"

    def watch(self) -> QueueWatch:
        return QueueWatch(self.layout, OWN, lambda: self.now)

    def told(self, watch: QueueWatch, looks: int, pause_s: float = ASK_EVERY_S) -> bool:
        """What is told at the last of so many looks."""
        told = False
        for _ in range(looks):
            told = watch((TRAINER,))
            self.now += pause_s
        return told


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    layout = RunLayout(tmp_path / "run")
    layout.jobs.mkdir(parents=True)
    record_submission(layout, TRAINER, PARTNER, "site")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Cluster(tmp_path, layout)


def test_a_job_that_two_listings_lack_is_gone(cluster: Cluster) -> None:
    cluster.queue(OWN)
    watch = cluster.watch()
    assert not cluster.told(watch, 1)
    assert cluster.told(watch, 1)


def test_squeue_is_asked_at_a_slow_pace(cluster: Cluster) -> None:
    cluster.queue(OWN)
    assert not cluster.told(cluster.watch(), 29, pause_s=1.0)
    assert cluster.asked.read_text().split() == ["x"]


@pytest.mark.parametrize("queue", [(OWN, PARTNER), (PARTNER,), (), ("9",)], ids=["queued", "hidden", "empty", "others"])
def test_a_queued_job_and_a_listing_without_the_asking_task_prove_nothing(
    cluster: Cluster, queue: tuple[str, ...]
) -> None:
    cluster.queue(*queue)
    assert not cluster.told(cluster.watch(), 5)


def test_errors_are_waited_out(cluster: Cluster) -> None:
    cluster.queue(OWN)
    watch = cluster.watch()
    cluster.told(watch, 1)
    cluster.queue(OWN, code=1)
    assert not cluster.told(watch, 3)
    cluster.queue(OWN)
    assert cluster.told(watch, 2)


def test_an_earlier_wait_says_nothing_about_this_one(cluster: Cluster) -> None:
    cluster.queue(OWN)
    watch = cluster.watch()
    cluster.told(watch, 1)
    cluster.now += 100 * ASK_EVERY_S
    assert not cluster.told(watch, 1)
    assert cluster.told(watch, 1)


def test_a_job_that_was_submitted_again_or_never_is_not_gone(cluster: Cluster) -> None:
    record_submission(cluster.layout, TRAINER, NEWER, "site")
    cluster.queue(OWN, NEWER)
    assert not cluster.told(cluster.watch(), 3)
    other = Cluster(cluster.folder, RunLayout(cluster.folder / "other"))
    other.layout.jobs.mkdir(parents=True)
    assert not other.told(other.watch(), 3)


def test_inference_ends_when_its_trainer_has_left_the_queue(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "LOOK_EVERY_S", 0.0)
    recipe = load_recipe(QUICKSTART)
    plan = build_plan(recipe, max_array_size=None)
    write_task(cluster.layout, TRAINER, 0, TaskRecord(TaskState.STOPPED, attempt="12.0"))
    cluster.queue(OWN)
    task = Task(
        layout=cluster.layout, experiment=recipe, plan=plan, job=plan.job(INFERENCE), index=0, rank=0, world_size=1,
        local_rank=0, attempt="7.0", events=EventLog(cluster.folder / "events.jsonl"), observer=Observer(60.0),
        gone=cluster.watch(),
    )  # fmt: skip
    wait = task.peer_wait("weights", task.peers(Role.TRAINER))
    wait.check()
    cluster.now += ASK_EVERY_S
    with pytest.raises(UserError, match=f"{TRAINER} has left the queue and will not start again") as caught:
        wait.check()
    assert caught.value.exit_code is ExitCode.FATAL
    after = record_after(task, caught.value, TaskRecord(TaskState.RUNNING, attempt="7.0"))
    assert (after.state, after.awaited) == (TaskState.FAILED, (TRAINER,))
