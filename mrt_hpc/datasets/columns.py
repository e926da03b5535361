"""Finds the columns of the problem, the gold answer and the id, and reads their values as texts."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, Self

from mrt_hpc.domains.extraction import extract_answer
from mrt_hpc.domains.verifiers import LETTERS
from mrt_hpc.errors import Advice, UserError, nearest
from mrt_hpc.run.records import Gold

PROBLEM_NAMES = ("problem", "question", "prompt", "query")
ANSWER_NAMES = ("answer", "final_answer", "expected_answer", "gold_answer", "ground_truth", "gold")
SOLUTION_NAMES = ("solution",)
r"""Columns of whole solutions, whose last ``\boxed{}`` holds the answer."""
ID_NAMES = ("id", "unique_id", "problem_id", "question_id")
CONTEXT_NAMES = re.compile(
    r"(?:body|contexts?|passages?|paragraphs?|story|background|premises?|tables?)"
    r"|(?:images?|figures?|diagrams?|pictures?)(?:[_ ]?[0-9]+)?|(?:options?|choices?)(?:[_ ]?[a-z0-9])?|[a-e]"
)
"""In small letters, columns that hold a part of the question."""
VERDICT_NAMES = re.compile("errors?|tolerance|precision|units?")
"""In small letters, columns by which an answer is right or wrong."""
_MARKED = re.compile(r"####\s*(\S.*)")
"""The last line of some solutions, which holds the answer."""
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_OWN_LETTER = re.compile(r"\(?([A-Za-z])[).:]\s*")
_HALF = re.compile("[\ud800-\udfff]")
"""Half of a character, as a JSON file may hold it."""
EXACT_BELOW = 2.0**53
"""From here on not every integer has a floating-point number of its own."""


class BadRowError(Exception):
    """A row that makes no problem; the text says why."""


class BadIdError(BadRowError):
    """A row that makes no problem only because of its id."""


@dataclass(frozen=True)
class Asked:
    """The columns that the user named; None leaves one to the known names."""

    problem: str | None = None
    """One column, or several with ``+`` between them, as in ``Body+Question``."""
    answer: str | None = None
    id: str | None = None
    new_ids: bool = False
    """Whether every row gets a new id, also where there is a column of ids."""
    choices: str | None = None
    """The column of choices, which are written below the problem with letters."""
    ignored: tuple[str, ...] = ()
    """Columns that a problem is complete without."""
    any_answer: bool = False
    """Whether any one answer of a list is right; otherwise such a list makes no problem, as all of its answers together
    may be meant.
    """


@dataclass(frozen=True)
class Columns:
    """The columns that are read. A name with points, as ``reward_model.ground_truth``, reaches into a column."""

    problem: str
    """One, or several with ``+`` between them."""
    answer: str
    id: str | None
    """None: ids are made."""
    choices: str | None = None
    """None: no multiple choice."""
    any_answer: bool = False

    @property
    def problem_columns(self) -> list[str]:
        """In the order in which their texts follow each other."""
        return self.problem.split("+")

    @property
    def read(self) -> list[str]:
        return [name for name in (*self.problem_columns, self.answer, self.id, self.choices) if name is not None]


def find_columns(names: Sequence[str], asked: Asked) -> Columns:
    """The columns to read: those that were named, else the first known name of each kind, in any case of letters."""
    parts = [None] if asked.problem is None else asked.problem.split("+")
    return Columns(
        problem="+".join(_require_column(names, part, PROBLEM_NAMES, "problem") for part in parts),
        answer=_require_column(names, asked.answer, ANSWER_NAMES + SOLUTION_NAMES, "answer"),
        id=None if asked.new_ids else _choose_column(names, asked.id, ID_NAMES, "id"),
        choices=None if asked.choices is None else _choose_column(names, asked.choices, (), "choices"),
        any_answer=asked.any_answer,
    )


def unread_columns(filled: Mapping[str, bool], columns: Columns, asked: Asked) -> list[str]:
    """The columns with texts or lists that are neither read nor left out by the user.

    Args:
        filled: all columns, and whether each holds any text or list; one named like a part, anything.

    Raises:
        UserError: one looks like a part of the question, or decides a verdict; or a column to be left out is missing.
    """
    for name in asked.ignored:
        _choose_column(list(filled), name, (), "ignore")
    read = {name.split(".")[0] for name in columns.read} | set(columns.read) | set(asked.ignored)
    unread = [name for name in filled if name not in read]
    text = [name for name in unread if filled[name]]
    context = [name for name in text if CONTEXT_NAMES.fullmatch(name.lower())]
    verdict = [name for name in text if VERDICT_NAMES.fullmatch(name.lower())]
    if context or verdict:
        raise UserError(
            "columns that look like a part of the question are not read"
            if context
            else "columns that decide whether an answer is right are not read: no verifier takes them from the data",
            value=context or verdict,
            expected="each of them read, or left out by its name",
            advice=Advice(
                "{ways_out}{options}{where}",
                ways_out=Advice(_ways_out(context, columns)),
                options=[word for name in context or verdict for word in ("--ignore", name)],
                where=Advice(f" if the {'problems are complete' if context else 'verdicts are right'} without them"),
            ),
        )
    return text


def is_part(name: str) -> bool:
    """Like a part of the question, or like something that decides a verdict."""
    return any(names.fullmatch(name.lower()) for names in (CONTEXT_NAMES, VERDICT_NAMES))


def _ways_out(context: Sequence[str], columns: Columns) -> str:
    """Options that read columns of the question, for a list that ends with another option."""
    ways = []
    for name in context:
        choices = name.lower().startswith(("choice", "option"))
        ways.append(f"--choices {name}" if choices else f"--problem {name}+{columns.problem}")
    return "".join(f"{way}, or " for way in dict.fromkeys(ways))


def _require_column(names: Sequence[str], asked: str | None, known: Sequence[str], kind: str) -> str:
    chosen = _choose_column(names, asked, known, kind)
    if chosen is None:
        raise UserError(
            f"no column has a known name for the {kind}",
            value=list(names),
            expected=f"one of {', '.join(known)}",
            advice=Advice(
                "name the column that holds the {kind}: --{kind} COLUMN, or a field of one: --{kind} "
                "COLUMN.FIELD, as in reward_model.ground_truth of verl's files",
                kind=kind,
            ),
        )
    return chosen


def _choose_column(names: Sequence[str], asked: str | None, known: Sequence[str], kind: str) -> str | None:
    if asked is None:
        return _known_column(names, known)
    if asked not in names and asked.split(".")[0] not in names:
        guess = nearest(asked, names)
        raise UserError(
            f"there is no such column for the {kind}",
            value=asked,
            expected=f"one of {', '.join(names)}",
            advice=Advice("--{kind} {guess}", kind=kind, guess=guess)
            if guess
            else Advice("--{kind} COLUMN, with one of these columns", kind=kind),
        )
    return asked


def _known_column(names: Sequence[str], known: Sequence[str]) -> str | None:
    """Of columns that differ in case alone, the first."""
    by_lower = {name.lower(): name for name in reversed(names)}
    return next((by_lower[name] for name in known if name in by_lower), None)


def value_of(row: Mapping[str, Any], column: str) -> object:
    if column in row:
        return row[column]
    first, _, rest = column.partition(".")
    inner = row.get(first)
    if isinstance(inner, list) and rest.isdigit():
        return inner[int(rest)] if int(rest) < len(inner) else None
    return value_of(inner, rest) if rest and isinstance(inner, dict) else None


def problem_text(value: object, column: str) -> str:
    """A text, or the one message of the user in a list of messages.

    Raises:
        BadRowError: it is neither, or empty.
    """
    return _text(_message(value, column) if isinstance(value, list) else value, column)


def _message(value: list[Any], column: str) -> object:
    asked = [part.get("content") for part in value if isinstance(part, dict) and part.get("role") == "user"]
    if len(asked) != 1:
        raise BadRowError(f"{column} is a list of {len(asked)} messages of the user: it takes one")
    return asked[0]


def gold_answer(value: object, columns: Columns, choices: "Choices | None") -> Gold:
    """A text, or the letter of a choice. Of several different answers it is each, where any one is right.

    Raises:
        BadRowError: one of them makes no answer, or there are several of which all may be meant.
    """
    read = answer_text if choices is None else choices.letter
    listed = value if isinstance(value, list) and value else [value]
    golds = tuple(dict.fromkeys(read(item, columns.answer) for item in listed))
    if len(golds) > 1 and not columns.any_answer:
        raise BadRowError(
            f"{columns.answer} is a list of {len(golds)} different answers: --any-answer takes each of them as right, "
            f"--answer {columns.answer}.0 the first alone"
        )
    return golds if len(golds) > 1 else golds[0]


def answer_text(value: object, column: str) -> str:
    r"""The gold answer: what follows ``####`` in the last line, else the content of the last ``\boxed{}``, else the
    whole text.

    Raises:
        BadRowError: there is no text, or a whole solution has no box.
    """
    text = _text(value, column)
    marked = _MARKED.fullmatch(text.splitlines()[-1])
    answer = marked[1] if marked else extract_answer(text)
    if answer is None and column.split(".")[-1].lower() in SOLUTION_NAMES:
        raise BadRowError(rf"{column} has no \boxed{{}} with an answer in it")
    return _text(text if answer is None else answer, column)


def id_text(value: object, column: str) -> str:
    """Raises BadRowError where the id is empty, or neither text nor number."""
    try:
        return _text(value, column)
    except BadRowError as error:
        raise BadIdError(str(error)) from error


def boxes_differ(value: object) -> bool:
    """Whether a whole solution has several boxes with different contents, of which the last becomes the answer."""
    if not isinstance(value, str):
        return False
    edges = [*(match.start() for match in _BOX.finditer(value)), len(value)]
    boxes = (extract_answer(value[start:end]) for start, end in pairwise(edges))
    return len({box for box in boxes if box is not None}) > 1


@dataclass(frozen=True)
class Choices:
    texts: tuple[str, ...]
    labels: tuple[str, ...] = ()
    """The names in the source's answers, where it says so."""

    @classmethod
    def of(cls, value: object, column: str) -> Self:
        """Of a list of texts, or of an object: of letters and texts, or with such a list under ``text`` and their names
        under ``label``. Letters of their own are left out.

        Raises:
            BadRowError: it is neither, or there are not 2 to 26 of them.
        """
        listed, labels = _choice_items(value)
        if not isinstance(listed, list) or not 2 <= len(listed) <= len(LETTERS):
            raise BadRowError(f"{column} is no list of 2 to {len(LETTERS)} choices")
        texts = [_text(choice, column) for choice in listed]
        own = [_OWN_LETTER.match(text) for text in texts]
        if all(
            letter is not None and letter[1].upper() == wanted for letter, wanted in zip(own, LETTERS, strict=False)
        ):
            texts = [text[letter.end() :] for text, letter in zip(texts, own, strict=True) if letter is not None]
        if labels and len(labels) != len(texts):
            raise BadRowError(f"{column} has {len(labels)} labels for {len(texts)} choices")
        return cls(tuple(texts), tuple(_text(label, column) for label in labels))

    def append_to(self, problem: str) -> str:
        """The problem with its choices below it, each with its letter on a line of its own."""
        lines = (f"{letter}. {text}" for letter, text in zip(LETTERS, self.texts, strict=False))
        return "\n".join((problem, "", *lines))

    def letter(self, value: object, column: str) -> str:
        """The letter of the gold answer: of its label, its index counted from 0, its letter, or its text.

        Raises:
            BadRowError: it is none of these, or the index of one choice and the text of another.
        """
        answer = _text(value, column)
        if answer in self.labels:
            return LETTERS[self.labels.index(answer)]
        indexed = answer.isdecimal() and int(answer) < len(self.texts) and not isinstance(value, int)
        if indexed and answer in self.texts and self.texts[int(answer)] != answer:
            raise BadRowError(f"{column} is {answer!r}, which is the index of one choice and the text of another")
        number = self.texts.index(answer) if self.texts.count(answer) == 1 and not isinstance(value, int) else None
        if number is None and answer.isdecimal():
            number = int(answer)
        elif number is None and len(answer) == 1 and answer.upper() in LETTERS:
            number = LETTERS.index(answer.upper())
        if number is None or number >= len(self.texts):
            raise BadRowError(f"{column} is {answer!r}: it takes an index from 0, a letter or the text of a choice")
        return LETTERS[number]


