r"""Worlds in text for which it is known beforehand whether progress can pay, each with a starting model.

    python benchmarks/text_worlds.py --worlds asked12 ladder

A problem has K small sums, and a thought works on each of them in a paragraph of its own, which is an episode::

    a: 7+7 b: 1+5 c: 4+9 =b

    a: 7+7, a15

    b: 1+5, b6

    c: 4+9, c13

    </think>

    \boxed{b6}

The number of episodes is fixed, so no credit can teach to think longer. The starting model keeps the form, and its
paragraphs are right as often as those of the examples. Values are those of the worlds of ``mrt_hpc/testing/worlds.py``.
For each world the command writes ``train.jsonl``, ``held_out.jsonl`` and the directory ``model`` into a folder of its
name; all seeds are fixed.
"""

from __future__ import annotations

import json
import random
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarking import ROOT, options
from warm_start import Example, Span, WarmStartSettings, warm_start

from mrt_hpc.domains.small_world.equations import ANSWER_START, END_THINK, FORCED_TEXT, PARAGRAPH_END, THINK
from mrt_hpc.run.atomic import write_text
from mrt_hpc.run.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LETTERS = "abcdefghijkl"
ADDENDS = range(1, 10)
ERRORS = (1, 2, 3)
"""Added to a result where a paragraph is wrong: all positive, so that two never cancel."""
FORCED_SHARE = 0.4
"""Of the examples, closed early by the prover's text."""
SEVERAL_SHARE = 0.5
"""Of the examples of `asked`, problems that ask for several results: they teach to look a result up."""
_RESULT = re.compile(r", ([a-l])(\d+|[-+?])$")
_PARAGRAPH = re.compile(r"[a-l]: (\d+)\+(\d+), [a-l](\d+|[-+?])")


@dataclass(frozen=True)
class Task:
    sums: tuple[tuple[int, int], ...]
    """[K] the two numbers of each sum."""
    asked: tuple[int, ...] = ()
    """Of `asked`, the sums whose results the answer has."""
    hint: int | None = None
    """Of `trap`."""


@dataclass(frozen=True)
class TextWorld(ABC):
    name: str
    steps: int
    """K"""
    right: float
    """The share of right paragraphs in the beginning."""

    def task(self, rng: random.Random, *, of_example: bool = False) -> Task:  # noqa: ARG002 - some differ
        return Task(tuple((rng.choice(ADDENDS), rng.choice(ADDENDS)) for _ in range(self.steps)))

    def statement(self, task: Task) -> str:
        return " ".join(f"{letter}: {x}+{y}" for letter, (x, y) in zip(LETTERS, task.sums, strict=False))

    @abstractmethod
    def paragraph(self, task: Task, before: Sequence[str], rng: random.Random) -> str:
        """The next one, right or wrong."""

    @abstractmethod
    def answer(self, task: Task, thought: Sequence[str], rng: random.Random) -> str:
        """The best one after a thought, whole or cut; chance where the thought does not decide."""

    @abstractmethod
    def solution(self, task: Task) -> str:
        """The right answer."""

    def is_whole(self, thought: Sequence[str]) -> bool:
        return len(thought) == self.steps

    def thought(self, task: Task, rng: random.Random) -> list[str]:
        paragraphs: list[str] = []
        while not self.is_whole(paragraphs):
            paragraphs.append(self.paragraph(task, paragraphs, rng))
        return paragraphs

    def __call__(self, rng: random.Random) -> Example:
        """An example of the warm start."""
        task = self.task(rng, of_example=True)
        thought = self.thought(task, rng)
        if rng.random() >= FORCED_SHARE:
            whole = _joined(thought) + ANSWER_START + f"{self.answer(task, thought, rng)}}}"
            return Example(self.statement(task), [Span(whole, trained=True)])
        kept = thought[: rng.randint(0, len(thought))]
        answer = Span(f"{self.answer(task, kept, rng)}}}", trained=True)
        return Example(self.statement(task), [Span(_joined(kept), True), Span(FORCED_TEXT, False), answer])

    def decisions(self, text: str) -> list[bool]:
        """Whether each paragraph of a trace is right; one that lacks the form is not."""
        found = map(_PARAGRAPH.fullmatch, _paragraphs(text))
        return [match is not None and match[3] in _right_results(int(match[1]) + int(match[2])) for match in found]

    def episode_of(self, decision: int) -> int:
        return decision

    def _erring(self, result: int, rng: random.Random) -> int:
        return result if rng.random() < self.right else result + rng.choice(ERRORS)


def _joined(paragraphs: Sequence[str]) -> str:
    return "".join(paragraph + PARAGRAPH_END for paragraph in paragraphs)


def _paragraphs(text: str) -> list[str]:
    return [p for p in text.partition(END_THINK)[0].removeprefix(THINK).split(PARAGRAPH_END) if p.strip()]


def _right_results(number: int) -> tuple[str, str]:
    return str(number), _sign(number)


def _results(thought: Sequence[str]) -> dict[str, str]:
    """What a thought says of each letter."""
    found = (_RESULT.search(paragraph) for paragraph in thought)
    return {match[1]: match[2] for match in found if match}


