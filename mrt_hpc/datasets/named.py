"""The data sets of the paper: where each is on the hub, and which part is taken. The commits are fixed, so that a name
always means the same problems.
"""

from dataclasses import replace
from pathlib import Path

from mrt_hpc.datasets.columns import Columns
from mrt_hpc.datasets.conversion import AtMost, Order, Prepared, Sample, SourceRecord, prepare, record_file
from mrt_hpc.errors import Advice, UserError, nearest
from mrt_hpc.recipe.find import data_folder
from mrt_hpc.recipe.hub_models import PREFIX
from mrt_hpc.run.atomic import checksum

_NUMINA = Order(
    "hub:AI-MO/NuminaMath-CoT@9d8d210c9f6a36c8f3cd84045668c9b7800ef517/train",
    Path("numina_math_4000.jsonl"),
    columns=Columns("problem", "solution"),
    drop_bad=True,
    stem="numina_math",
    sample=Sample(4_000),
    problems=4_000,
    about="training problems of the paper: 4,000 of 859,494 of NuminaMath-CoT, seed 0",
)


def _benchmark(title: str, name: str, problems: int, source: str, columns: Columns) -> Order:
    output, about = Path(f"{name}.jsonl"), f"benchmark {title}"
    return Order(f"hub:{source}", output, columns=columns, problems=problems, about=about)


_AIME24 = "HuggingFaceH4/aime_2024@2fe88a2f1091d5048c0f36abc874fb997b3dd99a/train"
_AIME25 = "math-ai/aime25@563bb8404243c5f09de6ec262f2db674fe5bce9b/test"
_AMC23 = "math-ai/amc23@80815d37005feb82cd7f8fbc6901d5d3eff43057/test"
_MINERVA = "math-ai/minervamath@ee46ddc498933b1977577953250ca5c66be64f96/test"
_MATH500 = "HuggingFaceH4/MATH-500@6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be/test"
ORDERS = (
    _benchmark("AIME 2024", "aime24", 30, _AIME24, Columns("problem", "answer")),
    _benchmark("AIME 2025", "aime25", 30, _AIME25, Columns("problem", "answer")),
    _benchmark("AMC 2023", "amc23", 40, _AMC23, Columns("question", "answer")),
    _benchmark("MinervaMATH", "minerva_math", 272, _MINERVA, Columns("question", "answer")),
    _benchmark("MATH500", "math500", 500, _MATH500, Columns("problem", "answer", "unique_id")),
    _NUMINA,
    replace(
        _NUMINA,
        output=Path("numina_math_10000.jsonl"),
        sample=Sample(10_000),
        problems=10_000,
        about="problems of STaR in the paper: 10,000 of NuminaMath-CoT, seed 0; they hold the 4,000",
    ),
    Order(
        "hub:di-zhang-fdu/AIME_1983_2024@3e2cc86390666c5c756622afc0eeb9e6194496bc/train",
        Path("aime_1983_2023.jsonl"),
        columns=Columns("Question", "Answer", "ID"),
        keep=AtMost("Year", 2023),
        problems=919,
        about="training problems of the paper for DeepScaleR: AIME 1983 to 2023",
    ),
)
BY_NAME = {order.output.stem: order for order in ORDERS}


def fetch_command(path: Path) -> str | None:
    """For a missing data file that recipes name; None where its name is not that of a known data set."""
    return (
        Advice("mrt-hpc data fetch {stem} {path}", stem=path.stem, path=path)
        if path.suffix == ".jsonl" and path.stem in BY_NAME
        else None
    )


def fetch_data(name: str, output: Path | None, *, force: bool = False) -> Prepared:
    """Fetch a data set of the paper and write its data file; does nothing where the same file is there.

    Args:
        output: None takes ``NAME.jsonl`` in the user's data folder.
        force: make an existing output again.
    """
    order = _known_order(name)
    order = replace(order, output=output or data_folder() / order.output, force=force)
    if not force and (there := _already_there(order)) is not None:
        return Prepared(order.output, there, new=False)
    return prepare(order)


def _known_order(name: str) -> Order:
    if (order := BY_NAME.get(name)) is not None:
        return replace(order, stem=order.stem or name)
    guess = nearest(name, BY_NAME)
    raise UserError(
        "there is no data set of this name",
        value=name,
        expected=", ".join(BY_NAME),
        advice=Advice("mrt-hpc data prepare {name} OUT", name=name)
        if name.startswith(PREFIX)
        else Advice("mrt-hpc data fetch {guess}", guess=guess)
        if guess
        else "mrt-hpc data fetch --list",
    )


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
    advice = "name another OUT, or replace it with --force"
    raise UserError(what, value=str(order.output), where=record if recorded else None, advice=advice)


def _is_of(recorded: SourceRecord, order: Order) -> bool:
    part = str(order.keep) if order.keep else None, order.sample.seed if order.sample else None
    same = recorded.source == order.source and (recorded.kept, recorded.sample_seed) == part
    return same and order.problems in (None, recorded.problems)
