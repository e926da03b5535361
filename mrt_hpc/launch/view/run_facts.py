"""What a run is, in a few words, from its lock. The lock is read without the schema of recipes, whose import takes
longer than reading a hundred locks, so that runs of other versions are listed as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from mrt_hpc.recipe.source import MAX_BYTES, UNREADABLE
from mrt_hpc.run.typed_file import file_bytes

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout


@dataclass(frozen=True)
class RunFacts:
    """What the lock of a run says; fields are None where it does not, or cannot be read."""

    algorithm: str | None = None
    """The type of its algorithm; None for an evaluation on its own."""
    suite: str | None = None
    """The suite of an evaluation on its own."""
    groups: int | None = None
    """The number of groups that an iteration samples."""
    retries: int | None = None
    """The number of failures in a row that a task may have."""

    @property
    def kind(self) -> str:
        """The algorithm or the suite, for a table."""
        return self.algorithm or (f"suite {self.suite}" if self.suite else "unknown")


def read_facts(layout: RunLayout) -> RunFacts:
    """Read what a run is from its lock; nothing is known where the lock is missing or damaged."""
    try:
        content = YAML(typ="safe").load(file_bytes(layout.recipe_lock, MAX_BYTES).decode())
    except (*UNREADABLE, OSError):
        return RunFacts()
    recipe = _section(content, "recipe")
    alone = "models" in recipe
    return RunFacts(
        algorithm=None if alone else _text(_section(recipe, "algorithm").get("type")),
        suite=_text(_section(recipe, "evaluation").get("suite")) if alone else None,
        groups=_number(_section(recipe, "sampling").get("problems_per_iteration")),
        retries=_number(_section(recipe, "resilience").get("retries")),
    )


def _section(content: Any, name: str) -> dict[str, Any]:
    found = content.get(name) if isinstance(content, dict) else None
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
