r"""The small world's task: solve ``a*x+c=b`` by guessing, checking and guessing again.

A trace is a line of checks, each a paragraph of its own, and an answer::

    First, x=10: 3*10=30, 30+14=44 vs 35 high

    Wait, x=4: 3*4=12, 12+14=26 vs 35 low

    Wait, x=7: 3*7=21, 21+14=35 vs 35 yes

    </think>

    \boxed{7}

Supervised training teaches the arithmetic; reinforcement learning to go on while the last check failed, to stop when it
succeeded, and to guess between the bounds of the failed checks. The value of a prefix rises as the bounds close in.
"""

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from mrt_hpc.domains.domain import Domain
from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.mrt.sft import ASSISTANT, USER, Conversation, Message, Suffix
from mrt_hpc.recipe.base import Section, require_kind
from mrt_hpc.recipe.sections import ProblemSource, SmallWorldProblems, SmallWorldSamples
from mrt_hpc.run.records import Problem
from mrt_hpc.run.seeds import derive_seed

FACTORS = range(2, 10)
UNKNOWNS = range(1, 13)
OFFSETS = range(1, 17)
TARGETS = range(10, 100)
"""Rarer targets are left out: a model does not copy one reliably that it never saw in training."""

THINK, END_THINK = "<think>", "</think>"
PARAGRAPH_END = "\n\n"
ANSWER_START = END_THINK + PARAGRAPH_END + r"\boxed{"
FORCED_TEXT = "Time is up." + PARAGRAPH_END + ANSWER_START
"""The prover's text that closes a thought at once; it ends inside the box, so that an answer is a number and a
brace.
"""
MARKER = "Wait"
OPENINGS = ("First", MARKER)
VERDICTS = ("low", "high", "yes")

_STATEMENT = re.compile(r"(\d+)\*x\+(\d+)=(\d+)")
_CHECK = re.compile(r"(First|Wait), x=(\d+): (\d+)\*(\d+)=(\d+), (\d+)\+(\d+)=(\d+) vs (\d+) (low|high|yes)")
_ANSWER = re.compile(r"\s*\\boxed\{(\d+)(-\d+)?\}\s*")


class Split(StrEnum):
    """The two disjoint parts of all problems."""

    TRAIN = "train"
    """The problems for supervised training and for rollouts."""
    HELD_OUT = "held_out"
    """The problems for evaluation alone."""


HELD_OUT_PROBLEMS = 500
_SPLIT_SEED = 20250310
"""Fixed, so that no run ever trains on what another run evaluates."""


@dataclass(frozen=True)
class Equation:
    """``a*x+c=b`` in whole numbers."""

    factor: int
    offset: int
    target: int

    @classmethod
    def parse(cls, statement: str) -> Self:
        match = _STATEMENT.search(statement)
        if match is None:
            raise UserError("not a problem of the small world", value=statement, expected="a*x+c=b, e.g. 3*x+14=35")
        return cls(*map(int, match.groups()))

    @property
    def statement(self) -> str:
        return f"Solve {self.factor}*x+{self.offset}={self.target}"

    @property
    def solution(self) -> int:
        return (self.target - self.offset) // self.factor

    def verdict(self, guess: int) -> str:
        """Low, high or yes."""
        reached = self.factor * guess + self.offset
        return "yes" if reached == self.target else "low" if reached < self.target else "high"

    def check(self, guess: int, opening: str) -> str:
        """One paragraph of the thought, with its arithmetic written out."""
        product = self.factor * guess
        return (
            f"{opening}, x={guess}: {self.factor}*{guess}={product}, "
            f"{product}+{self.offset}={product + self.offset} vs {self.target} {self.verdict(guess)}"
        )


def problems(split: Split, count: int | None = None, seed: int = 0) -> list[Problem]:
    """In an order drawn from ``seed``."""
    equations = _split_equations(split)
    if count is not None and count > len(equations):
        raise UserError(
            f"the small world has fewer {split} problems",
            value=count,
            expected=f"at most {len(equations)}",
            advice=Advice("lower problems to {count}, or leave it out", count=len(equations)),
        )
    random.Random(derive_seed(seed, "world", split)).shuffle(equations)
    return [
        Problem(f"{split}-{e.factor}x{e.offset}-{e.target}", e.statement, str(e.solution)) for e in equations[:count]
    ]


def _split_equations(split: Split) -> list[Equation]:
    everything = [Equation(a, c, a * x + c) for a in FACTORS for x in UNKNOWNS for c in OFFSETS if a * x + c in TARGETS]
    random.Random(_SPLIT_SEED).shuffle(everything)
    return everything[:HELD_OUT_PROBLEMS] if split is Split.HELD_OUT else everything[HELD_OUT_PROBLEMS:]


@dataclass(frozen=True)
class Habits:
    """How the traces of the supervised data think. Every number is a probability but the last."""

    give_up: float = 0.35
    """Stop after a failed check, and answer all the same."""
    patient: float = 0.15
    """Share of traces that never give up; they show what thoughts of many episodes look like."""
    hasty: float = 0.5
    """When giving up: answer with the guess that has just failed, not with one that is still possible."""
    forget: float = 0.3
    """Guess anything, as if no check had been made."""
    overthink: float = 0.1
    """Go on after a check that succeeded."""
    forced: float = 0.4
    """Share of examples closed early by the prover's forced text; they teach to answer at once."""
    forced_inside: float = 0.1
    """Share of these cut in the middle of a check, where a token limit may cut."""
    most_checks: int = 10
    """At so many checks the trace gives up for certain."""
    answer_forms: int = 1
    """The number of ways in which an answer is written, each as often as the others: 7, 8-1, 9-2, ..."""

    def write_answer(self, answer: int, rng: random.Random) -> str:
        more = rng.randrange(self.answer_forms) if self.answer_forms > 1 else 0
        return f"{answer + more}-{more}" if more else str(answer)


