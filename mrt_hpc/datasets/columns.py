"""Finds the columns of a data set of the problem, the gold answer and the id, and reads their values as texts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mrt_hpc.domains.boxed import extract_answer
from mrt_hpc.errors import UserError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROBLEM_NAMES = ("problem", "question", "prompt", "query")
ANSWER_NAMES = ("answer", "final_answer", "expected_answer", "gold_answer", "ground_truth")
SOLUTION_NAMES = ("solution",)
r"""Columns of whole solutions, whose last ``\boxed{}`` holds the answer."""
ID_NAMES = ("id", "unique_id", "problem_id", "question_id")
_MARKED = re.compile(r"####\s*(\S.*)")
"""The last line of some solutions, which holds the answer."""
_HALF = re.compile("[\ud800-\udfff]")
"""Half of a character, as a JSON file may hold it."""


class BadRowError(Exception):
    """A row that makes no problem; the text says why."""


@dataclass(frozen=True)
class Asked:
    """The columns that the user named; None leaves one to the known names."""

    problem: str | None = None
    answer: str | None = None
    id: str | None = None
    new_ids: bool = False
    """Whether every row gets a new id, also where there is a column of ids."""


@dataclass(frozen=True)
class Columns:
    """The columns that are read. A name with points, as in ``reward_model.ground_truth``, reaches into a column."""

    problem: str
    answer: str
    id: str | None
    """None: ids are made."""


def find_columns(names: Sequence[str], asked: Asked) -> Columns:
    """The columns to read: those that were named, else the first known name of each kind, in any case of letters.

    Args:
        names: all columns of the source.
        asked: the columns that the user named.

    Raises:
        UserError: a named column is missing, or no column has a known name.
    """
    return Columns(
        problem=_required(names, asked.problem, PROBLEM_NAMES, "problem"),
        answer=_required(names, asked.answer, ANSWER_NAMES + SOLUTION_NAMES, "answer"),
        id=None if asked.new_ids else _chosen(names, asked.id, ID_NAMES, "id"),
    )


def _required(names: Sequence[str], asked: str | None, known: Sequence[str], kind: str) -> str:
    found = _chosen(names, asked, known, kind)
    if found is None:
        raise UserError(
            f"no column has a known name for the {kind}",
            value=list(names),
            expected=f"one of {', '.join(known)}",
            advice=f"name the column that holds the {kind}: --{kind} COLUMN",
        )
    return found


def _chosen(names: Sequence[str], asked: str | None, known: Sequence[str], kind: str) -> str | None:
    if asked is None:
        return _known(names, known)
    if asked not in names and asked.split(".")[0] not in names:
        guess = nearest(asked, names)
        raise UserError(
            f"there is no such column for the {kind}",
            value=asked,
            expected=f"one of {', '.join(names)}",
            advice=f"--{kind} {guess}" if guess else f"--{kind} COLUMN, with one of these columns",
        )
    return asked


def _known(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The first known name that a column has; of columns that differ in case alone, the first."""
    by_lower = {name.lower(): name for name in reversed(names)}
    return next((by_lower[name] for name in known if name in by_lower), None)


def value_of(row: Mapping[str, Any], column: str) -> object:
    """The value of a column, None where the row has none."""
    if column in row:
        return row[column]
    first, _, rest = column.partition(".")
    inner = row.get(first)
    return value_of(inner, rest) if rest and isinstance(inner, dict) else None


def problem_text(value: object, column: str) -> str:
    """The problem: a text, or the one message of the user in a list of messages.

    Raises:
        BadRowError: it is neither, or empty.
    """
    return _text(_message(value, column) if isinstance(value, list) else value, column)


def _message(value: list[Any], column: str) -> object:
    asked = [part.get("content") for part in value if isinstance(part, dict) and part.get("role") == "user"]
    if len(asked) != 1:
        raise BadRowError(f"{column} is a list of {len(asked)} messages of the user: it takes one")
    return asked[0]


def answer_text(value: object, column: str) -> str:
    r"""The gold answer: what follows ``####`` in the last line, else the content of the last ``\boxed{}``, else
    the whole text.

    Raises:
        BadRowError: there is no text, or a whole solution has no box.
    """
    text = _text(value[0] if isinstance(value, list) and len(value) == 1 else value, column)
    marked = _MARKED.fullmatch(text.splitlines()[-1])
    found = marked[1] if marked else extract_answer(text)
    if found is None and column.split(".")[-1].lower() in SOLUTION_NAMES:
        raise BadRowError(rf"{column} has no \boxed{{}} with an answer in it")
    return _text(text if found is None else found, column)


def id_text(value: object, column: str) -> str:
    """The id as a text.

    Raises:
        BadRowError: it is empty, or neither text nor number.
    """
    return _text(value, column)


def _text(value: object, column: str) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise BadRowError(f"{column} is missing or no finite number")
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise BadRowError(f"{column} is of type {type(value).__name__}: it takes a text or a number")
    text = _number(value) if isinstance(value, float) else str(value).strip()
    if not text:
        raise BadRowError(f"{column} is empty")
    if _HALF.search(text):
        raise BadRowError(f"{column} holds half of a character, which no file can hold as UTF-8")
    return text


def _number(value: float) -> str:
    """A number as people write it: 27 for 27.0, since a table with empty cells makes all its integers so."""
    return str(int(value)) if value.is_integer() else repr(value)
