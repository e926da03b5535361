"""The data sets of the paper under names of their own: where each is on the hub, and which part of it is taken.

The commits are fixed, so that a name always means the same problems.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mrt_hpc.datasets.columns import Asked
from mrt_hpc.datasets.sample import AtMost, Sample
from mrt_hpc.errors import UserError, nearest
from mrt_hpc.recipe.hub_models import PREFIX

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class NamedSource:
    """A data set of the hub, or a part of it, that a name means."""

    name: str
    about: str
    repository: str
    """OWNER/NAME."""
    revision: str
    """The commit."""
    split: str
    columns: Asked
    rows: int
    """The number of rows of the split."""
    problems: int
    """The number of problems that come out."""
    stem: str
    """The beginning of the ids that are made, where the columns have none."""
    keep: AtMost | None = None
    """The rows that are taken; None takes all."""
    sample: Sample | None = None
    """The sample of them; None takes all."""

    @property
    def source(self) -> str:
        """The name of the data set of the hub with commit and split."""
        return f"{PREFIX}{self.repository}@{self.revision}/{self.split}"


_NUMINA = NamedSource(
    name="numina_math_4000",
    about="training problems of the paper: 4,000 of NuminaMath-CoT, seed 0",
    repository="AI-MO/NuminaMath-CoT",
    revision="9d8d210c9f6a36c8f3cd84045668c9b7800ef517",
    split="train",
    columns=Asked(problem="problem", answer="solution", new_ids=True),
    rows=859_494,
    problems=4_000,
    stem="numina_math",
    sample=Sample(4_000),
)

SOURCES = (
    NamedSource(
        name="aime24",
        about="benchmark AIME 2024",
        repository="HuggingFaceH4/aime_2024",
        revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        split="train",
        columns=Asked(problem="problem", answer="answer", new_ids=True),
        rows=30,
        problems=30,
        stem="aime24",
    ),
    NamedSource(
        name="aime25",
        about="benchmark AIME 2025",
        repository="math-ai/aime25",
        revision="563bb8404243c5f09de6ec262f2db674fe5bce9b",
        split="test",
        columns=Asked(problem="problem", answer="answer", new_ids=True),
        rows=30,
        problems=30,
        stem="aime25",
    ),
    NamedSource(
        name="amc23",
        about="benchmark AMC 2023",
        repository="math-ai/amc23",
        revision="80815d37005feb82cd7f8fbc6901d5d3eff43057",
        split="test",
        columns=Asked(problem="question", answer="answer", new_ids=True),
        rows=40,
        problems=40,
        stem="amc23",
    ),
    NamedSource(
        name="minerva_math",
        about="benchmark MinervaMATH",
        repository="math-ai/minervamath",
        revision="ee46ddc498933b1977577953250ca5c66be64f96",
        split="test",
        columns=Asked(problem="question", answer="answer", new_ids=True),
        rows=272,
        problems=272,
        stem="minerva_math",
    ),
    NamedSource(
        name="math500",
        about="benchmark MATH500",
        repository="HuggingFaceH4/MATH-500",
        revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        split="test",
        columns=Asked(problem="problem", answer="answer", id="unique_id"),
        rows=500,
        problems=500,
        stem="math500",
    ),
    _NUMINA,
    replace(
        _NUMINA,
        name="numina_math_10000",
        about="problems of STaR in the paper: 10,000 of NuminaMath-CoT, seed 0; they hold the 4,000",
        problems=10_000,
        sample=Sample(10_000),
    ),
    NamedSource(
        name="aime_1983_2023",
        about="training problems of the paper for DeepScaleR: AIME 1983 to 2023",
        repository="di-zhang-fdu/AIME_1983_2024",
        revision="3e2cc86390666c5c756622afc0eeb9e6194496bc",
        split="train",
        columns=Asked(problem="Question", answer="Answer", id="ID"),
        rows=933,
        problems=919,
        stem="aime_1983_2023",
        keep=AtMost("Year", 2023),
    ),
)
"""In the order in which they are listed."""
BY_NAME = {source.name: source for source in SOURCES}


def named_source(name: str) -> NamedSource:
    """The source of a name.

    Raises:
        UserError: there is none.
    """
    if name in BY_NAME:
        return BY_NAME[name]
    guess = nearest(name, BY_NAME)
    raise UserError(
        "there is no data set of this name",
        value=name,
        expected=f"{', '.join(BY_NAME)}; or hub:OWNER/NAME[@REVISION][/SPLIT]",
        advice=f"mrt-hpc data fetch {guess}" if guess else "mrt-hpc data fetch --list",
    )


def fetch_command(path: Path) -> str | None:
    """The command that makes a data file which recipes name and which is not there; None where its name is not that of
    a known data set.
    """
    return f"mrt-hpc data fetch {path.stem} {path}" if path.suffix == ".jsonl" and path.stem in BY_NAME else None