class Asked(TextWorld):
    """The problem asks for one result: a value is chance until its paragraph, then 0 or 1."""

    def task(self, rng: random.Random, *, of_example: bool = False) -> Task:
        several = of_example and rng.random() < SEVERAL_SHARE
        asked = rng.sample(range(self.steps), rng.randint(1, min(6, self.steps)) if several else 1)
        return Task(super().task(rng).sums, tuple(asked))

    def statement(self, task: Task) -> str:
        return f"{super().statement(task)} ={''.join(LETTERS[i] for i in task.asked)}"

    def paragraph(self, task: Task, before: Sequence[str], rng: random.Random) -> str:
        letter, (x, y) = LETTERS[len(before)], task.sums[len(before)]
        return f"{letter}: {x}+{y}, {letter}{self._erring(x + y, rng)}"

    def answer(self, task: Task, thought: Sequence[str], rng: random.Random) -> str:
        known = _results(thought)
        letters = [LETTERS[i] for i in task.asked]
        return "".join(letter + known.get(letter, str(rng.choice(ADDENDS) + rng.choice(ADDENDS))) for letter in letters)

    def solution(self, task: Task) -> str:
        return "".join(f"{LETTERS[i]}{sum(task.sums[i])}" for i in task.asked)


class Product(TextWorld):
    """A running sum: right only if all paragraphs were, and chance until the last one."""

    def statement(self, task: Task) -> str:
        (x, y), *others = task.sums
        return " ".join(
            [f"a: {x}+{y}", *(f"{letter}: {y}" for letter, (_, y) in zip(LETTERS[1:], others, strict=False))]
        )

    def paragraph(self, task: Task, before: Sequence[str], rng: random.Random) -> str:
        letter, (x, y) = LETTERS[len(before)], task.sums[len(before)]
        x = int(_results(before)[LETTERS[len(before) - 1]]) if before else x
        return f"{letter}: {x}+{y}, {letter}{self._erring(x + y, rng)}"

    def answer(self, task: Task, thought: Sequence[str], rng: random.Random) -> str:
        last = LETTERS[len(task.sums) - 1]
        return last + _results(thought).get(last, str(sum(rng.choice(ADDENDS) for _ in range(self.steps + 1))))

    def solution(self, task: Task) -> str:
        (x, _), *_ = task.sums
        return f"{LETTERS[len(task.sums) - 1]}{x + sum(y for _, y in task.sums)}"


GUESS = "guess"
GUESSES, RIGHT_HINTS = 0.5, 0.6


class Trap(Product):
    """As the product, but the first line may be a guess, the hint of the problem, right in 6 of 10 problems."""

    def task(self, rng: random.Random, *, of_example: bool = False) -> Task:
        task = super().task(rng, of_example=of_example)
        last, right = LETTERS[self.steps - 1], self.solution(task)
        hint = int(right.removeprefix(last))
        return Task(task.sums, hint=hint if rng.random() < RIGHT_HINTS else hint + rng.choice(ERRORS))

    def statement(self, task: Task) -> str:
        return f"{super().statement(task)} ={task.hint}"

    def paragraph(self, task: Task, before: Sequence[str], rng: random.Random) -> str:
        return GUESS if not before and rng.random() < GUESSES else super().paragraph(task, before, rng)

    def is_whole(self, thought: Sequence[str]) -> bool:
        return super().is_whole(thought) or GUESS in thought

    def decisions(self, text: str) -> list[bool]:
        """First whether it is a guess."""
        guesses = GUESS in _paragraphs(text)
        return [guesses, *([] if guesses else super().decisions(text))]

    def episode_of(self, decision: int) -> int:
        return max(0, decision - 1)

    def answer(self, task: Task, thought: Sequence[str], rng: random.Random) -> str:
        return f"{LETTERS[self.steps - 1]}{task.hint}" if GUESS in thought else super().answer(task, thought, rng)


class Ladder(TextWorld):
    """A paragraph says whether its sum is even (+) or odd (-), or leaves it open (?): each sign that is said makes a
    right answer twice as likely.
    """

    def paragraph(self, task: Task, before: Sequence[str], rng: random.Random) -> str:
        letter, (x, y) = LETTERS[len(before)], task.sums[len(before)]
        return f"{letter}: {x}+{y}, {letter}{_sign(x + y) if rng.random() < self.right else '?'}"

    def answer(self, task: Task, thought: Sequence[str], rng: random.Random) -> str:
        known = {letter: sign for letter, sign in _results(thought).items() if sign != "?"}
        return "".join(known.get(letter, rng.choice("+-")) for letter in LETTERS[: len(task.sums)])

    def solution(self, task: Task) -> str:
        return "".join(_sign(x + y) for x, y in task.sums)


def _sign(number: int) -> str:
    return "-" if number % 2 else "+"


WORLDS = {
    world.name: world
    for world in (
        Asked("asked12", 12, 0.25), Asked("asked3", 3, 0.25), Ladder("ladder", 8, 0.25), Product("product", 5, 0.75),
        Trap("trap", 4, 0.98),
    )
}  # fmt: skip
PROBLEMS = {"train": 4000, "held_out": 200}


def problems(world: TextWorld, split: str) -> list[dict[str, str]]:
    rng = random.Random(derive_seed(0, "text world", world.name, split))
    tasks = [world.task(rng) for _ in range(PROBLEMS[split])]
    return [
        {"id": f"{split}-{i}", "problem": world.statement(task), "answer": world.solution(task)}
        for i, task in enumerate(tasks)
    ]


def write_world(world: TextWorld, folder: Path, steps: int) -> None:
    """The problems, and a model that is warm-started unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in PROBLEMS:
        write_text(folder / f"{split}.jsonl", "".join(json.dumps(p) + "\n" for p in problems(world, split)))
    if not (folder / "model" / "config.json").exists():
        settings = WarmStartSettings(seed=0, steps=steps, rows=8, row_tokens=512, embedding_scale=0.03, examples=world)
        warm_start(settings, folder / "model", print)


if __name__ == "__main__":
    given = options(__doc__, worlds=[*WORLDS], steps=700, into=ROOT / "runs" / "text-worlds")
    for name in given.worlds:
        write_world(WORLDS[name], given.into / name, given.steps)
