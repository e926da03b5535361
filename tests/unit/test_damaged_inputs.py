"""Recipes, sites, data and the files of a run directory, damaged in every way: a clear error, or a valid input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Plan, read_plan
from mrt_hpc.recipe.load import load_recipe, load_site
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.data import read_problems
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "recipes/quickstart.yaml").read_bytes()
SITE = (ROOT / "slurm/sites/example.yaml").read_bytes()
PROBLEMS = b"".join(
    json.dumps({"id": f"p{i}", "problem": f"What is {i}?", "answer": str(i)}).encode() + b"\n" for i in range(20)
)
VALUES = [b"null", b"-1", b"1e999", b"nan", b"[]", b"{}", b"'x'", b"\xff\xfe", b"&a *a", b"&b [*b]", b"0x1F", b"\t",
          b"\0", b"!!python/object:os.system", b"1" * 400, b"true", b": :", b"[" * 3000, b"{[]: 1}"]  # fmt: skip
plenty = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """``whole`` with one to three damages."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(whole)))
        end = min(len(whole), start + draw(st.integers(0, 30)))
        kind = draw(st.sampled_from(["cut", "drop", "flip", "insert", "line", "swap"]))
        lines = whole.splitlines(keepends=True)
        if kind == "cut":
            whole = whole[:start]
        elif kind == "drop":
            whole = whole[:start] + whole[end:]
        elif kind == "flip" and start < len(whole):
            whole = whole[:start] + bytes([whole[start] ^ draw(st.integers(1, 255))]) + whole[start + 1 :]
        elif kind == "insert":
            whole = whole[:start] + draw(st.sampled_from(VALUES)) + whole[start:]
        elif kind == "line" and lines:
            number = draw(st.integers(0, len(lines) - 1))
            head, colon, _ = lines[number].partition(b":")
            whole = b"".join(
                [*lines[:number], head, colon, b" ", draw(st.sampled_from(VALUES)), b"\n", *lines[number + 1 :]]
            )
        elif kind == "swap" and lines:
            number = draw(st.integers(0, len(lines) - 1))
            whole = b"".join([*lines[number:], *lines[:number]])
    return whole


@plenty
@given(damaged(RECIPE))
def test_a_damaged_recipe_is_refused_with_its_file_or_is_another_recipe(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    try:
        assert isinstance(load_recipe(path), Recipe)
    except UserError as error:
        assert str(path) in error.message()


@plenty
@given(damaged(SITE))
def test_a_damaged_site_is_refused_with_its_file_or_is_another_site(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "site.yaml"
    path.write_bytes(content)
    try:
        assert isinstance(load_site(path), LocalSite | SlurmSite)
    except UserError as error:
        assert str(path) in error.message()


@plenty
@given(damaged(PROBLEMS))
@example(b"[" * 100_000)
def test_damaged_data_are_refused_with_their_line_or_are_other_data(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_bytes(content)
    try:
        assert all(p.id and p.problem for p in read_problems(path))
    except UserError as error:
        assert str(path) in error.message()


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    recipe = load_recipe(ROOT / "recipes/quickstart.yaml")
    return create_or_open(tmp_path_factory.mktemp("runs") / "run", recipe, compile_plan(recipe, LocalSite()))


@plenty
@given(st.data())
def test_a_damaged_plan_is_refused_with_its_file_or_is_another_plan(layout: RunLayout, data: st.DataObject) -> None:
    whole = layout.plan.read_bytes()
    try:
        layout.plan.write_bytes(data.draw(damaged(whole)))
        assert isinstance(read_plan(layout.plan), Plan)
    except UserError as error:
        assert str(layout.plan) in error.message()
    finally:
        layout.plan.write_bytes(whole)


@plenty
@given(st.data())
def test_a_damaged_lock_is_refused_with_its_file_or_is_another_recipe(layout: RunLayout, data: st.DataObject) -> None:
    whole = layout.recipe_lock.read_bytes()
    try:
        layout.recipe_lock.write_bytes(data.draw(damaged(whole)))
        assert isinstance(read_recipe_lock(layout.recipe_lock), Recipe)
    except UserError as error:
        assert str(layout.recipe_lock) in error.message()
    finally:
        layout.recipe_lock.write_bytes(whole)
