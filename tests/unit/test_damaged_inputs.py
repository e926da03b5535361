"""Recipes, sites, data and the files of a run directory, damaged in every way: a clear error, or a valid input."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_of import run_of

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Plan, read_plan
from mrt_hpc.recipe.load import load_recipe, load_site
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.problems import read_problems

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "recipes/quickstart.yaml").read_bytes()
SITE = [line for line in (ROOT / "slurm/sites/example.yaml").read_bytes().splitlines(True) if line.strip()[:1] != b"#"]
PROBLEMS = [json.dumps({"id": f"p{i}", "problem": f"What is {i}?", "answer": str(i)}).encode() for i in range(20)]
VALUES = [b"null", b"-1", b"1e999", b"nan", b"[]", b"{}", b"'x'", b"\xff\xfe", b"&a *a", b"&b [*b]", b"0x1F", b"\t",
          b"\0", b"!!python/object:os.system", b"1" * 400, b"true", b": :", b"[" * 1000, b"{[]: 1}"]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
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


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, bytes]]:
    folder = tmp_path_factory.mktemp("files")
    run = run_of(folder / "run", recipe=load_recipe(ROOT / "recipes/quickstart.yaml"))
    return {
        "recipe": (folder / "recipe.yaml", RECIPE),
        "site": (folder / "site.yaml", b"".join(SITE)),
        "problems": (folder / "problems.jsonl", b"\n".join(PROBLEMS)),
        "plan": (run.plan, run.plan.read_bytes()),
        "lock": (run.recipe_lock, run.recipe_lock.read_bytes()),
    }


READ: dict[str, Callable[[Path], bool]] = {
    "recipe": lambda path: isinstance(load_recipe(path), Recipe),
    "site": lambda path: isinstance(load_site(path), LocalSite | SlurmSite),
    "problems": lambda path: all(p.id and p.problem for p in read_problems(path)),
    "plan": lambda path: isinstance(read_plan(path), Plan),
    "lock": lambda path: isinstance(read_recipe_lock(path), Recipe),
}


@pytest.mark.parametrize("kind", READ)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_by_its_name_or_is_another_valid_one(
    kind: str, files: dict[str, tuple[Path, bytes]], data: st.DataObject
) -> None:
    path, whole = files[kind]
    path.write_bytes(data.draw(damaged(whole)))
    try:
        assert READ[kind](path)
    except UserError as error:
        assert str(path) in error.message()


def test_data_that_nest_without_end_are_refused(tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_bytes(b"[" * 100_000)
    with pytest.raises(UserError):
        read_problems(tmp_path / "problems.jsonl")
