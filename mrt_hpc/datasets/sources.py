"""Opens the source of a data set and reads its rows: JSON lines, JSON, parquet or CSV, a folder of such files, or one
commit of a data set of the Hugging Face hub.

The library ``datasets`` only decides which files belong to a split: it infers types, so that a CSV file's answer 007
becomes 7. Nor does pyarrow read CSV: it takes all that follows an open quote for one cell.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from io import StringIO, TextIOWrapper
from os.path import normpath
from pathlib import Path, PurePath
from typing import Any, TextIO

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.hub import commit_told, hub_errors, own_cache
from mrt_hpc.recipe.hub_models import PREFIX, cache_directory
from mrt_hpc.recipe.ownership import LONGEST_LINE, limited_lines
from mrt_hpc.run.manifest import is_of_the_filesystem
from mrt_hpc.run.problems import first_repeated, once

_NAME = re.compile(
    r"hub:(?P<repository>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[^/@\s]+))?(?:/(?P<split>[\w.-]+))?", re.ASCII
)
ONE_KIND = "a file of JSON lines (.jsonl), JSON (.json), parquet (.parquet) or CSV (.csv, .tsv); texts also .gz or .zst"
KINDS = {".jsonl": "line", ".ndjson": "line", ".json": "item", ".csv": "row", ".tsv": "row", ".parquet": "row"}
"""What a file of each ending consists of."""
TABLES = {".csv": ",", ".tsv": "\t"}
"""What separates their cells."""
COMPRESSED = (".gz", ".zst")
"""Behind the ending of a text."""
OF_A_CARD = (ValueError, TypeError, AttributeError, LookupError, RuntimeError)
"""Raised by ``datasets`` for a card whose fields have other types, and for a folder with a program of its name."""
TAB = ("tab", "\\t")
"""What a shell takes for the sign itself."""
LARGEST_JSON = 2**30
"""Bytes, decompressed."""
PARQUET_ROWS = 1000
"""Read at once: some hold pictures."""
BLANK = object()
"""An empty line among rows."""
OTHER_ENCODING = "--encoding latin-1, or the one in which the file was written, such as cp1252 or utf-16"
OTHER_DELIMITER = "correct that row; or name what separates the cells, as in --delimiter ';' or --delimiter tab"


@dataclass(frozen=True)
class Selection:
    """The part of a data set that the user asked for, and how its texts are read; None where there is no choice."""

    revision: str | None = None
    """Branch, tag or commit of a repository of the hub."""
    config: str | None = None
    split: str | None = None
    delimiter: str | None = None
    """Of a CSV file, ``tab`` too; None takes what its ending says."""
    encoding: str | None = None
    """Of a text; None takes UTF-8."""


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
        _refuse_options(selection, "a folder", "revision")
        root = path.resolve()
        config, split, places = choose(str(root), selection, name)
        files = [SourceFile(Path(place).relative_to(root).as_posix(), Path(place)) for place in places]
        return DataSource(name, tuple(files), None, config, split)
    if not path.is_file():
        raise UserError("no such source", value=name, expected=f"{ONE_KIND}, a folder of them, or hub:OWNER/NAME")
    _refuse_options(selection, "a single file", "config", "split", "revision")
    return DataSource(name, (SourceFile(name, path),))


def _refuse_options(given: Selection, kind: str, *options: str) -> None:
    for option in options:
        if (value := getattr(given, option)) is not None:
            raise UserError(
                f"{kind} has no {option}", value=value, advice=Advice("leave out --{option}", option=option)
            )


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
    named = {kind: match[kind] for kind in ("revision", "split") if match[kind] is not None}
    for kind, value in named.items():
        if (option := getattr(options, kind)) not in (None, value):
            raise UserError(
                f"the name and the option ask for two different ones: {kind}",
                value=f"{value} and {option}",
                advice=Advice("leave out --{kind}, or leave it out of the name", kind=kind),
            )
    return match["repository"], replace(options, **named)


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


Row = tuple[str, object]
"""The file, and the line, item or row in it, counted from 1; and what stands there."""


def read_rows(file: SourceFile, asked: Selection = Selection(), columns: Sequence[str] | None = None) -> Iterator[Row]:
    """The rows of one file, in order. ``columns``: those of a parquet file that are needed, which saves time and
    memory; None reads all.
    """
    from pyarrow import ArrowException

    kind = kind_of(file.path.name)
    if kind not in KINDS or not file.path.is_file():
        advice = "save a table as .csv, other rows as .jsonl, and name that file"
        raise UserError("not a data file that can be read", value=file.name, expected=ONE_KIND, advice=advice)
    if kind not in TABLES:
        _refuse_options(asked, f"a {kind} file", "delimiter")
    if kind == ".parquet":
        _refuse_options(asked, f"a {kind} file", "encoding")
    number = 0
    try:
        values = _parquet(file, columns) if kind == ".parquet" else _texts(file, kind, asked)
        for number, value in enumerate(values, start=1):
            if value is not BLANK:
                yield f"{file.name}, {KINDS[kind]} {number}", value
    except (ArrowException, OSError, ValueError, RecursionError, OverflowError, InvalidOperation, csv.Error) as error:
        if is_of_the_filesystem(error):
            raise
        raise UserError(
            f"the file cannot be read: {error}",
            where=f"{file.name}, from {KINDS[kind]} {number + 1} on",
            advice=OTHER_ENCODING
            if isinstance(error, UnicodeError)
            else OTHER_DELIMITER
            if isinstance(error, csv.Error)
            else "fetch or write the file once more",
        ) from error


def kind_of(name: str) -> str:
    """As ``.jsonl`` of ``rows.jsonl.gz``; a parquet file has no other ending behind its own."""
    path = PurePath(name.lower())
    inner = PurePath(path.stem).suffix
    return inner if path.suffix in COMPRESSED and inner != ".parquet" else path.suffix


def _texts(file: SourceFile, kind: str, asked: Selection) -> Iterator[object]:
    """The objects of a file that is decompressed as its ending says."""
    import pyarrow as pa

    with pa.input_stream(str(file.path), compression="detect") as stream:
        try:
            text = TextIOWrapper(stream, asked.encoding or "utf-8-sig", newline="")
        except LookupError as error:
            raise UserError(str(error), advice=OTHER_ENCODING) from error
        if kind == ".json":
            yield from _json(file, text)
        elif kind in TABLES:
            yield from _csv(file, text, asked.delimiter or TABLES[kind])
        else:
            yield from map(_parse_json, limited_lines(text, file.name))


def _json(file: SourceFile, text: TextIO) -> Iterator[object]:
    """The items of a list, or of the one list in an object. Some tools write JSON lines under this ending, too."""
    content = text.read(LARGEST_JSON + 1)
    if len(content) > LARGEST_JSON:
        raise UserError(
            "the file is too large for JSON that is read whole",
            where=file.name,
            expected=f"at most {LARGEST_JSON:,} characters, decompressed",
            advice="write the rows as JSON lines, one object a line, into a file that ends in .jsonl",
        )
    try:
        value = _parse_json(content)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise
        yield from map(_parse_json, StringIO(content))
        return
    lists = [part for part in (value.values() if isinstance(value, dict) else [value]) if isinstance(part, list)]
    if len(lists) != 1:
        raise ValueError(f"{len(lists)} lists of rows where one is expected")
    yield from lists[0]


def _parse_json(text: str) -> Any:
    """A number keeps all its digits."""
    return json.loads(text, object_pairs_hook=once, parse_float=Decimal) if text.strip() else BLANK


def _csv(file: SourceFile, text: TextIO, delimiter: str) -> Iterator[object]:
    csv.field_size_limit(LONGEST_LINE)  # that of Python is shorter than some solutions
    if len(separator := "\t" if delimiter in TAB else delimiter) != 1:
        raise UserError("a delimiter is one character", value=delimiter, advice=OTHER_DELIMITER)
    reader = csv.DictReader(limited_lines(text, file.name), delimiter=separator, strict=True)
    names = [name for name in reader.fieldnames or () if name]
    if twice := first_repeated(names):
        raise ValueError(f"column {twice} stands there twice")
    if len(names) == 1 and (others := [sign for sign in ",;|\t" if sign in names[0]]):
        raise UserError(
            "the cells are separated by another character",
            where=file.name,
            value=names[0],
            advice=Advice("--delimiter {sign}", sign=others[0].replace("\t", TAB[0])),
        )
    for value in reader:
        if None in value or None in value.values():
            raise csv.Error("it has more or fewer cells than there are columns")
        yield value


def _parquet(file: SourceFile, columns: Sequence[str] | None) -> Iterator[object]:
    from pyarrow import parquet

    with parquet.ParquetFile(file.path) as table:
        if twice := first_repeated(table.schema_arrow.names):
            raise ValueError(f"column {twice} stands there twice")
        for batch in table.iter_batches(PARQUET_ROWS, columns=None if columns is None else [*columns]):
            yield from batch.to_pylist()
