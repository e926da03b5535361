"""Verifiers of a user, and grading for tests without an event loop."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from mrt_hpc import Verifier
from mrt_hpc.domains.grader_queue import GraderPool, Pair, Verdict
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.recipe.load import load_recipe


def grade_all(pool: GraderPool, pairs: Sequence[Pair]) -> list[Verdict]:
    return asyncio.run(pool.grade(pairs))


def recipe_beside(folder: Path, module: str, code: str, base: str = "grpo") -> Path:
    """A recipe of the small world beside a module of the user."""
    (folder / f"{module}.py").write_text(code)
    (folder / "mine.yaml").write_text(f"extends: small_world/{base}\nname: mine\n")
    return folder / "mine.yaml"


def own(recipe: Path, named: str, *changes: str) -> Verifier:
    """The verifier of this name for the problems of a recipe."""
    loaded = load_recipe(recipe, (f"data.verifier={named}", *changes))
    return verifier_of(loaded.problems, loaded.grading)