def _choice_items(value: object) -> tuple[object, list[object]]:
    if not isinstance(value, dict):
        return value, []
    if [str(key).upper() for key in value] == list(LETTERS[: len(value)]):
        return [*value.values()], []
    labels = value.get("label")
    return value.get("text"), labels if isinstance(labels, list) else []


def _text(value: object, column: str) -> str:
    if value is None or (isinstance(value, (float, Decimal)) and not math.isfinite(value)):
        raise BadRowError(f"{column} is missing or no finite number")
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        raise BadRowError(f"{column} is of type {type(value).__name__}: it takes a text or a number")
    if isinstance(value, float) and abs(value) >= EXACT_BELOW:
        raise BadRowError(f"{column} is {value!r}, of which a table keeps 16 digits only: write it there as a text")
    text = _number(value) if isinstance(value, (float, Decimal)) else str(value).strip()
    if not text:
        raise BadRowError(f"{column} is empty")
    if _HALF.search(text):
        raise BadRowError(f"{column} holds half of a character, which no file can hold as UTF-8")
    return text


def _number(value: float | Decimal) -> str:
    """27 for 27.0, since a table with empty cells makes all its integers so."""
    if value == int(value):
        return str(int(value))
    short = repr(float(value))
    return short if isinstance(value, float) or Decimal(short) == value else str(value)
