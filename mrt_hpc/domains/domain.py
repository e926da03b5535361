"""What other rooms ask the domain of a section of a recipe."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from mrt_hpc.mrt.sft import Conversation, Suffix
from mrt_hpc.recipe.base import Section, require_kind
from mrt_hpc.recipe.registry import import_name
from mrt_hpc.recipe.sections import JsonlProblems, ProblemSource
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import Problem


class Domain:
    """By default that of files: it makes no samples, and knows nothing of a trace beyond its reward."""

    starting_model: ClassVar[Path]
    """Only of a domain with a model of its own."""

    def problems(self, source: ProblemSource) -> list[Problem]:
        file = require_kind(source, JsonlProblems)
        return read_problems(Path(file.path), file.limit)

    def samples(self, source: Section, seed: int) -> Sequence[Conversation | Suffix]:  # noqa: ARG002 - some make them
        """To learn, in an order drawn from ``seed``."""
        return ()

    def quality(self, traces: Iterable[tuple[str, str]]) -> dict[str, float]:  # noqa: ARG002 - some measure it
        """Measures of (problem text, trace text) pairs by name, for the metrics."""
        return {}


def domain_of(section: Section) -> Domain:
    """Of data, of a benchmark's problems or of a model."""
    where: str | None = getattr(section, "domain", None)
    return Domain() if where is None else import_name(where)()