@dataclass
class Knowledge:
    """The bounds of the unknown after the checks so far."""

    least: int = UNKNOWNS[0]
    most: int = UNKNOWNS[-1]

    def learn(self, guess: int, verdict: str) -> None:
        if verdict != "high":
            self.least = max(self.least, guess + (verdict == "low"))
        if verdict != "low":
            self.most = min(self.most, guess - (verdict == "high"))

    def possible(self, rng: random.Random) -> int:
        """Any number that no check has ruled out."""
        return rng.randint(self.least, self.most)


def think(equation: Equation, habits: Habits, rng: random.Random) -> tuple[list[str], int]:
    """The checks of one trace, and its answer."""
    known, checks, opening = Knowledge(), [], OPENINGS[0]
    give_up = 0.0 if rng.random() < habits.patient else habits.give_up
    while True:
        guess = rng.choice(UNKNOWNS) if rng.random() < habits.forget else known.possible(rng)
        checks.append(equation.check(guess, opening))
        verdict, opening = equation.verdict(guess), MARKER
        known.learn(guess, verdict)
        tired = len(checks) == habits.most_checks
        if verdict == "yes" and (tired or rng.random() >= habits.overthink):
            return checks, guess
        if verdict != "yes" and (tired or rng.random() < give_up):
            return checks, guess if rng.random() < habits.hasty else known.possible(rng)


@dataclass(frozen=True)
class TraceQuality:
    well_formed: bool
    """The thought is closed, every paragraph of it is a check with its proper opening, and one boxed number follows."""
    checks: int
    """Readable, complete with their verdict."""
    right_checks: int
    """Of these, checks about this problem's equation with both results and the verdict right."""
    episodes: int


def inspect_trace(problem: str, text: str) -> TraceQuality:
    """Whether the answer is right is left to grading. ``text`` follows the prompt, with or without the opening tag."""
    equation = Equation.parse(problem)
    thought, closed, rest = text.removeprefix(THINK).strip("\n").partition(END_THINK)
    paragraphs = [p for p in thought.split(PARAGRAPH_END) if p.strip()]
    readable = [m for m in map(_CHECK.fullmatch, paragraphs) if m]
    openings = [m[1] for m in readable]
    in_order = len(readable) == len(paragraphs) > 0 and openings == [OPENINGS[0], *[MARKER] * (len(readable) - 1)]
    return TraceQuality(
        well_formed=bool(closed) and in_order and _ANSWER.fullmatch(rest) is not None,
        checks=len(readable),
        right_checks=sum(m[0] == equation.check(int(m[2]), m[1]) for m in readable),
        episodes=len(paragraphs),
    )


# -- supervised samples ------------------------------------------------------------------------------------------------
# Supervised samples of the small world, as a file of conversations or suffixes would hold them.


PATIENT = Habits(give_up=0.0, forget=0.0, overthink=0.0)
"""Continues until a check succeeds, and forgets none."""


def _conversation(problem: Problem, seed: int) -> Conversation:
    checks, answer = _solution(problem, seed)
    text = f"{THINK}\n" + "".join(c + PARAGRAPH_END for c in checks) + _answer(answer)
    return Conversation(problem.id, (Message(USER, problem.problem), Message(ASSISTANT, text)))


def _suffix(problem: Problem, seed: int) -> Suffix:
    (first, *others), answer = _solution(problem, seed)
    rest = "".join(c + PARAGRAPH_END for c in others)
    return Suffix(problem.id, problem.problem, first + PARAGRAPH_END, rest + _answer(answer))


def _solution(problem: Problem, seed: int) -> tuple[list[str], int]:
    return think(Equation.parse(problem.problem), PATIENT, random.Random(derive_seed(seed, "sample", problem.id)))


def _answer(answer: int) -> str:
    return f"{ANSWER_START}{answer}}}"


# -- the domain --------------------------------------------------------------------------------------------------------


class SmallWorld(Domain):
    starting_model: ClassVar[Path] = STARTING_MODEL

    def problems(self, source: ProblemSource) -> list[Problem]:
        asked = require_kind(source, SmallWorldProblems)
        return problems(Split(asked.split), asked.problems)

    def samples(self, source: Section, seed: int) -> Sequence[Conversation | Suffix]:
        """Patient solutions of training problems, as whole conversations, or as suffixes of a given first check."""
        if not isinstance(source, SmallWorldSamples):
            return ()
        make = _conversation if source.form == "conversations" else _suffix
        return [make(problem, seed) for problem in problems(Split.TRAIN, source.samples, seed)]

    def quality(self, traces: Iterable[tuple[str, str]]) -> dict[str, float]:
        """``well_formed`` and ``right_checks`` in [0, 1]: the form, and the arithmetic of the checks."""
        inspected = [inspect_trace(problem, text) for problem, text in traces]
        checks = sum(q.checks for q in inspected)
        return {
            "well_formed": float(np.mean([q.well_formed for q in inspected])),
            "right_checks": sum(q.right_checks for q in inspected) / checks if checks else 0.0,
        }
