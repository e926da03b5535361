"""A whole directory in another place is not taken: readers compare run, iteration, position, number and problem."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.sampling.collected import Collection
from mrt_hpc.roles.sampling.parts import Parts
from mrt_hpc.roles.sampling.weights import verified_weights
from mrt_hpc.roles.training.iteration_data import RolloutReader
from mrt_hpc.run.archive import archive_groups, read_sampled
from mrt_hpc.run.data import draw_problems, read_problems
from mrt_hpc.run.evaluation_settings import EvaluationSettings, RecordedSettings
from mrt_hpc.run.groups import Sampled, commit_group
from mrt_hpc.run.layout import COLLECTION, RunLayout
from mrt_hpc.run.manifest import DamagedError, commit_whole, verify
from mrt_hpc.run.records import FinishReason, GroupStatistics, Rollout
from mrt_hpc.run.results import StoredSamples
from mrt_hpc.run.weights import publish
from mrt_hpc.submit.create import create_or_open

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
GROUPS = 3
OTHERS = ["position", "iteration", "run"]


def run_at(root: Path) -> RunLayout:
    """A run with the groups of two iterations, as its seed draws them."""
    recipe = load_recipe(QUICKSTART, ["schedule.iterations=2", f"sampling.problems_per_iteration={GROUPS}"])
    layout = create_or_open(root, recipe, compile_plan(recipe, LocalSite()))
    for iteration in range(2):
        drawn = draw_problems(read_problems(layout.train_data), recipe.seed, iteration, GROUPS)
        for position, problem in enumerate(drawn):
            commit_group(layout.group(iteration, position), sampled(iteration, problem.id))
    return layout


def sampled(iteration: int, problem: str) -> Sampled:
    rollout = Rollout(
        iteration=iteration, problem_id=problem, sample=0, seed=1, weights_version=0, prompt_ids=[1], forced=0,
        token_ids=[2], logprobs=[-0.5], finish_reason=FinishReason.STOP, text="7", answer="7", reward=1.0,
        boundaries=[0, 1], started=0.0, seconds=1.0,
    )  # fmt: skip
    return Sampled(rollouts=[rollout], statistics=GroupStatistics(1, 0, 1, 0, 0, 0, 1, {"generation": 2.0}))


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return run_at(tmp_path / "run")


def another(layout: RunLayout, other: str) -> Path:
    """A whole group of another place than position 1 of iteration 0."""
    places = {"position": layout.group(0, 0), "iteration": layout.group(1, 1)}
    return places[other] if other in places else run_at(layout.root.with_name("other")).group(0, 1)


def put(source: Path, path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(source, path)


def reader(layout: RunLayout) -> RolloutReader:
    return RolloutReader(load_task(layout, "segment-000.trainer", 0, Placement(0, 1, 0, "b")), 0)


@pytest.mark.parametrize("other", OTHERS)
def test_a_group_of_another_place_is_set_aside_and_sampled_again(layout: RunLayout, other: str) -> None:
    assert reader(layout).is_complete()
    put(another(layout, other), layout.group(0, 1))
    with pytest.raises(DamagedError, match="belongs to another place") as damage:
        read_sampled(layout, 0, 1)
    assert "iterations/000000/groups/00001" in str(damage.value.expected)
    assert not reader(layout).is_complete()
    assert not layout.group(0, 1).exists(), "to be sampled again"
    assert "belongs to another place" in next(layout.set_aside.glob("*/REASON")).read_text()
    assert layout.group(0, 0).exists()


@pytest.mark.parametrize("other", OTHERS)
def test_a_group_of_another_place_in_an_archive_is_set_aside_and_the_others_stay(layout: RunLayout, other: str) -> None:
    put(another(layout, other), layout.group(0, 1))
    archive_groups(layout, 0, GROUPS)
    assert not reader(layout).is_complete()
    assert sorted(path.name for path in layout.groups(0).iterdir()) == ["00000", "00002"]


def test_a_group_of_another_problem_than_the_drawn_one_is_set_aside(layout: RunLayout) -> None:
    shutil.rmtree(layout.group(0, 1))
    commit_group(layout.group(0, 1), sampled(0, "of-nowhere"))
    assert not reader(layout).is_complete()
    assert "the group is of problem of-nowhere" in next(layout.set_aside.glob("*/REASON")).read_text()


def test_a_group_of_a_position_that_is_not_drawn_is_set_aside(layout: RunLayout) -> None:
    commit_group(layout.group(0, GROUPS), sampled(0, "more"))
    assert reader(layout).is_complete()
    assert not layout.group(0, GROUPS).exists()


def test_a_collected_group_of_another_problem_is_set_aside(layout: RunLayout) -> None:
    commit_group(layout.group(COLLECTION, 0), sampled(COLLECTION, "of-nowhere"))
    with pytest.raises(DamagedError, match="of-nowhere"):
        Collection(load_task(layout, "segment-000.trainer", 0, Placement(0, 1, 0, "b")), 0).group(0)
    assert not layout.group(COLLECTION, 0).exists()


def test_all_collected_groups_of_other_problems_are_set_aside_at_once(layout: RunLayout) -> None:
    collection = Collection(load_task(layout, "segment-000.trainer", 0, Placement(0, 1, 0, "b")), 0)
    positions = range(len(read_problems(layout.train_data)))
    for position in positions:
        commit_group(layout.group(COLLECTION, position), sampled(COLLECTION, "of-nowhere"))
    with pytest.raises(DamagedError, match="of-nowhere"):
        next(iter(collection.groups()))
    assert not [position for position in positions if layout.group(COLLECTION, position).exists()]


def fill(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(directory.parent.parent.name.encode())


def test_weights_of_another_run_or_version_are_set_aside(layout: RunLayout) -> None:
    task = load_task(layout, "segment-000.inference", 0, Placement(0, 1, 0, "b"))
    other = run_at(layout.root.with_name("other"))
    for run in (layout, other):
        for version in (0, 1, 2):
            publish(run, version, fill)
    assert verified_weights(task, 1).digest == verify(layout.weights_version(1)).digest
    put(other.weights_version(1), layout.weights_version(1))
    put(layout.weights_version(0), layout.weights_version(2))
    for version in (1, 2):
        with pytest.raises(DamagedError, match="belongs to another place"):
            verified_weights(task, version)
        assert not layout.weights_version(version).exists(), "to be published again"
    put(other.weights_version(0), layout.weights_version(0))
    with pytest.raises(UserError, match="weights version 0 is damaged: it is whole, and belongs to another place"):
        verified_weights(task, 0)


def test_a_part_of_an_evaluation_of_another_problem_is_set_aside(layout: RunLayout) -> None:
    task = load_task(layout, "segment-000.inference", 0, Placement(0, 1, 0, "b"))
    settings = EvaluationSettings(RecordedSettings("s", "s"), RecordedSettings("s", "s"))
    parts = Parts(task, layout.evaluation_parts(0, "b", 0), "w", settings, 1)
    for position in range(2):
        parts.commit(position, range(1), sampled(0, f"p{position}"))
    put(parts.directory / "00000", parts.directory / "00001")
    assert sorted(parts.sampled(range(2))) == [0]
    assert not (parts.directory / "00001").exists()


def test_stored_samples_of_another_problem_are_damaged(tmp_path: Path) -> None:
    class Fingerprint:
        digest = "f" * 64

        def model_dump(self, mode: str) -> dict[str, str]:
            return {"mode": mode}

    store = StoredSamples.of(tmp_path, cast("Any", Fingerprint()))
    for position in range(2):
        store.commit(position, range(1), sampled(0, f"p{position}"), "0" * 64)
    mine, other = store.batches(0)[0], store.batches(1)[0]
    assert store.read(mine, [0]).rollouts[0].problem_id == "p0"
    put(other.path, mine.path)
    with pytest.raises(DamagedError, match="belongs to another place"):
        store.read(mine, [0])


def test_a_moved_or_copied_run_is_the_same_run(layout: RunLayout, tmp_path: Path) -> None:
    moved = RunLayout(layout.root.rename(tmp_path / "moved"))
    assert reader(moved).is_complete()
    shutil.copytree(moved.root, tmp_path / "copy")
    assert reader(RunLayout(tmp_path / "copy")).is_complete()


def test_what_one_run_takes_over_from_another_may_be_of_another_place(layout: RunLayout, tmp_path: Path) -> None:
    publish(layout, 1, fill)
    shutil.copytree(layout.weights_version(1), tmp_path / "model")
    assert verify(tmp_path / "model", anywhere=True).about["version"] == 1


def test_a_run_without_its_name_is_told_from_damage(layout: RunLayout) -> None:
    name = layout.identity.read_text()
    layout.identity.unlink()
    with pytest.raises(UserError, match="no folder above it says") as refusal:
        reader(layout).is_complete()
    assert not isinstance(refusal.value, DamagedError)
    assert layout.group(0, 0).exists()
    assert name.strip() in str(refusal.value.advice)
    layout.identity.write_text(name)
    assert reader(layout).is_complete()


def test_a_directory_outside_any_run_belongs_to_none(tmp_path: Path) -> None:
    commit_whole(tmp_path / "alone", lambda directory: (directory / "w").write_text("w") and None)
    assert verify(tmp_path / "alone").about["place"] == []


@pytest.mark.parametrize("name", ["MANIFEST.json", "run_id"])
def test_what_is_no_file_is_no_manifest_and_no_name(layout: RunLayout, name: str) -> None:
    path = layout.identity if name == "run_id" else layout.group(0, 1) / name
    path.unlink()
    path.symlink_to(path.name)
    with pytest.raises(UserError, match="its links lead in a circle"):
        read_sampled(layout, 0, 1)
