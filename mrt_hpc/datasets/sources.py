"""Opens the source of a data set and reads its rows: JSON lines, JSON, parquet or CSV, a folder of such files, or one
commit of a data set of the Hugging Face hub.

The library ``datasets`` only decides which files belong to a split: it infers types, so that a CSV file's answer 007
becomes 7, and keeps ten digits of the numbers of a JSON list.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from io import BufferedReader, TextIOWrapper
from os.path import normpath
from pathlib import Path, PurePath
from typing import Any

from mrt_hpc.datasets.columns import is_part
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.hub import commit_told, hub_errors, own_cache
from mrt_hpc.recipe.hub_models import PREFIX, cache_directory
from mrt_hpc.recipe.ownership import LONGEST_LINE, limited_lines
from mrt_hpc.run.manifest import is_of_the_filesystem
from mrt_hpc.run.problems import first_repeated, once

_NAME = re.compile(
    r"hub:(?P<repository>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[^/@\s]+))?(?:/(?P<split>[\w.-]+))?", re.ASCII
)
ONE_KIND = "a file of JSON lines (.jsonl), JSON (.json), parquet (.parquet) or CSV (.csv); texts also as .gz or .zst"
COMPRESSED = (".gz", ".zst")
"""Behind the ending of a text."""
OF_A_CARD = (ValueError, TypeError, AttributeError, LookupError, RuntimeError)
"""Raised by ``datasets`` for a card whose fields have other types, and for a folder with a program of its name."""
LARGEST_CSV_FIELD = LONGEST_LINE
"""Characters; Python's limit of 128 KiB is shorter than some solutions."""
LARGEST_JSON = 2**30
"""Bytes, decompressed."""


@dataclass(frozen=True)
class Selection:
    """The part of a data set that the user asked for; None where there is no choice."""

    revision: str | None = None
    """Branch, tag or commit of a repository of the hub."""
    config: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class SourceFile:
    name: str
    """In messages and in the record of the source: the path as typed, or the place in a repository."""
    path: Path


@dataclass(frozen=True)
class DataSource:
    name: str
    """As the user typed it."""
    files: tuple[SourceFile, ...]
    commit: str | None = None
    """Of a data set of the hub."""
    config: str | None = None
    split: str | None = None
    """None, as the configuration, for a single file."""


# -- opening a source --------------------------------------------------------------------------------------------------


def open_source(name: str, selection: Selection) -> DataSource:
    """``name`` is ``hub:OWNER/NAME``, or the path of a file or folder."""
    if name.startswith(PREFIX):
        return _hub_source(name, selection)
    path = Path(name).expanduser()
    if path.is_dir():
        _refuse(selection.revision, "revision", "a folder")
        root = path.resolve()
        config, split, places = choose(str(root), selection, name)
        files = [SourceFile(Path(place).relative_to(root).as_posix(), Path(place)) for place in places]
        return DataSource(name, tuple(files), None, config, split)
    if not path.is_file():
        raise UserError("no such source", value=name, expected=f"{ONE_KIND}, a folder of them, or hub:OWNER/NAME")
    _refuse(selection.config, "config", "a single file")
    _refuse(selection.split, "split", "a single file")
    _refuse(selection.revision, "revision", "a single file")
    return DataSource(name, (SourceFile(name, path),))


def _refuse(value: str | None, option: str, kind: str) -> None:
    if value is not None:
        raise UserError(f"{kind} has no {option}", value=value, advice=Advice("leave out --{option}", option=option))


def _hub_source(name: str, options: Selection) -> DataSource:
    """The files of one split, downloaded at the commit that the revision names now."""
    repository, asked = hub_name(name, options)
    cache = own_cache(cache_directory(), f"datasets--{repository.replace('/', '--')}")
    elsewhere = Advice(
        "where there is network, type `hf download --repo-type dataset {repository} --local-dir FOLDER`; then mrt-hpc "
        "data prepare FOLDER OUT",
        repository=repository,
    )
    with hub_errors(PREFIX + repository + (f"@{asked.revision}" if asked.revision else ""), elsewhere):
        from huggingface_hub import HfApi

        api = HfApi()
        commit = commit_told(api.dataset_info(repository, revision=asked.revision).sha)
        config, split, places = choose(repository, asked, PREFIX + repository, commit)
        names = [place.removeprefix(f"hf://datasets/{repository}@{commit}/") for place in places]
        paths = [
            api.hf_hub_download(repository, file, repo_type="dataset", revision=commit, cache_dir=cache)
            for file in names
        ]
    return DataSource(name, tuple(map(SourceFile, names, map(Path, paths))), commit, config, split)


