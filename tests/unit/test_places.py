"""A whole directory in another place is not taken: readers compare run, iteration, position, number and problem."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import samples
from basics import INFERENCE, TRAINER
from commands import refusal
from run_of import publish_some, run_of, task_of
from samples import draw_problems

from mrt_hpc.roles.sampling.collected import Collection
from mrt_hpc.roles.sampling.verified_weights import verified_weights
from mrt_hpc.roles.stored_parts import StoredSamples
from mrt_hpc.roles.training.iteration_data import RolloutReader
from mrt_hpc.run.archive import archive_groups, read_sampled
from mrt_hpc.run.groups import Sampled, commit_group
from mrt_hpc.run.layout import COLLECTION, RunLayout
from mrt_hpc.run.manifest import DamagedError, commit_whole, verify
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.weights import publish

SEED, GROUPS, SIZE = 3, 3, 2
WANTED = f"sampling.problems_per_iteration={GROUPS}", f"sampling.rollouts_per_problem={SIZE}"
ANOTHER_PLACE = "belongs to another place"


def run_at(root: Path) -> RunLayout:
    layout = run_of(root, f"seed={SEED}", "schedule.iterations=2", *WANTED, "data.problems=32")
    for iteration in range(2):
        for position, problem in enumerate(draw_problems(read_problems(layout.train_data), SEED, iteration, GROUPS)):
            commit_group(layout.group(iteration, position), sampled(iteration, problem.id))
    return layout


def sampled(iteration: int, problem: str, numbers: Sequence[int] = range(SIZE)) -> Sampled:
    return samples.sampled(*(replace(samples.rollout(problem, n), iteration=iteration) for n in numbers))


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return run_at(tmp_path / "run")


def is_complete(layout: RunLayout) -> bool:
    """Whether the trainer finds all groups of iteration 0; it sets damaged ones aside, to be sampled again."""
    return RolloutReader(task_of(layout, TRAINER), 0).is_complete()


def put(source: Path, path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(source, path)


@pytest.mark.parametrize("other", ["position", "iteration", "run"])
@pytest.mark.parametrize("archived", [False, True])
def test_a_group_of_another_place_is_set_aside_and_sampled_again(layout: RunLayout, other: str, archived: bool) -> None:
    assert is_complete(layout)
    places = {"position": layout.group(0, 0), "iteration": layout.group(1, 1)}
    put(places.get(other) or run_at(layout.root.with_name("other")).group(0, 1), layout.group(0, 1))
    if archived:
        archive_groups(layout, 0, GROUPS)
    else:
        with pytest.raises(DamagedError, match=ANOTHER_PLACE) as damage:
            read_sampled(layout, 0, 1)
        assert "iterations/000000/groups/00001" in str(damage.value.expected)
    assert not is_complete(layout)
    assert sorted(path.name for path in layout.groups(0).iterdir()) == ["00000", "00002"]
    assert archived or ANOTHER_PLACE in next(layout.set_aside.glob("*/REASON")).read_text()


def test_a_group_of_another_problem_or_position_than_the_drawn_ones_is_set_aside(layout: RunLayout) -> None:
    commit_group(layout.group(0, GROUPS), sampled(0, "more"))
    assert is_complete(layout)
    assert not layout.group(0, GROUPS).exists()
    shutil.rmtree(layout.group(0, 1))
    commit_group(layout.group(0, 1), sampled(0, "of-nowhere"))
    assert not is_complete(layout)
    assert any("of-nowhere" in reason.read_text() for reason in layout.set_aside.glob("*/REASON"))


@pytest.mark.parametrize("numbers", [(), (0,), (0, 0), (0, 2), (0, 1, 1), (0, 1, 2)])
def test_a_group_of_other_samples_than_the_wanted_is_set_aside(layout: RunLayout, numbers: tuple[int, ...]) -> None:
    problem = read_sampled(layout, 0, 1).rollouts[0].problem_id
    shutil.rmtree(layout.group(0, 1))
    commit_group(layout.group(0, 1), sampled(0, problem, numbers))
    assert not is_complete(layout)
    assert not layout.group(0, 1).exists()


def test_collected_groups_of_other_problems_are_set_aside_at_once(layout: RunLayout) -> None:
    collection, positions = Collection(task_of(layout, TRAINER), 0), range(len(read_problems(layout.train_data)))
    for read in (lambda: collection.group(0), lambda: next(iter(collection.groups()))):
        for position in positions:
            if not layout.group(COLLECTION, position).exists():
                commit_group(layout.group(COLLECTION, position), sampled(COLLECTION, "of-nowhere"))
        with pytest.raises(DamagedError, match="of-nowhere"):
            read()
        assert not layout.group(COLLECTION, 0).exists()
    assert not [position for position in positions if layout.group(COLLECTION, position).exists()]


def test_weights_of_another_run_or_version_are_set_aside(layout: RunLayout) -> None:
    sampler, other = task_of(layout, INFERENCE), run_at(layout.root.with_name("other"))
    publish_some(layout, 0, 1, 2)
    for version in (0, 1):
        publish(other, version, lambda directory: (directory / "model.safetensors").write_text("other") and None)
    assert verified_weights(sampler, 1).digest == verify(layout.weights_version(1)).digest
    put(other.weights_version(1), layout.weights_version(1))
    put(layout.weights_version(0), layout.weights_version(2))
    for version in (1, 2):
        with pytest.raises(DamagedError, match=ANOTHER_PLACE):
            verified_weights(sampler, version)
        assert not layout.weights_version(version).exists(), "to be published again"
    put(other.weights_version(0), layout.weights_version(0))
    assert ANOTHER_PLACE in str(refusal(verified_weights, sampler, 0))
    shutil.copytree(other.weights_version(1), layout.root / "model")
    assert verify(layout.root / "model", anywhere=True).about["version"] == 1, "one run takes over from another"


@pytest.mark.parametrize("written", ["", "another-name"])
def test_a_damaged_name_of_the_run_makes_no_part_of_it_damaged(layout: RunLayout, written: str) -> None:
    sampler, name = task_of(layout, INFERENCE), layout.identity.read_text()
    publish_some(layout, 0, 1)
    layout.identity.write_text(written)
    for version in (0, 1):
        refused = refusal(verified_weights, sampler, version)
        assert not isinstance(refused, DamagedError)
        assert refused.where == layout.identity
    assert not layout.set_aside.exists()
    subprocess.run(["bash", "-c", str(refused.advice).partition(",")[0]], check=True)
    assert layout.identity.read_text().strip() == name.strip()
    assert verified_weights(sampler, 1).version == 1


def test_stored_samples_of_another_problem_are_damaged(tmp_path: Path) -> None:
    fingerprint: Any = SimpleNamespace(digest="f" * 64, model_dump=lambda mode: {"mode": mode})
    store = StoredSamples.of(tmp_path, fingerprint)
    for position in range(2):
        store.commit(position, range(SIZE), sampled(0, f"p{position}"), "0" * 64)
    mine, other = store.batches(0)[0], store.batches(1)[0]
    assert store.read(mine, [0], "p0").rollouts[0].problem_id == "p0"
    put(other.path, mine.path)
    with pytest.raises(DamagedError, match=ANOTHER_PLACE):
        store.read(mine, [0], "p0")


def test_a_run_that_is_moved_or_copied_or_has_no_name_is_not_damaged(layout: RunLayout, tmp_path: Path) -> None:
    moved = RunLayout(layout.root.rename(tmp_path / "moved"))
    assert is_complete(moved)
    layout = RunLayout(shutil.copytree(moved.root, tmp_path / "copy"))
    name = layout.identity.read_text()
    layout.identity.unlink()
    refused = refusal(is_complete, layout)
    assert not isinstance(refused, DamagedError)
    assert layout.group(0, 0).exists()
    assert name.strip() in str(refused.advice)
    layout.identity.write_text(name)
    assert is_complete(layout)
    commit_whole(tmp_path / "alone", lambda directory: (directory / "w").write_text("w") and None)
    assert verify(tmp_path / "alone").about["place"] == [], "a directory outside any run belongs to none"


@pytest.mark.parametrize("name", ["MANIFEST.json", "run_id"])
def test_what_is_no_file_is_no_manifest_and_no_name(layout: RunLayout, name: str) -> None:
    path = layout.identity if name == "run_id" else layout.group(0, 1) / name
    path.unlink()
    path.symlink_to(path.name)
    assert "circle" in str(refusal(read_sampled, layout, 0, 1))
