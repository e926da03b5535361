"""An inference task puts versions together on its node, ahead where it can, and asks for full ones where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from small_weights import Gathered, publish_delta, publish_full, read_model, tensors

from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.inference import Worker
from mrt_hpc.roles.sampling import weights
from mrt_hpc.roles.sampling.round_sampler import Round
from mrt_hpc.roles.sampling.weights import MARK, PREFIX, LocalWeights, NodeFolder, Prefetch, verified_weights
from mrt_hpc.roles.training.artifacts import Publisher
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.run.weights import CHANGES, Weights, is_delta, published_versions
from mrt_hpc.run.weights_delta import BrokenChainError
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.layout import RunLayout

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
CHANGES_OF_RECIPE = (
    "schedule.iterations=12",
    "schedule.iterations_per_job=12",
    "schedule.max_staleness=1",
    "training.keep_weights=3",
    "training.full_weights_every=8",
)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of the node."""
    (folder := tmp_path / "node").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A run whose trainer has published nothing yet."""
    recipe = load_recipe(QUICKSTART, CHANGES_OF_RECIPE)
    return create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))


def task_of(layout: RunLayout, job: str) -> Task:
    return load_task(layout, f"segment-000.{job}", 0, Placement(0, 1, 0, "b"))


@pytest.fixture
def publisher(layout: RunLayout) -> Publisher:
    return Publisher(task_of(layout, "trainer"), lambda: None)


def publish(publisher: Publisher, *versions: int, in_full: bool = False) -> list[bool]:
    """Publish versions as the trainer does, and return which of them are deltas."""
    for version in versions:
        assert publisher.publish(version, cast("Any", Gathered(tensors(version))), in_full=in_full)
    return [is_delta(publisher.task.layout.weights_version(version)) for version in versions]


@pytest.fixture
def local(layout: RunLayout, node: Path) -> Iterator[LocalWeights]:
    local = LocalWeights(layout)
    with local.open():
        yield local
    assert list(node.iterdir()) == [], "nothing stays on the node"


def holds(weights: Weights, version: int) -> bool:
    found, wanted = read_model(weights.directory), tensors(version)
    return all(np.array_equal(found[name], wanted[name]) for name in wanted)


def folders(node: Path) -> list[str]:
    return sorted(path.name[:7] for path in node.glob(f"{PREFIX}*/v*"))


# -- the trainer


def test_the_trainer_publishes_changes_between_whole_models(publisher: Publisher) -> None:
    assert publish(publisher, *range(1, 13)) == [False, *[True] * 6, False, *[True] * 3, False]


def test_a_trainer_that_has_just_started_publishes_a_whole_model(publisher: Publisher) -> None:
    assert publish(publisher, 1, 2) == [False, True]
    assert publish(Publisher(publisher.task, lambda: None), 3) == [False]


def test_a_version_that_is_asked_for_in_full_is_a_base_like_any_other(publisher: Publisher) -> None:
    publish(publisher, 1, 2)
    publisher.task.set_aside([publisher.task.layout.weights_version(2)], "damaged")
    assert publish(publisher, 2, in_full=True) == [False]
    assert publish(publisher, 3) == [True]


@pytest.mark.parametrize("again", [False, True])
def test_no_delta_is_made_of_a_version_that_is_gone_or_another(publisher: Publisher, again: bool) -> None:
    publish(publisher, 1, 2)
    layout = publisher.task.layout
    publisher.task.set_aside([layout.weights_version(2)], "damaged")
    if again:
        publish_full(layout, 2)
    assert publish(publisher, 3) == [False]


def test_a_pinned_version_is_a_whole_model(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrt_hpc.roles.training.artifacts.pinned_versions", lambda _: {3})
    assert publish(publisher, 1, 2, 3, 4) == [False, True, False, True]


def test_tensors_that_are_stored_under_other_names_are_no_base(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mrt_hpc.roles.training.artifacts.tensor_kinds", lambda _: [])
    assert publish(publisher, 1, 2) == [False, False]
    assert "stored under other names" in caplog.text


def test_a_delta_of_a_superseded_attempt_is_not_committed(publisher: Publisher) -> None:
    publish(publisher, 1)

    def refuse() -> None:
        raise DamagedError("another attempt", where="here")

    publisher.refuse_if_superseded = refuse
    with pytest.raises(DamagedError, match="another attempt"):
        publish(publisher, 2)
    assert published_versions(publisher.task.layout) == [1]


# -- the inference task


def test_versions_are_put_together_one_after_the_other(publisher: Publisher, local: LocalWeights, node: Path) -> None:
    publish(publisher, *range(1, 6))
    layout = publisher.task.layout
    assert local.of(1).directory == layout.weights_version(1)
    assert folders(node) == [], "a whole model is not copied"
    for version in (3, 4, 5):
        weights = local.of(version)
        assert holds(weights, version)
        assert weights.digest == read_manifest(layout.weights_version(version)).digest
        assert local.of(version) == weights
    assert folders(node) == ["v000003", "v000004", "v000005"]


def test_the_versions_before_the_one_served_make_room(publisher: Publisher, local: LocalWeights, node: Path) -> None:
    publish(publisher, *range(1, 7))
    two, three = (local.of(version) for version in (2, 3))
    for served in (two, three):
        local.served(served)
    assert holds(two, 2), "the server may still start with the older one"
    four = local.of(4)
    assert folders(node) == ["v000003", "v000004"]
    local.of(5)
    assert holds(three, 3), "the server starts with it if it dies"
    assert holds(four, 4), "version 4 may be loaded at this moment"
    local.served(four)
    assert holds(local.of(6), 6)
    assert folders(node) == ["v000004", "v000005", "v000006"]


def inodes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in directory.iterdir()}


def test_the_files_of_a_version_that_is_not_needed_are_written_over(publisher: Publisher, local: LocalWeights) -> None:
    publish(publisher, *range(1, 5))
    two, three = (local.of(version) for version in (2, 3))
    before = inodes(two.directory)
    local.served(three)
    assert inodes(local.of(4).directory) == before
    assert not two.directory.exists()


def test_a_damaged_copy_on_the_node_is_made_again(publisher: Publisher, local: LocalWeights, node: Path) -> None:
    publish(publisher, *range(1, 5))
    file = local.of(3).directory / "model-2.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert holds(local.of(4), 4)
    assert folders(node) == ["v000004"]


def test_a_full_disk_of_the_node_leaves_no_part(
    publisher: Publisher, local: LocalWeights, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(publisher, 1, 2)
    kept = "mrt_hpc.roles.sampling.weights.put_together"

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(kept, full)
        with pytest.raises(OSError, match="No space"):
            local.of(2)
    assert [path.name for path in node.glob(f"{PREFIX}*/*")] == [MARK]
    assert holds(local.of(2), 2)


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_a_damaged_link_is_set_aside_with_all_that_follow_and_the_trainer_publishes_in_full(
    publisher: Publisher, local: LocalWeights
) -> None:
    publish(publisher, *range(1, 5))
    layout = publisher.task.layout
    flip(layout.weights_version(3) / CHANGES)
    task = task_of(layout, "inference")
    with pytest.raises(BrokenChainError):
        verified_weights(task, 4, local)
    assert published_versions(layout) == [1, 2]
    assert "version 4 is damaged" in next(layout.set_aside.rglob("REASON")).read_text()
    assert publish(publisher, 4, in_full=True) == [False]
    assert holds(verified_weights(task, 4, local), 4)
    assert publish(publisher, 5) == [True]
    assert holds(verified_weights(task, 5, local), 5)


def test_a_version_that_was_published_again_meanwhile_stays(
    publisher: Publisher, local: LocalWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(publisher, *range(1, 5))
    layout = publisher.task.layout

    def slow(version: int) -> Weights:
        publisher.task.set_aside([layout.weights_version(4)], "by another task")
        publish(publisher, 4, in_full=True)
        raise BrokenChainError(DamagedError("damaged", where="here"), [version, 3])

    monkeypatch.setattr(local, "of", slow)
    with pytest.raises(BrokenChainError):
        verified_weights(task_of(layout, "inference"), 4, local)
    assert published_versions(layout) == [1, 2, 4], "3 was damaged, and the new 4 is another"


def test_evaluations_take_no_delta(publisher: Publisher) -> None:
    publish(publisher, 1, 2)
    with pytest.raises(Exception, match="no whole model"):
        verified_weights(task_of(publisher.task.layout, "inference"), 2)


# -- beside the sampling


class Loads:
    """Stands where a server stands, and notes which tensors it is given to load."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def load_weights(self, directory: Path, version: int, _: object) -> None:
        assert int(read_model(directory)["steps"][0]) == version
        self.loaded.append(version)


