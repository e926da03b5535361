"""Weights versions as deltas: what they hold, what is put together of them, and which ones stay."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from run_of import RECIPES, bare_run
from safetensors.numpy import save_file
from small_weights import as_bytes, publish_delta, publish_full, tensors, write_model

from mrt_hpc.cluster.doctor.place_checks import bytes_needed
from mrt_hpc.errors import UserError
from mrt_hpc.evaluate.regrade import tokenizer_of
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run import weights_delta
from mrt_hpc.run.evaluation_settings import pruned_versions
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import DamagedError, verify
from mrt_hpc.run.safetensors_file import AT_ONCE, is_finite, refuse_not_finite
from mrt_hpc.run.weights import (
    CHANGES,
    full_versions,
    is_delta,
    is_in_full,
    needed_versions,
    prune,
    published_versions,
    refuse_delta,
    stays,
)
from mrt_hpc.run.weights_delta import BrokenChainError, TensorBytes, VersionKey, chain_to, put_together
from mrt_hpc.submit.create import check_model
from mrt_hpc.submit.origin import version_at

BASE = VersionKey(1, "digest")


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    layout = bare_run(tmp_path / "run")
    publish_full(layout, 1)
    for version in (2, 3, 4):
        publish_delta(layout, version)
    return layout


DTYPES = {
    "BF16": torch.bfloat16, "F16": torch.float16, "F8_E5M2": torch.float8_e5m2, "F8_E4M3": torch.float8_e4m3fn,
    "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_finite_numbers_are_told_by_their_bits(name: str) -> None:
    """Of formats of up to 16 bits all numbers; of wider ones each edge, and many others."""
    dtype = DTYPES[name]
    if dtype.itemsize <= 2:
        numbers = torch.arange(1 << 8 * dtype.itemsize, dtype=torch.int32)
        numbers = numbers.to(torch.int16 if dtype.itemsize == 2 else torch.uint8).view(dtype)
    else:
        limits = torch.finfo(dtype)
        edges = [0.0, -0.0, limits.max, limits.min, limits.tiny, limits.tiny / 4, torch.inf, -torch.inf, torch.nan]
        numbers = torch.cat([torch.tensor(edges, dtype=dtype), torch.randn(1000, dtype=dtype)])
    found = [is_finite(name, one.reshape(1).view(torch.uint8).numpy()) for one in numbers]
    assert found == (numbers.float() if dtype.itemsize < 4 else numbers).isfinite().tolist()
    assert False in found
    whole = numbers[torch.tensor(found)].repeat(2 + AT_ONCE // len(numbers) // dtype.itemsize)
    assert is_finite(name, whole.view(torch.uint8).numpy())
    whole[-1] = torch.nan
    assert not is_finite(name, whole.view(torch.uint8).numpy()), "the last one of several parts"


def test_files_of_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    save_file({"good": np.ones(3, np.float32), "steps": np.full(4, -1)}, tmp_path / "1.safetensors")
    refuse_not_finite(tmp_path)
    save_file({"bad": np.array([1, np.inf], np.float16)}, tmp_path / "2.safetensors")
    with pytest.raises(DamagedError, match=": bad\n"):
        refuse_not_finite(tmp_path)


def recipe(*changes: str) -> Recipe:
    long = ("schedule.iterations=40", "schedule.iterations_per_job=20", "evaluation.every=10")
    return load_recipe(RECIPES / "quickstart.yaml", (*long, "training.full_weights_every=4", *changes))


def made(layout: RunLayout, version: int, to: Path, held: dict[VersionKey, Path] | None = None) -> Path:
    to.mkdir()
    put_together(chain_to(layout, version, held), to)
    return to


def written(version: int, to: Path, share: float = 0.01) -> Path:
    to.mkdir()
    write_model(to, tensors(version, share))
    return to


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_delta_takes_a_small_part_of_the_whole(layout: RunLayout, tmp_path: Path) -> None:
    sizes = [sum(size for size, _ in verify(layout.weights_version(v)).files.values()) for v in (1, 2)]
    assert sizes[1] < sizes[0] / 5
    nothing = weights_delta.delta_between(BASE, as_bytes(tensors(1)), as_bytes(tensors(1)))
    assert nothing
    nothing.write(tmp_path)
    assert (tmp_path / CHANGES).stat().st_size == 0


def test_a_chain_starts_at_the_nearest_version_that_is_held(layout: RunLayout, tmp_path: Path) -> None:
    first, third = chain_to(layout, 1), chain_to(layout, 3)
    assert (first.links, first.start) == ((), layout.weights_version(1))
    assert first.key == VersionKey(1, verify(layout.weights_version(1)).digest)
    assert (third.versions, third.held, third.start) == ((2, 3), None, layout.weights_version(1))
    held = {third.key: made(layout, 3, tmp_path / "3")}
    shutil.rmtree(layout.weights_version(2))  # is not needed any more
    fourth = chain_to(layout, 4, held)
    assert (fourth.versions, fourth.held, fourth.start) == ((4,), third.key, tmp_path / "3")
    assert contents(made(layout, 4, tmp_path / "4", held)) == contents(written(4, tmp_path / "whole"))
    assert chain_to(layout, 3, held).links == ()


def test_a_chain_without_its_base_or_of_another_one_is_broken(layout: RunLayout) -> None:
    shutil.rmtree(layout.weights_version(2))
    with pytest.raises(BrokenChainError) as gone:
        chain_to(layout, 4)
    publish_full(layout, 2)
    with pytest.raises(BrokenChainError) as another:
        chain_to(layout, 4)
    assert (gone.value.versions, another.value.versions) == ((4, 3, 2), (4, 3)), "the other version 2 is sound"


def test_what_does_not_come_to_the_published_contents_is_refused(layout: RunLayout, tmp_path: Path) -> None:
    key = chain_to(layout, 3).key
    with pytest.raises(weights_delta.ContentsError):
        made(layout, 4, tmp_path / "made", {key: written(3, tmp_path / "wrong", share=0.02)})
    chain = chain_to(layout, 2)
    link = chain.links[0]
    wrong = {name: replace(part, count=part.count + 1) for name, part in link.parts.items()}
    with pytest.raises(DamagedError, match="cannot be applied"):
        put_together(replace(chain, links=(replace(link, parts=wrong),)), tmp_path / "made")


@pytest.mark.parametrize("gone", ["the whole model", "a delta"])
def test_what_another_task_sets_aside_meanwhile_is_damage(layout: RunLayout, tmp_path: Path, gone: str) -> None:
    chain = chain_to(layout, 3)
    shutil.rmtree(chain.start if gone == "the whole model" else chain.links[-1].directory)
    (tmp_path / "made").mkdir()
    with pytest.raises(DamagedError, match=r"not there|cannot be applied"):
        put_together(chain, tmp_path / "made")


def test_other_tensors_or_many_changes_are_not_worth_a_delta() -> None:
    old, new = as_bytes(tensors(1)), as_bytes(tensors(2))
    turned = [TensorBytes(t.kind._replace(shape=t.kind.shape[::-1]), t.data) for t in new]
    noise = [TensorBytes(t.kind, np.random.default_rng(1).integers(0, 256, len(t.data), np.uint8)) for t in new]
    for before, after, worth in ((old, new, True), (old[1:], new, False), (old, turned, False), (old, noise, False)):
        assert bool(weights_delta.delta_between(BASE, before, after)) is worth
    renamed = [TensorBytes(t.kind._replace(name=f"{t.kind.name}_"), t.data) for t in new]
    assert len({weights_delta.contents_of(values) for values in (new, renamed, turned)}) == 3
    assert weights_delta.contents_of(new) == weights_delta.contents_of(new[::-1])


def test_commands_take_whole_models(layout: RunLayout) -> None:
    path = layout.weights_version(3)
    assert [is_delta(layout.weights_version(v)) for v in (1, 2)] == [False, True]
    assert (full_versions(layout), version_at(layout, "last")) == ([1], 1)
    refuse_delta(layout.weights_version(1))
    asked = f"model={{type: hugging_face, path: {path}}}"
    for take in (lambda: refuse_delta(path), lambda: version_at(layout, "3"), lambda: check_model(recipe(asked))):
        with pytest.raises(UserError) as refusal:
            take()
        assert refusal.value.expected == "one of the full versions: v000001"
    assert [tokenizer_of(layout, recipe(), version) for version in (1, 3)] == [layout.weights_version(1)] * 2
    assert pruned_versions(layout, [1, 2, 3]) == [2, 3], "an evaluation that is asked for later passes them over"


def test_a_version_that_stays_keeps_what_it_was_made_of(layout: RunLayout) -> None:
    publish_full(layout, 5)
    for version in (6, 7):
        publish_delta(layout, version)
    needed = needed_versions(layout, recipe("training.keep_weights=2"), 7)
    assert prune(layout, needed) == [1, 2, 3, 4]
    assert published_versions(layout) == [5, 6, 7]


def test_no_delta_stays_once_the_last_version_is_there(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_full(layout, 5)
    last = recipe("schedule.iterations=5", "schedule.iterations_per_job=5", "training.keep_weights=5")
    assert needed_versions(layout, last, 4) >= {1, 2, 3, 4}
    assert needed_versions(layout, last, 5) & {*published_versions(layout)} == {1, 5}, "2, 3 and 4 are deltas"
    removed: list[str] = []
    remove = shutil.rmtree

    def remove_and_note(path: Path, **options: bool) -> None:
        removed.append(path.name[1:8])
        remove(path, **options)

    monkeypatch.setattr("mrt_hpc.run.weights.shutil.rmtree", remove_and_note)
    prune(layout, [5])
    assert removed == ["v000004", "v000003", "v000002", "v000001"], "no reader finds one without its base"


def test_versions_of_their_own_are_full(layout: RunLayout) -> None:
    sixth = recipe("training.full_weights_every=6")
    full = [v for v in range(41) if is_in_full(layout, sixth, v)]
    assert full == [0, 6, 10, 12, 18, 20, 24, 30, 36, 40], "every 6th, every evaluated one, the ends of segments"
    layout.evaluations(7).mkdir(parents=True)
    assert is_in_full(layout, recipe(), 7), "an earlier recipe evaluated it"
    always = recipe("training.full_weights_every=1")
    assert all(is_in_full(layout, always, v) for v in range(41))
    fourth = recipe()
    assert [v for v in range(36, 41) if stays(layout, fourth, v)] == [40], "38 and 39 are deltas"


def test_deltas_that_could_not_be_read_are_refused() -> None:
    """A server without GPUs computes on the first node alone, whatever the nodes."""
    segments = ("schedule.iterations=4", "schedule.iterations_per_job=2", "training.keep_weights=3")
    for reason, *changes in (
        ("every version ends a segment", "schedule.iterations_per_job=1"),
        ("inference has ended", "schedule.coupling=sequential", "schedule.max_staleness=1"),
        ("samples nothing while it trains",),
        ("on several nodes", "resources.inference.nodes=2", "resources.inference.gpus=4"),
    ):
        file = RECIPES / ("quickstart.yaml" if changes else "small_world/star.yaml")
        load_recipe(file, (*segments, *changes))
        with pytest.raises(UserError, match=f"full_weights_every(.|\n)*{reason}"):
            load_recipe(file, (*segments, "training.full_weights_every=3", *changes))
    assert recipe("resources.inference.nodes=2").training.full_weights_every > 1


def test_room_for_what_deltas_were_made_of_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrt_hpc.cluster.doctor.place_checks.model_billions", lambda _: 1.5)
    needed = [bytes_needed(recipe(f"training.full_weights_every={n}")) or 0.0 for n in (1, 2, 4)]
    assert 0.0 < needed[0] < needed[1] < needed[2]
