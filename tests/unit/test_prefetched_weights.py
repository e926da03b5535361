"""An inference task verifies the next weights version while it samples, and verifies none twice."""

import queue
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from basics import INFERENCE
from run_of import run_of, task_of
from small_weights import FILE, publish_whole, read_model

from mrt_hpc.roles.inference import Worker
from mrt_hpc.roles.sampling import verified_weights
from mrt_hpc.roles.sampling.round_sampler import Round
from mrt_hpc.roles.sampling.verified_weights import Prefetch
from mrt_hpc.run.atomic import checksum
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import verify
from mrt_hpc.run.retries import wait_until
from mrt_hpc.run.weights import Weights

SEGMENT = ("schedule.iterations=12", "schedule.iterations_per_job=12", "training.keep_weights=3")


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    monkeypatch.setattr(verified_weights, "LONGEST_LOOK_S", 0.01)
    return run_of(tmp_path / "run", *SEGMENT, "schedule.max_staleness=1")


@pytest.fixture
def worker(layout: RunLayout) -> Worker:
    publish_whole(layout, 0)
    zero = layout.weights_version(0)
    return Worker(task_of(layout, INFERENCE), cast("Any", None), None, [], Weights(0, verify(zero).digest, zero))


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def a_round(iteration: int, version: int) -> Round:
    return Round(iteration, version, [], cast("Any", None), 0.0)


def verified_ahead(worker: Worker, version: int) -> Prefetch:
    """Take over what a round leaves behind during which a version was published."""
    ahead = worker.prefetch = Prefetch(worker.task.layout, newest=version - 1, last=11)
    with ahead.watch_versions():
        publish_whole(worker.task.layout, version)
        wait_until(lambda: ahead.weights(version), reason="the verification", deadline_s=20)
    return ahead


def switched(worker: Worker, version: int) -> list[int]:
    loaded: list[int] = []

    class Loads:
        def load_weights(self, directory: Path, version: int, _: object) -> None:
            assert int(read_model(directory)["steps"][0]) == version
            loaded.append(version)

    worker.has_weights(a_round(version, version), cast("Any", Loads()))
    return loaded


def test_none_is_read_twice(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in (1, 2, 3):
        ahead = verified_ahead(worker, version)
        newer = ahead.newer_than(version - 1)
        assert (newer and newer.version, ahead.newer_than(version)) == (version, None)
        with monkeypatch.context() as patched:
            patched.setattr(verified_weights, "verify", None)
            assert switched(worker, version) == [version]
    assert worker._is_loaded(3)
    path = worker.task.layout.weights_version(3)
    path.rename(path.with_name("aside"))
    assert ahead.weights(3) is None, "it was set aside by another task"


def test_a_round_verifies_what_appears(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def sample(worker: Worker, *_: object) -> None:
        publish_whole(worker.task.layout, 1)
        ahead = worker.prefetch
        assert ahead is not None
        wait_until(lambda: ahead.weights(1), reason="the verification", deadline_s=20)

    monkeypatch.setattr(Worker, "_sample", sample)
    worker.sample(a_round(1, 0), cast("Any", None))
    monkeypatch.setattr(verified_weights, "verify", None)
    assert switched(worker, 1) == [1]
    one = worker.task.layout.weights_version(1)
    assert worker.weights == Weights(1, verify(one).digest, one)


def test_a_version_that_changes_or_goes_is_not_the_one_verified(worker: Worker) -> None:
    ahead = verified_ahead(worker, 1)
    path = worker.task.layout.weights_version(1)
    assert ahead.weights(2) is None, "another version"
    flip(path / FILE)
    assert (ahead.weights(1), ahead.newer_than(0)) == (None, None)
    assert switched(worker, 1) == []
    assert not path.exists(), "the damaged version is set aside, as without a prefetch"
    assert ahead.weights(1) is None
    publish_whole(worker.task.layout, 1)
    assert ahead.weights(1) is None


def test_nothing_more_is_sampled_with_weights_that_were_set_aside(worker: Worker) -> None:
    worker.problems = [cast("Any", None)] * 1000
    assert worker._round_to_follow(frozenset()) is not None
    worker.task.set_aside([worker.task.layout.weights_version(0)], "damaged")
    assert worker._round_to_follow(frozenset()) is None
    publish_whole(worker.task.layout, 0, values=7)
    assert worker._round_to_follow(frozenset()) is None, "of the same number, but another"


def test_damage_that_is_found_ahead_is_left_to_the_switch(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    publish_whole(worker.task.layout, 1)
    flip((path := worker.task.layout.weights_version(1)) / FILE)
    ahead = Prefetch(worker.task.layout, newest=0, last=1)
    with ahead.watch_versions():
        wait_until(lambda: "verified again" in caplog.text or None, reason="the warning", deadline_s=20)
    assert ahead.weights(1) is None
    assert path.exists()


def test_a_round_that_is_over_waits_for_no_verification(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    read, may_end = queue.Queue[Path](), threading.Event()
    monkeypatch.setattr(verified_weights, "checksum", lambda f: (read.put(f), may_end.wait(20), checksum(f))[-1])
    publish_whole(worker.task.layout, 1)
    ahead = Prefetch(worker.task.layout, newest=0, last=1)
    with ahead.watch_versions():
        read.get(timeout=20)
        (thread,) = (one for one in threading.enumerate() if one.name == "prefetch")
    assert thread.is_alive(), "leaving the block has not waited for it"
    may_end.set()
    thread.join(20)
    assert (thread.is_alive(), read.empty(), ahead.weights(1)) == (False, True, None), "it reads no further file"


@pytest.mark.parametrize(("staleness", "last"), [(1, 11), (0, 0)])
def test_versions_that_nothing_is_sampled_with_are_not_read(tmp_path: Path, staleness: int, last: int) -> None:
    """Version 12 ends the segment; and strictly on-policy no version appears while there is something to sample."""
    layout = run_of(tmp_path / "run", *SEGMENT, f"schedule.max_staleness={staleness}")
    worker = Worker(task_of(layout, INFERENCE), cast("Any", None), None, [], Weights(0, "", tmp_path))
    assert worker._last_version(a_round(0, 0)) == last
    before = set(threading.enumerate())
    with Prefetch(worker.task.layout, newest=0, last=last).watch_versions():
        assert bool(set(threading.enumerate()) - before) == (staleness > 0)
