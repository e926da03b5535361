"""The next weights version is verified while the server samples, and not again when it is loaded."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.inference import Worker
from mrt_hpc.roles.sampling import weights
from mrt_hpc.roles.sampling.round_sampler import Round
from mrt_hpc.roles.sampling.weights import LocalWeights, Prefetch
from mrt_hpc.run.atomic import checksum
from mrt_hpc.run.manifest import DamagedError, verify
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.run.weights import Weights, publish
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.inference.server import VllmServer
    from mrt_hpc.recipe.sections import WeightSwap
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.layout import RunLayout

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
FILES = ("model-1.safetensors", "model-2.safetensors", "model-3.safetensors")


def inference_task(tmp_path: Path, staleness: int) -> Task:
    changes = {
        "schedule.iterations": 3,
        "schedule.iterations_per_job": 3,
        "schedule.max_staleness": staleness,
        "training.keep_weights": staleness + 2,
    }
    recipe = load_recipe(QUICKSTART, tuple(f"{field}={value}" for field, value in changes.items()))
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    publish(layout, 0, fill)
    return load_task(layout, "segment-000.inference", 0, Placement(0, 1, 0, "b"))


def fill(directory: Path) -> None:
    for name in FILES:
        (directory / name).write_text(f"weights of {name}")


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setattr(weights, "LONGEST_LOOK_S", 0.01)
    return inference_task(tmp_path, staleness=1)


class Loads:
    """Stands where a server stands, and notes what it is given to load."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def load_weights(self, directory: Path, version: int, _: WeightSwap) -> None:
        assert directory.is_dir()
        self.loaded.append(version)


def worker_of(task: Task) -> Worker:
    zero = task.layout.weights_version(0)
    return Worker(task, cast("Any", None), None, [], Weights(0, verify(zero).digest, zero))


def a_round(iteration: int, version: int) -> Round:
    return Round(iteration, version, [], cast("Any", None), 0.0)


def verified_ahead(layout: RunLayout, version: int) -> Prefetch:
    """What a round leaves behind during which a version was published."""
    ahead = Prefetch(LocalWeights(layout), newest=version - 1, last=version)
    with ahead.running():
        publish(layout, version, fill)
        wait_until(lambda: ahead.weights(version), reason="the verification", deadline_s=20)
    return ahead


def switched(worker: Worker, version: int) -> list[int]:
    """The versions that a server is given to load for a round with ``version``."""
    server = Loads()
    worker.has_weights(a_round(version, version), cast("VllmServer", server))
    return server.loaded


def test_what_was_verified_while_sampling_is_loaded_without_reading_it_again(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_of(task)
    worker.prefetch = verified_ahead(task.layout, 1)

    def refuse(directory: Path) -> None:
        raise AssertionError(f"{directory} is read again")

    monkeypatch.setattr("mrt_hpc.run.weights_delta.verify", refuse)
    assert switched(worker, 1) == [1]
    assert worker.weights == Weights(1, verify(task.layout.weights_version(1)).digest, task.layout.weights_version(1))


def test_a_round_of_sampling_verifies_what_is_published_meanwhile(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    async def sample(worker: Worker, *_: object) -> None:
        publish(worker.task.layout, 1, fill)
        ahead = worker.prefetch
        assert ahead is not None
        wait_until(lambda: ahead.weights(1), reason="the verification", deadline_s=20)

    monkeypatch.setattr(Worker, "_sample", sample)
    worker = worker_of(task)
    worker.sample(a_round(1, 0), cast("Any", None))
    monkeypatch.setattr("mrt_hpc.run.weights_delta.verify", None)
    assert switched(worker, 1) == [1]


def test_a_file_that_changes_after_it_was_verified_is_found(task: Task) -> None:
    worker = worker_of(task)
    worker.prefetch = verified_ahead(task.layout, 1)
    path = task.layout.weights_version(1)
    with (path / FILES[1]).open("r+b") as file:
        file.write(b"W")
    assert worker.prefetch.weights(1) is None
    assert switched(worker, 1) == []
    assert not path.exists(), "the damaged version is set aside, as without a prefetch"


def test_a_version_that_was_replaced_or_removed_is_not_taken_for_the_one_verified(task: Task) -> None:
    ahead = verified_ahead(task.layout, 1)
    path = task.layout.weights_version(1)
    path.rename(path.with_name("elsewhere"))
    assert ahead.weights(1) is None
    publish(task.layout, 1, fill)
    assert ahead.weights(1) is None
    assert ahead.weights(2) is None, "another version"


def test_nothing_more_is_sampled_with_weights_that_were_set_aside(task: Task) -> None:
    worker = worker_of(task)
    worker.problems = [cast("Any", None)] * 1000
    assert worker._following(frozenset()) is not None
    task.layout.weights_version(0).rename(task.layout.root / "aside")
    assert worker._following(frozenset()) is None
    publish(task.layout, 0, lambda directory: (directory / FILES[0]).write_text("another model") and None)
    assert worker._following(frozenset()) is None, "of the same number, but another"


def test_only_a_newer_version_that_is_still_what_was_verified_is_swapped_in(task: Task) -> None:
    ahead = verified_ahead(task.layout, 1)
    newer = ahead.newer_than(0)
    assert newer is not None
    assert newer.version == 1
    assert ahead.newer_than(1) is None
    (task.layout.weights_version(1) / FILES[0]).write_text("weights of MODEL-1.safetensors")
    assert ahead.newer_than(0) is None


def test_damage_that_is_found_ahead_is_left_to_the_switch(task: Task, caplog: pytest.LogCaptureFixture) -> None:
    publish(task.layout, 1, fill)
    path = task.layout.weights_version(1)
    (path / FILES[2]).write_text("weights of MODEL-3.safetensors")
    ahead = Prefetch(LocalWeights(task.layout), newest=0, last=1)
    with ahead.running():
        wait_until(lambda: "verified again" in caplog.text or None, reason="the warning", deadline_s=20)
    assert ahead.weights(1) is None
    assert path.exists()
    with pytest.raises(DamagedError):
        verify(path)


def test_a_round_that_is_over_waits_for_no_verification(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    read, reading, may_end = [], threading.Event(), threading.Event()

    def slowly(file: Path) -> str:
        read.append(file.name)
        reading.set()
        assert may_end.wait(20)
        return checksum(file)

    monkeypatch.setattr(weights, "checksum", slowly)
    publish(task.layout, 1, fill)
    ahead = Prefetch(LocalWeights(task.layout), newest=0, last=1)
    with ahead.running():
        assert reading.wait(20)
        (thread,) = (one for one in threading.enumerate() if one.name == "prefetch")
    assert thread.is_alive(), "leaving the block has waited for it"
    may_end.set()
    thread.join(20)
    assert not thread.is_alive()
    assert read == [FILES[0]]
    assert ahead.weights(1) is None


@pytest.mark.parametrize(("staleness", "last"), [(1, 2), (0, 0)])
def test_versions_that_nothing_is_sampled_with_are_not_read(tmp_path: Path, staleness: int, last: int) -> None:
    """Version 3 ends the segment; and strictly on-policy no version appears while there is something to sample."""
    worker = worker_of(inference_task(tmp_path, staleness))
    assert worker._last_version(a_round(0, 0)) == last
    before = set(threading.enumerate())
    with Prefetch(worker.local, newest=0, last=last).running():
        assert bool(set(threading.enumerate()) - before) == (staleness > 0)
