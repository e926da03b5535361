"""The data sets of the paper: where each is on the hub, and which part is taken. The commits are fixed, so that a name
always means the same problems.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from mrt_hpc.datasets.columns import Asked
from mrt_hpc.datasets.conversion import AtMost, Order, Prepared, Sample, SourceRecord, prepare, record_file
from mrt_hpc.datasets.sources import Selection, hub_name
from mrt_hpc.errors import Advice, UserError, nearest
from mrt_hpc.recipe.find import data_folder
from mrt_hpc.recipe.hub_models import PREFIX
from mrt_hpc.run.atomic import checksum


@dataclass(frozen=True)
class NamedSource:
    """A data set of the hub, or a part of it."""

    name: str
    about: str
    repository: str
    """OWNER/NAME."""
    revision: str
    """The commit."""
    split: str
    columns: Asked
    rows: int
    problems: int
    stem: str = ""
    """The beginning of the ids that are made, where the columns have none; empty for the name."""
    keep: AtMost | None = None
    """None takes all."""
    sample: Sample | None = None
    """None takes all."""

    @property
    def source(self) -> str:
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
        keep=AtMost("Year", 2023),
    ),
)
BY_NAME = {source.name: source for source in SOURCES}


def named_source(name: str) -> NamedSource:
    if name in BY_NAME:
        return BY_NAME[name]
    guess = nearest(name, BY_NAME)
    raise UserError(
        "there is no data set of this name",
        value=name,
        expected=f"{', '.join(BY_NAME)}; or hub:OWNER/NAME[@REVISION][/SPLIT]",
        advice=Advice("mrt-hpc data fetch {guess}", guess=guess) if guess else "mrt-hpc data fetch --list",
    )


def fetch_command(path: Path) -> str | None:
    """For a missing data file that recipes name; None where its name is not that of a known data set."""
    return (
        Advice("mrt-hpc data fetch {stem} {path}", stem=path.stem, path=path)
        if path.suffix == ".jsonl" and path.stem in BY_NAME
        else None
    )


# -- fetch -------------------------------------------------------------------------------------------------------------
# Fetches a data set of the hub by its name, and makes the data file of it.


def fetch_data(name: str, output: Path | None, *, drop_bad: bool = False, force: bool = False) -> Prepared:
    """Fetch a data set and write its data file; does nothing where the same file is there.

    Args:
        name: of a known data set, or ``hub:OWNER/NAME[@REVISION][/SPLIT]``.
        output: None takes ``NAME.jsonl`` in the user's data folder.
        drop_bad: leave out rows of the hub's data set that make no problem.
        force: make an existing output again.
    """
    order = _order_of_hub(name, output, drop_bad, force) if name.startswith(PREFIX) else _order(name, output, force)
    if not force and (there := _already_there(order)) is not None:
        return Prepared(order.output, there, (), new=False)
    return prepare(order)


def _order(name: str, output: Path | None, force: bool) -> Order:
    source = named_source(name)
    return Order(
        source.source,
        output or data_folder() / f"{name}.jsonl",
        columns=source.columns,
        drop_bad=source.sample is not None,
        force=force,
        stem=source.stem or name,
        keep=source.keep,
        sample=source.sample,
        problems=source.problems,
        known=True,
    )


def _order_of_hub(name: str, output: Path | None, drop_bad: bool, force: bool) -> Order:
    repository, _ = hub_name(name, Selection())
    place = output or data_folder() / f"{repository.partition('/')[2].lower()}.jsonl"
    return Order(name, place, drop_bad=drop_bad, force=force)


def _already_there(order: Order) -> SourceRecord | None:
    """The record of an output that was made in the same way and has not changed since; another output is an error."""
    if not order.output.exists():
        return None
    record = record_file(order.output)
    recorded = SourceRecord.read(record) if record.is_file() else None
    if recorded is None or not _is_of(recorded, order):
        what = "the output is there already and is not of this source"
    elif recorded.sha256 != checksum(order.output):
        what = "the output was changed since it was made"
    else:
        return recorded
    where = None if recorded is None else record
    advice = "name another OUT, or replace it with --force"
    raise UserError(what, value=str(order.output), where=where, advice=advice)


def _is_of(recorded: SourceRecord, order: Order) -> bool:
    part = str(order.keep) if order.keep else None, order.sample.seed if order.sample else None
    same = recorded.source == order.source and (recorded.kept, recorded.sample_seed) == part
    return same and order.problems in (None, 0, recorded.problems)
