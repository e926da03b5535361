"""Fetches a data set of the hub by its name, and makes the data file of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mrt_hpc.datasets.hub import hub_name
from mrt_hpc.datasets.named import named_source
from mrt_hpc.datasets.prepare import Order, Prepared, prepare
from mrt_hpc.datasets.repository import Selection
from mrt_hpc.datasets.source_record import SourceRecord, record_file
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.hub_models import PREFIX
from mrt_hpc.run.atomic import checksum

FOLDER = Path("data")
"""The folder of data files, unless the user names another."""


@dataclass(frozen=True)
class Fetched:
    """A data file and the record of its source."""

    prepared: Prepared
    new: bool
    """False where the file was there already."""


def fetch_data(name: str, output: Path | None, *, drop_bad: bool = False, force: bool = False) -> Fetched:
    """Fetch a data set and write its data file; where the same file is there already, nothing is done.

    Args:
        name: of a known data set, or ``hub:OWNER/NAME[@REVISION][/SPLIT]``.
        output: the data file; None takes ``data/NAME.jsonl``.
        drop_bad: whether rows that make no problem are left out, of a data set of the hub.
        force: whether an output that is there is made again.

    Raises:
        UserError: there is no such data set, the output is there and is another, the hub cannot be reached, or the data
            set does not hold what the name promises.
    """
    order = _order_of_hub(name, output, drop_bad, force) if name.startswith(PREFIX) else _order(name, output, force)
    if not force and (there := _already_there(order)) is not None:
        return Fetched(Prepared(order.output, there, ()), new=False)
    return Fetched(prepare(order), new=True)


def _order(name: str, output: Path | None, force: bool) -> Order:
    source = named_source(name)
    return Order(
        source.source,
        output or FOLDER / f"{name}.jsonl",
        columns=source.columns,
        drop_bad=source.sample is not None,
        force=force,
        stem=source.stem,
        keep=source.keep,
        sample=source.sample,
        problems=source.problems,
        known=True,
    )


def _order_of_hub(name: str, output: Path | None, drop_bad: bool, force: bool) -> Order:
    repository = hub_name(name, Selection()).repository
    place = output or FOLDER / f"{repository.partition('/')[2].lower()}.jsonl"
    return Order(name, place, drop_bad=drop_bad, force=force)


def _already_there(order: Order) -> SourceRecord | None:
    """The record of an output that was made from the same source in the same way and has not changed since.

    Raises:
        UserError: the output is there and is another.
    """
    if not order.output.exists():
        return None
    record = record_file(order.output)
    found = SourceRecord.read(record) if record.is_file() else None
    same = found is not None and found.source == order.source and (found.kept, found.sample_seed) == _part(order)
    if found is None or not same or (order.problems or found.problems) != found.problems:
        raise UserError(
            "the output is there already and is not of this source",
            value=str(order.output),
            where=record if found is not None else None,
            advice="name another OUT, or replace it with --force",
        )
    if found.sha256 != checksum(order.output):
        raise UserError(
            "the output was changed since it was made",
            value=str(order.output),
            where=record,
            advice="name another OUT, or replace it with --force",
        )
    return found


def _part(order: Order) -> tuple[str | None, int | None]:
    return str(order.keep) if order.keep else None, order.sample.seed if order.sample else None
