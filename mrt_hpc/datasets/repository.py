"""Chooses the files of one split of a data set among the files of a repository or a folder.

The card of the data set (README.md) may say which files belong to which configuration and split. Without it the names
of files and folders tell, by the conventions of the Hugging Face hub.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from mrt_hpc.datasets.rows import READERS, kind_of
from mrt_hpc.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

CARD = "README.md"
DEFAULT = "default"
"""The configuration of files that stand in none; it is taken where several are there and the card marks no other."""
SPLITS = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
}  # fmt: skip
"""Words in a name, and the split that they mean."""
_SHARD = re.compile(r"(?:^|/)([^/]+?)-\d{5}-of-\d{5}[^/]*$")
_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Selection:
    """The part of a data set that the user asked for; None where the data set leaves no choice."""

    revision: str | None = None
    """Branch, tag or commit of a repository of the hub."""
    config: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class Part:
    """A configuration and a split of a data set."""

    config: str
    split: str


@dataclass(frozen=True)
class Chosen:
    """The files of one part, by name."""

    part: Part
    names: tuple[str, ...]


def choose(names: Sequence[str], card: str, selection: Selection, where: str) -> Chosen:
    """The data files of the split that was asked for, sorted by name.

    Args:
        names: all files of the repository, with ``/`` between folders.
        card: the text of its README.md; empty where it has none.
        selection: what was asked for.
        where: the repository, for messages.

    Raises:
        UserError: there are no data files, the choice is open, there is no such part, or it has files of several kinds.
    """
    configs = _configs(card, where)
    parts = _parts(names, configs)
    if not parts:
        raise UserError(
            "no data file that can be read",
            where=where,
            value=sorted(names)[:8],
            expected=f"files that end in {', '.join(READERS)}",
            advice="for a data set of the hub, try what the hub made of it: --revision refs/convert/parquet",
        )
    config = _one([part.config for part in parts], selection.config, "config", where, _default_config(parts, configs))
    split = _one([part.split for part in parts if part.config == config], selection.split, "split", where, None)
    part = Part(config, split)
    return Chosen(part, _of_one_kind(parts[part], where))


def _default_config(parts: dict[Part, list[str]], configs: list[dict[str, Any]]) -> str | None:
    marked = next((str(config["config_name"]) for config in configs if config.get("default")), DEFAULT)
    return marked if any(part.config == marked for part in parts) else None


def _one(there: Iterable[str], asked: str | None, kind: str, where: str, default: str | None) -> str:
    choices = list(dict.fromkeys(there))
    wanted = asked if asked is not None else default if default is not None or len(choices) > 1 else choices[0]
    if wanted is None or wanted not in choices:
        raise UserError(
            f"the data set has several: name one {kind}" if wanted is None else f"there is no such {kind}",
            where=where,
            value=wanted,
            expected=f"one of {', '.join(choices)}",
            advice=f"--{kind} {choices[0]}",
        )
    return wanted


def _of_one_kind(names: list[str], where: str) -> tuple[str, ...]:
    """The same rows are often there as JSON and as parquet: both together would hold each problem twice. A CSV file
    beside another kind is such a copy; only where there is nothing else it is the data set.
    """
    names = [name for name in names if kind_of(name) != ".csv"] or names
    kinds = sorted({kind_of(name) for name in names})
    if len(kinds) > 1:
        raise UserError(
            "the split has files of several kinds, which may hold the same rows",
            where=where,
            value=names[:8],
            expected=f"files of one kind of {', '.join(kinds)}",
            advice="download the one file that you mean, and name it as SOURCE",
        )
    return tuple(sorted(names))


def _parts(names: Sequence[str], configs: list[dict[str, Any]]) -> dict[Part, list[str]]:
    """The data files of each part; by their names where the card declares none."""
    readable = [name for name in names if _is_data(name)]
    declared = list(_declared(readable, configs))
    found: dict[Part, list[str]] = {}
    for name, part in declared or [(name, _part_of(name)) for name in readable]:
        if name not in found.setdefault(part, []):
            found[part].append(name)
    return found


def _is_data(name: str) -> bool:
    path = PurePosixPath(name)
    return kind_of(name) in READERS and not any(piece.startswith((".", "_")) for piece in path.parts)


def _part_of(name: str) -> Part:
    path = PurePosixPath(name)
    folders = [piece for piece in path.parts[:-1] if piece != "data" and _split_word(piece) is None]
    return Part("/".join(folders) or DEFAULT, _split_of(name))


def _split_of(name: str) -> str:
    """The split of a name, as in ``data/test-00000-of-00001.parquet``, ``val.jsonl`` or ``test/0000.parquet``."""
    shard = _SHARD.search(name)
    stem = str(PurePosixPath(name).with_suffix(""))
    return shard[1] if shard else _split_word(stem) or "train"


def _split_word(text: str) -> str | None:
    """The split that the last telling word of a text means."""
    words = re.split(r"[^a-z0-9]+", text.lower())
    return next((SPLITS[word] for word in reversed(words) if word in SPLITS), None)


def _declared(names: Sequence[str], configs: list[dict[str, Any]]) -> Iterator[tuple[str, Part]]:
    """The files that the card declares, with their parts."""
    for config in configs:
        config_name = str(config["config_name"])
        for split, pattern in _patterns(config.get("data_files")):
            for name in names:
                if _matches(name, pattern):
                    yield name, Part(config_name, split if split is not None else _split_of(name))


def _configs(card: str, where: str) -> list[dict[str, Any]]:
    matter = _FRONT_MATTER.search(card.lstrip("\ufeff"))
    if matter is None:
        return []
    try:
        declared = YAML(typ="safe").load(matter[1])
    except YAMLError as error:
        raise UserError(
            f"the card of the data set is no YAML: {error}",
            where=f"{where}, {CARD}",
            advice="download the file that you mean, and name it as SOURCE",
        ) from error
    configs = declared.get("configs") if isinstance(declared, dict) else None
    found = configs if isinstance(configs, list) else []
    return [config for config in found if isinstance(config, dict) and "config_name" in config]


def _patterns(declared: Any) -> Iterator[tuple[str | None, str]]:
    """(split, pattern) of ``data_files``, which is a pattern, a list of them, or a list of splits with theirs."""
    for entry in declared if isinstance(declared, list) else [declared]:
        if isinstance(entry, str):
            yield None, entry
        elif isinstance(entry, dict):
            paths = entry.get("path", [])
            for path in [paths] if isinstance(paths, str) else paths:
                yield str(entry.get("split", "train")), path


def _matches(name: str, pattern: str) -> bool:
    """Whether a name fits a pattern whose ``*`` stays within a folder and whose ``**`` does not."""
    if "**" in pattern:
        return fnmatchcase(name, pattern.replace("**/", "*"))
    return name.count("/") == pattern.count("/") and fnmatchcase(name, pattern)
