"""Weights versions that are published as changes: an inference task puts them together and verifies none twice."""

import queue
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from basics import INFERENCE, TRAINER
from commands import python
from run_of import run_of, task_of
from small_weights import Gathered, publish_full, read_model, tensors

from mrt_hpc.errors import UserError
from mrt_hpc.roles.inference import Worker
from mrt_hpc.roles.sampling import weights_on_node
from mrt_hpc.roles.sampling.round_sampler import Round
from mrt_hpc.roles.sampling.weights_on_node import MARK, PREFIX, LocalWeights, NodeFolder, Prefetch, verified_weights
from mrt_hpc.roles.training import artifacts
from mrt_hpc.roles.training.artifacts import Publisher
from mrt_hpc.run import weights_delta
from mrt_hpc.run.atomic import checksum
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import DamagedError, read_manifest, verify
from mrt_hpc.run.retries import wait_until
from mrt_hpc.run.weights import CHANGES, Weights, is_delta, published_versions
from mrt_hpc.run.weights_delta import BrokenChainError

SEGMENT = ("schedule.iterations=12", "schedule.iterations_per_job=12", "training.keep_weights=3")
FILE = "model-2.safetensors"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder := tmp_path / "node").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    monkeypatch.setattr(weights_on_node, "LONGEST_LOOK_S", 0.01)
    return run_of(tmp_path / "run", *SEGMENT, "schedule.max_staleness=1", "training.full_weights_every=8")


@pytest.fixture
def publisher(layout: RunLayout) -> Publisher:
    return Publisher(task_of(layout, TRAINER), lambda: None)


def publish(publisher: Publisher, *versions: int, in_full: bool = False) -> list[bool]:
    """Publish versions as the trainer does, and return which of them are deltas."""
    for version in versions:
        assert publisher.publish(version, cast("Any", Gathered(tensors(version))), in_full=in_full)
    return [is_delta(publisher.task.layout.weights_version(version)) for version in versions]


