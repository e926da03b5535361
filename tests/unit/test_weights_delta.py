"""Weights versions as deltas: what they hold, what is put together of them, and which ones stay."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from small_weights import as_bytes, publish_delta, publish_full, read_model, tensors, write_model

from mrt_hpc.cluster.doctor.local_checks import bytes_needed
from mrt_hpc.errors import UserError
from mrt_hpc.evaluate.regrade import tokenizer_of
from mrt_hpc.plan.kept_weights import is_in_full, needed_versions, stays
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.evaluation_settings import pruned_versions
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import MANIFEST, DamagedError, verify
from mrt_hpc.run.safetensors_file import AT_ONCE, is_finite, refuse_not_finite
from mrt_hpc.run.weights import CHANGES, DELTA, full_versions, is_delta, prune, published_versions, refuse_delta
from mrt_hpc.run.weights_delta import (
    BrokenChainError,
    ContentsError,
    TensorBytes,
    VersionKey,
    chain_to,
    contents_of,
    delta_between,
    put_together,
)
from mrt_hpc.submit.create import check_model
from mrt_hpc.submit.origin import version_at

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Recipe

RECIPES = Path(__file__).parents[2] / "recipes"
BASE = VersionKey(1, "digest")


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """Version 1 is full, 2 to 4 are deltas."""
    layout = RunLayout(tmp_path / "run")
    publish_full(layout, 1)
    for version in (2, 3, 4):
        publish_delta(layout, version)
    return layout


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("BF16", torch.bfloat16),
        ("F16", torch.float16),
        ("F8_E5M2", torch.float8_e5m2),
        ("F8_E4M3", torch.float8_e4m3fn),
        ("F32", torch.float32),
        ("F64", torch.float64),
    ],
)
def test_finite_numbers_are_told_by_their_bits(name: str, dtype: torch.dtype) -> None:
    """Of formats of up to 16 bits all numbers; of wider ones each edge, and many others."""
    if dtype.itemsize <= 2:
        count = 1 << 8 * dtype.itemsize
        numbers = torch.arange(count, dtype=torch.int32).to(torch.int16 if dtype.itemsize == 2 else torch.uint8)
        numbers = numbers.view(dtype)
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
    values = {"steps": np.full(4, -1), "good": np.ones(3, np.float32), "bad": np.array([1, np.inf], np.float16)}
    save_file({"good": values["good"], "steps": values["steps"]}, tmp_path / "1.safetensors")
    refuse_not_finite(tmp_path)
    save_file({"bad": values["bad"]}, tmp_path / "2.safetensors")
    with pytest.raises(DamagedError, match=r"1 tensor\(s\) hold a NaN or an infinity: bad\n"):
        refuse_not_finite(tmp_path)


def recipe(*changes: str) -> Recipe:
    long = ("schedule.iterations=40", "schedule.iterations_per_job=20", "evaluation.every=10")
    return load_recipe(RECIPES / "quickstart.yaml", (*long, "training.full_weights_every=4", *changes))


def made(layout: RunLayout, version: int, to: Path, held: dict[VersionKey, Path] | None = None) -> Path:
    to.mkdir()
    put_together(chain_to(layout, version, held), to)
    return to


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("version", [2, 4])
def test_a_chain_comes_to_the_files_that_the_full_version_has(layout: RunLayout, version: int, tmp_path: Path) -> None:
    directory = made(layout, version, tmp_path / "made")
    assert_equal(read_model(directory), tensors(version))
    (whole := tmp_path / "whole").mkdir()
    write_model(whole, tensors(version))
    assert {p.name: p.read_bytes() for p in directory.iterdir()} == {p.name: p.read_bytes() for p in whole.iterdir()}


def test_nothing_of_what_is_written_over_stays(layout: RunLayout, tmp_path: Path) -> None:
    directory, fresh = made(layout, 2, tmp_path / "made"), made(layout, 4, tmp_path / "fresh")
    longer = directory / "model-1.safetensors"
    longer.write_bytes(longer.read_bytes() + b"rest")
    (directory / "model-3.safetensors").write_bytes(b"of another division into files")
    put_together(chain_to(layout, 4), directory)
    assert {p.name: p.read_bytes() for p in directory.iterdir()} == {p.name: p.read_bytes() for p in fresh.iterdir()}


def test_a_delta_takes_a_small_part_of_the_whole(layout: RunLayout) -> None:
    sizes = [sum(size for size, _ in verify(layout.weights_version(v)).files.values()) for v in (1, 2)]
    assert sizes[1] < sizes[0] / 5


def test_a_chain_starts_at_the_nearest_version_that_is_held(layout: RunLayout, tmp_path: Path) -> None:
    third = chain_to(layout, 3)
    assert (third.versions, third.held, third.start) == ((2, 3), None, layout.weights_version(1))
    held = {third.key: made(layout, 3, tmp_path / "3")}
    shutil.rmtree(layout.weights_version(2))  # is not needed any more
    fourth = chain_to(layout, 4, held)
    assert (fourth.versions, fourth.held, fourth.start) == ((4,), third.key, tmp_path / "3")
    assert_equal(read_model(made(layout, 4, tmp_path / "4", held)), tensors(4))
    assert chain_to(layout, 3, held).links == ()


def test_a_full_version_is_a_chain_of_its_own(layout: RunLayout) -> None:
    chain = chain_to(layout, 1)
    assert (chain.links, chain.start) == ((), layout.weights_version(1))
    assert chain.key == VersionKey(1, verify(layout.weights_version(1)).digest)


@pytest.mark.parametrize("file", [DELTA, CHANGES, MANIFEST])
@pytest.mark.parametrize("how", ["changed", "cut short", "gone"])
def test_every_damage_of_a_delta_is_found(layout: RunLayout, file: str, how: str) -> None:
    path = layout.weights_version(3) / file
    data = path.read_bytes()
    path.write_bytes({"changed": bytes([data[0] ^ 1]) + data[1:], "cut short": data[:-2], "gone": b""}[how])
    if how == "gone":
        path.unlink()
    with pytest.raises(BrokenChainError) as found:
        chain_to(layout, 4)
    assert found.value.versions == (4, 3)


def test_a_base_that_is_gone_or_another_breaks_the_chain(layout: RunLayout) -> None:
    base = layout.weights_version(2)
    shutil.rmtree(base)
    with pytest.raises(BrokenChainError, match="no readable manifest") as gone:
        chain_to(layout, 4)
    assert gone.value.versions == (4, 3, 2)
    publish_full(layout, 2)
    with pytest.raises(BrokenChainError, match="not the one that this delta was made of") as another:
        chain_to(layout, 4)
    assert another.value.versions == (4, 3), "the other version 2 is sound"


def test_what_does_not_come_to_the_published_contents_is_refused(layout: RunLayout, tmp_path: Path) -> None:
    (wrong := tmp_path / "wrong").mkdir()
    write_model(wrong, tensors(3, share=0.02))
    key = chain_to(layout, 3).key
    with pytest.raises(ContentsError, match="not those that were published"):
        made(layout, 4, tmp_path / "made", {key: wrong})


def test_changes_that_do_not_fit_are_damage(layout: RunLayout, tmp_path: Path) -> None:
    chain = chain_to(layout, 2)
    link = chain.links[0]
    wrong = {name: replace(part, count=part.count + 1) for name, part in link.parts.items()}
    (to := tmp_path / "made").mkdir()
    with pytest.raises(DamagedError, match="do not fit"):
        put_together(replace(chain, links=(replace(link, parts=wrong),)), to)


def test_other_tensors_or_many_changes_are_not_worth_a_delta() -> None:
    old, new = as_bytes(tensors(1)), as_bytes(tensors(2))
    assert delta_between(BASE, old, new) is not None
    assert delta_between(BASE, old[1:], new) is None
    turned = [TensorBytes(t.kind._replace(shape=t.kind.shape[::-1]), t.data) for t in new]
    assert delta_between(BASE, old, turned) is None
    noise = [TensorBytes(t.kind, np.random.default_rng(1).integers(0, 256, len(t.data), np.uint8)) for t in new]
    assert delta_between(BASE, old, noise) is None


def test_nothing_changed_is_an_empty_delta(tmp_path: Path) -> None:
    same = as_bytes(tensors(1))
    delta = delta_between(BASE, same, same)
    assert delta is not None
    delta.write(tmp_path)
    assert (tmp_path / CHANGES).stat().st_size == 0
    assert json.loads((tmp_path / DELTA).read_text())["tensors"] == {}


def test_contents_tell_names_and_shapes_apart() -> None:
    one = as_bytes(tensors(1))
    renamed = [TensorBytes(t.kind._replace(name=f"{t.kind.name}_"), t.data) for t in one]
    turned = [TensorBytes(t.kind._replace(shape=t.kind.shape[::-1]), t.data) for t in one]
    assert len({contents_of(values) for values in (one, renamed, turned)}) == 3
    assert contents_of(one) == contents_of(one[::-1])


def test_a_delta_is_refused_where_a_model_is_wanted(layout: RunLayout) -> None:
    assert [is_delta(layout.weights_version(v)) for v in (1, 2)] == [False, True]
    assert full_versions(layout) == [1]
    refuse_delta(layout.weights_version(1))
    with pytest.raises(UserError, match="no whole model") as refusal:
        refuse_delta(layout.weights_version(2))
    assert refusal.value.expected == "one of the full versions: v000001"
    assert pruned_versions(layout, [1, 2, 3]) == [2, 3], "an evaluation that is asked for later passes them over"


def test_commands_take_whole_models(layout: RunLayout) -> None:
    assert version_at(layout, "last") == 1
    with pytest.raises(UserError, match="no whole model"):
        version_at(layout, "3")
    assert tokenizer_of(layout, recipe(), 3) == layout.weights_version(1)
    with pytest.raises(UserError, match="no whole model"):
        check_model(recipe(f"model={{type: hugging_face, path: {layout.weights_version(3)}}}"))


def test_a_version_that_stays_keeps_what_it_was_made_of(layout: RunLayout) -> None:
    publish_full(layout, 5)
    for version in (6, 7):
        publish_delta(layout, version)
    needed = needed_versions(layout, recipe("training.keep_weights=2"), 7)
    assert prune(layout, needed) == [1, 2, 3, 4]
    assert published_versions(layout) == [5, 6, 7]
    shutil.rmtree(layout.weights_version(6))
    chain_to(layout, 5)


def test_no_delta_stays_once_the_last_version_is_there(layout: RunLayout) -> None:
    publish_full(layout, 5)
    last = recipe("schedule.iterations=5", "schedule.iterations_per_job=5", "training.keep_weights=5")
    assert needed_versions(layout, last, 4) >= {1, 2, 3, 4}
    assert needed_versions(layout, last, 5) & {*published_versions(layout)} == {1, 5}, "2, 3 and 4 are deltas"


def test_no_reader_finds_a_delta_whose_base_was_removed_first(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    monkeypatch.setattr("mrt_hpc.run.weights.shutil.rmtree", lambda path: removed.append(path.name[1:8]))
    prune(layout, [])
    assert removed == ["v000004", "v000003", "v000002", "v000001"]


def test_versions_of_their_own_are_full(layout: RunLayout) -> None:
    full = [v for v in range(41) if is_in_full(layout, recipe("training.full_weights_every=6"), v)]
    assert full == [0, 6, 10, 12, 18, 20, 24, 30, 36, 40], "every 6th, every evaluated one, the ends of segments"
    layout.evaluations(7).mkdir(parents=True)
    assert is_in_full(layout, recipe(), 7), "an earlier recipe evaluated it"
    assert all(is_in_full(layout, recipe("training.full_weights_every=1"), v) for v in range(41))
    assert [v for v in range(36, 41) if stays(layout, recipe(), v)] == [40], "38 and 39 are deltas"


@pytest.mark.parametrize(
    ("file", "changes", "reason"),
    [
        ("quickstart.yaml", ("schedule.iterations_per_job=1",), "every version ends a segment"),
        ("quickstart.yaml", ("schedule.coupling=sequential", "schedule.max_staleness=1"), "inference has ended"),
        ("quickstart.yaml", ("serving.attach={address: http://node:8000, key_file: key}",), "does not see the folder"),
        ("small_world/star.yaml", (), "samples nothing while it trains"),
        ("quickstart.yaml", ("resources.inference.nodes=2", "resources.inference.gpus=4"), "on several nodes"),
    ],
)
def test_deltas_that_could_not_be_read_are_refused(file: str, changes: tuple[str, ...], reason: str) -> None:
    segments = ("schedule.iterations=4", "schedule.iterations_per_job=2", "training.keep_weights=3")
    load_recipe(RECIPES / file, (*segments, *changes))
    with pytest.raises(UserError, match="full_weights_every") as refusal:
        load_recipe(RECIPES / file, (*segments, "training.full_weights_every=3", *changes))
    assert reason in str(refusal.value)


def test_deltas_are_put_together_beside_a_server_without_gpus_whatever_the_nodes() -> None:
    """It computes on the first node alone."""
    assert recipe("resources.inference.nodes=2").training.full_weights_every > 1


def test_room_for_what_deltas_were_made_of_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrt_hpc.cluster.doctor.local_checks.model_billions", lambda _: 1.5)
    needed = [bytes_needed(recipe(f"training.full_weights_every={n}")) or 0.0 for n in (1, 2, 4)]
    assert 0.0 < needed[0] < needed[1] < needed[2]