def test_a_delta_is_put_together_beside_the_sampling_and_loaded_at_once(
    publisher: Publisher, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "LONGEST_LOOK_S", 0.01)
    layout = publisher.task.layout
    publish(publisher, 1)
    one = layout.weights_version(1)
    worker = Worker(
        task_of(layout, "inference"), cast("Any", None), None, [], Weights(1, read_manifest(one).digest, one)
    )
    server = Loads()
    with worker.local.open():
        for version in (2, 3):
            worker.prefetch = Prefetch(worker.local, newest=version - 1, last=11)
            with worker.prefetch.running():
                publish(publisher, version)
                wait_until(partial(worker.prefetch.weights, version), reason="the version", deadline_s=20)
            assert worker.prefetch.newer_than(version - 1) is not None
            with monkeypatch.context() as patched:
                patched.setattr("mrt_hpc.roles.sampling.weights.put_together", None)
                assert worker.has_weights(Round(version, version, [], cast("Any", None), 0.0), cast("Any", server))
        assert worker._is_loaded(3)
        path = layout.weights_version(3)
        path.rename(path.with_name("aside"))
        assert worker.prefetch.weights(3) is None, "it was set aside by another task"
    assert server.loaded == [2, 3]
    assert list(node.iterdir()) == []


# -- the folder on the node


LEFT = """
import os, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from mrt_hpc.roles.sampling.weights import NodeFolder
(NodeFolder.make().path / "model").write_text("large")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_task_has_left_is_removed_by_the_next_one(node: Path) -> None:
    mine = NodeFolder.make()
    subprocess.run([sys.executable, "-c", LEFT, str(node)], check=False, env=dict(os.environ))
    assert len(left := [path for path in node.iterdir() if path != mine.path]) == 1
    assert (left[0] / "model").exists()
    next_one = NodeFolder.make()
    assert sorted(node.iterdir()) == sorted([mine.path, next_one.path]), "that of the living task stays"
    for folder in (mine, next_one):
        folder.remove()
    assert list(node.iterdir()) == []


def test_helpers_publish_as_the_trainer_does(layout: RunLayout) -> None:
    publish_full(layout, 1)
    publish_delta(layout, 2)
    assert is_delta(layout.weights_version(2))