def lose(publisher: Publisher, version: int) -> None:
    publisher.task.set_aside([publisher.task.layout.weights_version(version)], "damaged")


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def failing(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_changes_are_published_between_whole_models(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "pinned_versions", lambda _: {5})
    assert publish(publisher, *range(1, 11)) == [False, *[True] * 3, False, *[True] * 2, False, *[True] * 2]
    again = Publisher(publisher.task, lambda: None)
    assert publish(again, 11, 12) == [False, False], "the first of a trainer, and the last of the segment"


@pytest.mark.parametrize("other", [False, True])
def test_no_delta_of_a_base_gone_or_another(publisher: Publisher, monkeypatch: pytest.MonkeyPatch, other: bool) -> None:
    publish(publisher, 1, 2)
    lose(publisher, 2)
    if other:
        publish_full(publisher.task.layout, 2)
    assert publish(publisher, 3) == [False]
    lose(publisher, 3)
    assert publish(publisher, 3, in_full=True) == [False]
    assert publish(publisher, 4) == [True], "one that is asked for in full is a base like any other"
    monkeypatch.setattr(artifacts, "tensor_kinds", lambda _: [])
    assert publish(Publisher(publisher.task, lambda: None), 5, 6) == [False, False]


@pytest.fixture
def local(layout: RunLayout, node: Path) -> Iterator[LocalWeights]:
    local = LocalWeights(layout)
    with local.open():
        yield local
    assert list(node.iterdir()) == [], "nothing stays on the node"


def holds(weights: Weights, version: int) -> bool:
    found, wanted = read_model(weights.directory), tensors(version)
    return all(np.array_equal(found[name], wanted[name]) for name in wanted)


def versions_on(node: Path) -> list[int]:
    return sorted(int(path.name[1:7]) for path in node.glob(f"{PREFIX}*/v*"))


def test_versions_are_put_together_and_make_room(publisher: Publisher, local: LocalWeights, node: Path) -> None:
    publish(publisher, *range(1, 7))
    layout = publisher.task.layout
    assert local.of(1).directory == layout.weights_version(1)
    assert versions_on(node) == [], "a whole model is not copied"
    two, three = (local.of(version) for version in (2, 3))
    assert (three.digest, local.of(3)) == (read_manifest(layout.weights_version(3)).digest, three)
    files = [path.stat().st_ino for path in sorted(two.directory.iterdir())]
    for served in (two, three):
        local.note_served(served)
    assert holds(two, 2), "the server may still start with the older one"
    four = local.of(4)
    assert versions_on(node) == [3, 4]
    assert [path.stat().st_ino for path in sorted(four.directory.iterdir())] == files, "they are written over"
    local.of(5)
    assert holds(three, 3), "the server starts with it if it dies"
    assert holds(four, 4), "version 4 may be loaded at this moment"
    local.note_served(four)
    assert holds(local.of(6), 6)
    assert versions_on(node) == [4, 5, 6]


def test_a_damaged_copy_on_the_node_is_made_again(publisher: Publisher, local: LocalWeights, node: Path) -> None:
    publish(publisher, *range(1, 5))
    flip(local.of(3).directory / FILE)
    assert holds(local.of(4), 4)
    assert versions_on(node) == [4]


def test_a_full_disk_of_the_node_leaves_no_part(
    publisher: Publisher, local: LocalWeights, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(publisher, 1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(weights_on_node, "put_together", failing(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            local.of(2)
    assert [path.name for path in node.glob(f"{PREFIX}*/*")] == [MARK]
    assert holds(local.of(2), 2)


def test_a_damaged_link_is_set_aside_with_all_that_follow(publisher: Publisher, local: LocalWeights) -> None:
    publish(publisher, *range(1, 5))
    layout, task = publisher.task.layout, task_of(publisher.task.layout, INFERENCE)
    flip(layout.weights_version(3) / CHANGES)
    with pytest.raises(BrokenChainError):
        verified_weights(task, 4, local)
    assert published_versions(layout) == [1, 2]
    assert publish(publisher, 4, in_full=True) == [False]
    assert holds(verified_weights(task, 4, local), 4)
    assert publish(publisher, 5) == [True]
    assert holds(verified_weights(task, 5, local), 5)
    with pytest.raises(UserError, match="no whole model"):
        verified_weights(task, 5)  # as evaluations ask


def test_one_published_again_stays(publisher: Publisher, local: LocalWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(publisher, *range(1, 5))

    def slow(version: int) -> Weights:
        lose(publisher, 4)
        publish(publisher, 4, in_full=True)
        raise BrokenChainError(DamagedError("damaged", where="here"), [version, 3])

    monkeypatch.setattr(local, "of", slow)
    with pytest.raises(BrokenChainError):
        verified_weights(task_of(publisher.task.layout, INFERENCE), 4, local)
    assert published_versions(publisher.task.layout) == [1, 2, 4], "3 was damaged, and the new 4 is another"


LEFT = """
import os, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from mrt_hpc.roles.sampling.weights_on_node import NodeFolder
(NodeFolder.make().path / "model").write_text("large")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_task_has_left_is_removed_by_the_next_one(node: Path) -> None:
    mine = NodeFolder.make()
    python("-c", LEFT, node, exits=-signal.SIGKILL)
    (left,) = (path for path in node.iterdir() if path != mine.path)
    assert (left / "model").exists()
    next_one = NodeFolder.make()
    assert sorted(node.iterdir()) == sorted([mine.path, next_one.path]), "that of the living task stays"
    for folder in (mine, next_one):
        folder.remove()
    assert list(node.iterdir()) == []


@pytest.fixture
def worker(layout: RunLayout) -> Worker:
    publish_full(layout, 0)
    zero = layout.weights_version(0)
    return Worker(task_of(layout, INFERENCE), cast("Any", None), None, [], Weights(0, verify(zero).digest, zero))


def a_round(iteration: int, version: int) -> Round:
    return Round(iteration, version, [], cast("Any", None), 0.0)


def verified_ahead(worker: Worker, publisher: Publisher, version: int) -> Prefetch:
    """Take over what a round leaves behind during which a version was published."""
    ahead = worker.prefetch = Prefetch(worker.local, newest=version - 1, last=11)
    with ahead.watch_versions():
        publish(publisher, version)
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


def test_none_is_read_twice(worker: Worker, publisher: Publisher, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with worker.local.open():
        for version in (1, 2, 3):
            ahead = verified_ahead(worker, publisher, version)
            newer = ahead.newer_than(version - 1)
            assert (newer and newer.version, ahead.newer_than(version)) == (version, None)
            with monkeypatch.context() as patched:
                patched.setattr(weights_on_node, "put_together", None)
                patched.setattr(weights_delta, "verify", None)
                assert switched(worker, version) == [version]
        assert worker._is_loaded(3)
        path = worker.task.layout.weights_version(3)
        path.rename(path.with_name("aside"))
        assert ahead.weights(3) is None, "it was set aside by another task"
    assert list(node.iterdir()) == []


def test_a_round_verifies_what_appears(worker: Worker, publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    async def sample(worker: Worker, *_: object) -> None:
        publish(publisher, 1)
        ahead = worker.prefetch
        assert ahead is not None
        wait_until(lambda: ahead.weights(1), reason="the verification", deadline_s=20)

    monkeypatch.setattr(Worker, "_sample", sample)
    worker.sample(a_round(1, 0), cast("Any", None))
    monkeypatch.setattr(weights_delta, "verify", None)
    assert switched(worker, 1) == [1]
    one = worker.task.layout.weights_version(1)
    assert worker.weights == Weights(1, verify(one).digest, one)


def test_a_version_that_changes_or_goes_is_not_the_one_verified(worker: Worker, publisher: Publisher) -> None:
    ahead = verified_ahead(worker, publisher, 1)
    path = worker.task.layout.weights_version(1)
    assert ahead.weights(2) is None, "another version"
    flip(path / FILE)
    assert (ahead.weights(1), ahead.newer_than(0)) == (None, None)
    assert switched(worker, 1) == []
    assert not path.exists(), "the damaged version is set aside, as without a prefetch"
    assert ahead.weights(1) is None
    publish_full(publisher.task.layout, 1)
    assert ahead.weights(1) is None


def test_nothing_more_is_sampled_with_weights_that_were_set_aside(worker: Worker, publisher: Publisher) -> None:
    worker.problems = [cast("Any", None)] * 1000
    assert worker._round_to_follow(frozenset()) is not None
    lose(publisher, 0)
    assert worker._round_to_follow(frozenset()) is None
    assert publisher.publish(0, cast("Any", Gathered(tensors(7))))
    assert worker._round_to_follow(frozenset()) is None, "of the same number, but another"


def test_damage_that_is_found_ahead_is_left_to_the_switch(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    publish_full(worker.task.layout, 1)
    flip((path := worker.task.layout.weights_version(1)) / FILE)
    ahead = Prefetch(worker.local, newest=0, last=1)
    with ahead.watch_versions():
        wait_until(lambda: "verified again" in caplog.text or None, reason="the warning", deadline_s=20)
    assert ahead.weights(1) is None
    assert path.exists()


def test_a_round_that_is_over_waits_for_no_verification(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    read, may_end = queue.Queue[Path](), threading.Event()
    monkeypatch.setattr(weights_on_node, "checksum", lambda f: (read.put(f), may_end.wait(20), checksum(f))[-1])
    publish_full(worker.task.layout, 1)
    ahead = Prefetch(worker.local, newest=0, last=1)
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
    with Prefetch(worker.local, newest=0, last=last).watch_versions():
        assert bool(set(threading.enumerate()) - before) == (staleness > 0)