def hub_name(text: str, options: Selection) -> tuple[str, Selection]:
    """Read ``hub:OWNER/NAME[@REVISION][/SPLIT]``: the OWNER/NAME, and the part that is asked for. Options may add to
    the name, not contradict it.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise UserError(
            "not the name of a data set of the hub",
            value=text,
            expected="hub:OWNER/NAME[@REVISION][/SPLIT]",
            advice="mrt-hpc data prepare hub:HuggingFaceH4/MATH-500/test data/math500.jsonl",
        )
    revision = _agree_on("revision", match["revision"], options.revision)
    split = _agree_on("split", match["split"], options.split)
    return match["repository"], replace(options, revision=revision, split=split)


def _agree_on(kind: str, named: str | None, option: str | None) -> str | None:
    if named is not None and option is not None and named != option:
        raise UserError(
            f"the name and the option ask for two different ones: {kind}",
            value=f"{named} and {option}",
            advice=Advice("leave out --{kind}, or leave it out of the name", kind=kind),
        )
    return option if named is None else named


def choose(path: str, asked: Selection, where: str, commit: str | None = None) -> tuple[str, str, list[str]]:
    """The configuration and the split, and the places of their data files, sorted by name.

    Args:
        path: a folder, or a data set of the hub.
        where: the data set, for messages.

    Raises:
        UserError: no data files, no such part, an open choice, or a file outside; links in the folder may lead out of
            it, as in the cache of the hub.
    """
    from datasets import exceptions, load_dataset_builder
    from yaml import YAMLError

    try:
        config = load_dataset_builder(path, asked.config, revision=commit).config
    except (exceptions.DatasetsError, FileNotFoundError, *OF_A_CARD, YAMLError) as error:
        raise UserError(
            f"the data set has no files that can be chosen: {error}",
            where=where,
            value=asked.config,
            advice="name a configuration: --config NAME; or take what the hub made of the data set: --revision "
            "refs/convert/parquet; or download the file that you mean, and name it as SOURCE",
        ) from error
    splits = sorted(map(str, config.data_files))
    split = splits[0] if asked.split is None and len(splits) == 1 else asked.split
    if split not in splits:
        raise UserError(
            "the data set has several: name one split" if split is None else "there is no such split",
            where=where,
            value=split,
            expected=f"one of {', '.join(splits)}",
            advice=Advice("--split {splits}", splits=splits[0]),
        )
    places = sorted(map(str, config.data_files[split]))
    within = path if commit is None else f"hf://datasets/{path}@{commit}"
    if outside := [place for place in places if not PurePath(normpath(place)).is_relative_to(normpath(within))]:
        raise UserError(
            "the card of the data set names a file that lies outside of it",
            where=where,
            value=outside[0],
            advice="name that file as SOURCE if you mean it",
        )
    return str(config.name), split, places


# -- reading rows ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Before its columns are read."""

    where: str
    """The file, and the line, item or row in it, counted from 1."""
    value: object


