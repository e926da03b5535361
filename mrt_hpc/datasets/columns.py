"""Finds the columns of the problem, the gold answer and the id, and reads their values as texts."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, Self

from mrt_hpc.domains.extraction import extract_answer
from mrt_hpc.domains.verifiers import LETTERS
from mrt_hpc.errors import Advice, UserError, nearest
from mrt_hpc.run.records import Gold

CHATS = {"messages": "content", "conversations": "value"}
"""Columns of messages, and where each message has its text."""
PROBLEM_NAMES = ("problem", "question", "prompt", "query", *CHATS)
SOLUTION_NAMES = ("solution", *CHATS)
r"""Columns of whole solutions, whose last ``\boxed{}`` holds the answer."""
ANSWER_NAMES = (
    "answer", "final_answer", "expected_answer", "gold_answer", "ground_truth", "gold", *SOLUTION_NAMES
)  # fmt: skip
ID_NAMES = ("id", "unique_id", "problem_id", "question_id")
CONTEXT_NAMES = re.compile(
    r"(?:body|contexts?|passages?|paragraphs?|story|background|premises?|tables?)"
    r"|(?:images?|figures?|diagrams?|pictures?)(?:[_ ]?[0-9]+)?|(?:options?|choices?)(?:[_ ]?[a-z0-9])?|[a-e]"
)
"""In small letters, columns that hold a part of the question."""
VERDICT_NAMES = re.compile("errors?|tolerance|precision|units?")
"""In small letters, columns by which an answer is right or wrong."""
SPEAKERS = {"user": ("user", "human"), "assistant": ("assistant", "gpt")}
"""Roles of messages, as they are written under ``role`` and under ``from``."""
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
    id: str | None = None
    """None: ids are made."""
    choices: str | None = None
    """None: no multiple choice."""
    any_answer: bool = False

    @property
    def read(self) -> list[str]:
        names = (*self.problem.split("+"), self.answer, self.id, self.choices)
        return [name for name in names if name is not None]

    def problem_and_gold(self, row: Mapping[str, Any]) -> tuple[str, Gold]:
        """The parts of a problem stand below each other; those before the last one may be empty, as a context that few
        have.
        """
        parts = [(value_of(row, name), name) for name in self.problem.split("+")]
        given = [part for part in parts[:-1] if part[0] is not None and str(part[0]).strip()]
        problem = "\n\n".join(problem_text(*part) for part in [*given, parts[-1]])
        if self.choices is None:
            return problem, gold_answer(self.solution(row), self, answer_text)
        choices = Choices.of(value_of(row, self.choices), self.choices)
        return choices.append_to(problem), gold_answer(self.solution(row), self, choices.letter)

    def solution(self, row: Mapping[str, Any]) -> object:
        """Of a list of messages, the one of the assistant; anything else stays."""
        value = value_of(row, self.answer)
        chat = isinstance(value, list) and any(isinstance(part, dict) and {"role", "from"} & {*part} for part in value)
        return _message(value, self.answer, "assistant") if chat else value

    def boxes_differ(self, row: Mapping[str, Any]) -> bool:
        """Whether a whole solution has several boxes with different contents, of which the last becomes the answer."""
        if not isinstance(solution := self.solution(row), str):
            return False
        edges = [*(match.start() for match in _BOX.finditer(solution)), len(solution)]
        boxes = {extract_answer(solution[start:end]) for start, end in pairwise(edges)}
        return len(boxes - {None}) > 1


def find_columns(names: Sequence[str], asked: Asked) -> Columns:
    """The columns to read: those that were named, else the first known name of each kind, in any case of letters."""
    for name in asked.ignored:
        _find_column(names, name, "ignore")
    parts = [None] if asked.problem is None else asked.problem.split("+")
    made = asked.new_ids or (asked.id is None and _known_column(names, ID_NAMES) is None)
    return Columns(
        problem="+".join(_find_column(names, part, "problem", PROBLEM_NAMES) for part in parts),
        answer=_find_column(names, asked.answer, "answer", ANSWER_NAMES),
        id=None if made else _find_column(names, asked.id, "id", ID_NAMES),
        choices=None if asked.choices is None else _find_column(names, asked.choices, "choices"),
        any_answer=asked.any_answer,
    )


def _find_column(names: Sequence[str], asked: str | None, kind: str, known: Sequence[str] = ()) -> str:
    found = _known_column(names, known) if asked is None else asked
    if found is None:
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
    if found not in names and found.split(".")[0] not in names:
        guess = nearest(found, names)
        raise UserError(
            f"there is no such column for the {kind}",
            value=found,
            expected=f"one of {', '.join(names)}",
            advice=Advice("--{kind} {guess}", kind=kind, guess=guess or Advice("COLUMN, with one of these columns")),
        )
    return found


def _known_column(names: Sequence[str], known: Sequence[str]) -> str | None:
    """Of columns that differ in case alone, the first."""
    by_lower = {name.lower(): name for name in reversed(names)}
    return next((by_lower[name] for name in known if name in by_lower), None)


def require_read(filled: Sequence[str], columns: Columns, ignored: Sequence[str]) -> list[str]:
    """The columns that are neither read nor left out by the user; refuses one that looks like a part of the question,
    or decides a verdict.

    Args:
        filled: the columns that hold anything.
    """
    read = {*(name.split(".")[0] for name in columns.read), *columns.read, *ignored}
    unread = [name for name in filled if name not in read]
    context, verdict = (
        [name for name in unread if known.fullmatch(name.lower())] for known in (CONTEXT_NAMES, VERDICT_NAMES)
    )
    if context or verdict:
        raise UserError(
            "columns that look like a part of the question are not read"
            if context
            else "columns that decide whether an answer is right are not read: no verifier takes them from the data",
            value=context or verdict,
            expected="each of them read, or left out by its name",
            advice=Advice(
                "{options} if they are not needed",
                options=[
                    *dict.fromkeys(_way_to_read(name, columns) for name in context),
                    *(word for name in context or verdict for word in ("--ignore", name)),
                ],
            ),
        )
    return unread


def _way_to_read(column: str, columns: Columns) -> Advice:
    if column.lower().startswith(("choice", "option")):
        return Advice("--choices {column}, or", column=column)
    return Advice("--problem {parts}, or", parts=f"{column}+{columns.problem}")


def value_of(row: Mapping[str, Any], column: str) -> object:
    if column in row:
        return row[column]
    first, _, rest = column.partition(".")
    inner = row.get(first)
    if isinstance(inner, list):
        inner = {str(number): item for number, item in enumerate(inner)}
    return value_of(inner, rest) if rest and isinstance(inner, dict) else None


def problem_text(value: object, column: str) -> str:
    """A text, or the one message of the user in a list of messages.

    Raises:
        BadRowError: it is neither, or empty.
    """
    return plain_text(_message(value, column, "user") if isinstance(value, list) else value, column)


def _message(value: object, column: str, role: str) -> object:
    """The content of the one message of a role, in OpenAI's form or that of ShareGPT."""
    parts = [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
    said = [
        part.get("content", part.get("value")) for part in parts if part.get("role", part.get("from")) in SPEAKERS[role]
    ]
    if len(said) != 1:
        raise BadRowError(f"{column} is a list of {len(said)} messages of the {role}: it takes one")
    return said[0]


def gold_answer(value: object, columns: Columns, read: Callable[[object, str], str]) -> Gold:
    """A text, or the letter of a choice. Of several different answers it is each, where any one is right.

    Raises:
        BadRowError: one of them makes no answer, or there are several of which all may be meant.
    """
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
    text = plain_text(value, column)
    marked = _MARKED.fullmatch(text.splitlines()[-1])
    answer = marked[1] if marked else extract_answer(text)
    name = column.split(".")[-1].lower()
    if answer is None and name in SOLUTION_NAMES:
        whole = f": --answer {column}.1.{CHATS[name]} takes the second message as it is" if name in CHATS else ""
        raise BadRowError(rf"{column} has no \boxed{{}} with an answer in it{whole}")
    return plain_text(text if answer is None else answer, column)


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
        texts = [plain_text(choice, column) for choice in listed]
        own = [match for text in texts if (match := _OWN_LETTER.match(text))]
        if "".join(letter[1].upper() for letter in own) == LETTERS[: len(texts)]:
            texts = [text[letter.end() :] for text, letter in zip(texts, own, strict=True)]
        if labels and len(labels) != len(texts):
            raise BadRowError(f"{column} has {len(labels)} labels for {len(texts)} choices")
        return cls(tuple(texts), tuple(plain_text(label, column) for label in labels))

    def append_to(self, problem: str) -> str:
        """The problem with its choices below it, each with its letter on a line of its own."""
        lines = (f"{letter}. {text}" for letter, text in zip(LETTERS, self.texts, strict=False))
        return "\n".join((problem, "", *lines))

    def letter(self, value: object, column: str) -> str:
        """The letter of the gold answer: of its label, its index counted from 0, its letter, or its text.

        Raises:
            BadRowError: it is none of these, or the index of one choice and the text of another.
        """
        answer = plain_text(value, column)
        if answer in self.labels:
            return LETTERS[self.labels.index(answer)]
        meant = {number for number, text in enumerate(self.texts) if text == answer and not isinstance(value, int)}
        if answer.isdecimal():
            meant.add(int(answer))
        elif not meant and len(answer) == 1:
            meant.add(LETTERS.find(answer.upper()))
        there = [LETTERS[number] for number in meant if 0 <= number < len(self.texts)]
        if len(there) != 1:
            raise BadRowError(
                f"{column} is {answer!r}: it takes an index from 0, a letter or the text of a choice, and of one alone"
            )
        return there[0]


def _choice_items(value: object) -> tuple[object, list[object]]:
    if not isinstance(value, dict):
        return value, []
    if [str(key).upper() for key in value] == list(LETTERS[: len(value)]):
        return [*value.values()], []
    labels = value.get("label")
    return value.get("text"), labels if isinstance(labels, list) else []


def plain_text(value: object, column: str) -> str:
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