def read_rows(file: SourceFile, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """The rows of one file, in order. ``columns``: those that are needed, which saves time and memory; None reads
    all.
    """
    reader = READERS.get(kind_of(file.path.name))
    if reader is None:
        raise UserError("not a kind of data file that can be read", value=file.name, expected=ONE_KIND)
    if not file.path.is_file():
        raise UserError("no such data file", value=file.name, expected=ONE_KIND)
    return reader(file) if columns is None or reader is not _parquet else _parquet(file, columns)


def kind_of(name: str) -> str:
    """As ``.jsonl`` of ``rows.jsonl.gz``; a parquet file has no other ending behind its own."""
    path = PurePath(name.lower())
    inner = PurePath(path.stem).suffix
    return inner if path.suffix in COMPRESSED and inner != ".parquet" else path.suffix


def columns_of(file: SourceFile) -> dict[str, bool]:
    """In the order in which the rows name them, and whether each holds any text or list."""
    if READERS.get(kind_of(file.path.name)) is _parquet and file.path.is_file():
        from pyarrow import parquet

        with _reading_parquet(file):
            names = [str(name) for name in parquet.read_schema(file.path).names]
        return {name: _holds_text(file, name) for name in names}
    columns: dict[str, bool] = {}
    for row in read_rows(file):
        for name, value in row.value.items() if isinstance(row.value, dict) else ():
            columns[str(name)] = columns.get(str(name), False) or _counts(str(name), value)
    return columns


def _holds_text(file: SourceFile, column: str) -> bool:
    """Of a parquet file, whose rows are read up to the first text or list."""
    return any(
        isinstance(row.value, dict) and _counts(column, row.value.get(column)) for row in _parquet(file, [column])
    )


def _counts(column: str, value: object) -> bool:
    """A text or a list may belong to the problem; of a column named like a part, anything."""
    missing = value is None or value == "" or value != value  # NaN, by which a table marks an empty cell
    return _is_text(value) or (is_part(column) and not missing and value is not False)


def _is_text(value: object) -> bool:
    """A list or an object with content, or a text that is no number."""
    if not isinstance(value, str):
        return isinstance(value, (list, dict)) and bool(value)
    try:
        float(value)
    except ValueError:
        return bool(value.strip())
    return False


@contextmanager
def _open_text(file: SourceFile) -> Iterator[BufferedReader]:
    """Decompressed as the file's ending says."""
    import pyarrow as pa

    try:
        with pa.input_stream(str(file.path), compression="detect") as stream:
            yield BufferedReader(stream)
    except OSError as error:
        if is_of_the_filesystem(error):
            raise
        raise UserError(
            f"the file cannot be read whole: {error}", where=file.name, advice="fetch or write the file once more"
        ) from error


def _json_lines(file: SourceFile) -> Iterator[Row]:
    with _open_text(file) as stream:
        for number, line in enumerate(limited_lines(stream, file.name), start=1):
            if line.strip():
                where = f"{file.name}, line {number}"
                yield Row(where, _parse_json(line, where))


def _json(file: SourceFile) -> Iterator[Row]:
    """The items of a list, or of the one list in an object. Some tools write JSON lines under this ending, too."""
    with _open_text(file) as stream:
        content = stream.read(LARGEST_JSON + 1)
    if len(content) > LARGEST_JSON:
        raise UserError(
            "the file is too large for JSON that is read whole",
            where=file.name,
            expected=f"at most {LARGEST_JSON:,} bytes, decompressed",
            advice="write the rows as JSON lines, one object a line, into a file that ends in .jsonl",
        )
    if _is_lines(content):
        yield from _json_lines(file)
        return
    for number, item in enumerate(_items(_parse_json(content, file.name), file.name), start=1):
        yield Row(f"{file.name}, item {number}", item)


def _is_lines(content: bytes) -> bool:
    """Whether the first line is an object of its own and more follows."""
    first, _, rest = content.lstrip().partition(b"\n")
    if not (first.startswith(b"{") and rest.strip()):
        return False
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return False
    return True


def _items(value: object, where: str) -> list[object]:
    if isinstance(value, list):
        return value
    lists = {name: part for name, part in value.items() if isinstance(part, list)} if isinstance(value, dict) else {}
    if len(lists) != 1:
        raise UserError(
            "the file has no single list of rows",
            where=where,
            value=sorted(lists) or type(value).__name__,
            expected="a list of objects, or an object with one list of objects",
            advice="write the rows as JSON lines, one object a line, into a file that ends in .jsonl",
        )
    return next(iter(lists.values()))


def _parse_json(text: bytes, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=once, parse_float=Decimal)  # it keeps all digits
    except (ValueError, RecursionError, InvalidOperation) as error:
        raise UserError(
            f"not JSON: {error}", where=where, value=text[:80], advice="fetch or write the file once more"
        ) from error


def _csv(file: SourceFile) -> Iterator[Row]:
    number = 0
    usual = csv.field_size_limit(LARGEST_CSV_FIELD)
    try:
        with _open_text(file) as stream:
            text = TextIOWrapper(stream, encoding="utf-8-sig", newline="")
            reader = csv.DictReader(limited_lines(text, file.name), strict=True)
            if twice := first_repeated(filter(None, reader.fieldnames or ())):
                raise csv.Error(f"column {twice} stands there twice")
            for number, value in enumerate(reader, start=1):
                if None in value or None in value.values():
                    raise csv.Error(f"row {number} has more or fewer cells than there are columns")
                yield Row(f"{file.name}, row {number}", value)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(
            f"not a CSV file that can be read: {error}",
            where=f"{file.name}, after row {number}",
            expected="UTF-8 text whose first line names the columns",
            advice="fetch or write the file once more",
        ) from error
    finally:
        csv.field_size_limit(usual)


def _parquet(file: SourceFile, columns: Sequence[str] | None = None) -> Iterator[Row]:
    from pyarrow import parquet

    number = 0
    with _reading_parquet(file), parquet.ParquetFile(file.path) as table:
        if twice := first_repeated(table.schema_arrow.names):
            raise ValueError(f"column {twice} stands there twice")
        for batch in table.iter_batches(columns=None if columns is None else list(columns)):
            for value in batch.to_pylist():
                number += 1
                yield Row(f"{file.name}, row {number}", value)


@contextmanager
def _reading_parquet(file: SourceFile) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, ValueError, OverflowError) as error:  # of a page, a text, a time in it
        if is_of_the_filesystem(error):
            raise
        raise UserError(
            f"not a parquet file that can be read: {error}", where=file.name, advice="fetch or write the file once more"
        ) from error


READERS: dict[str, Callable[[SourceFile], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
    ".csv": _csv,
}
