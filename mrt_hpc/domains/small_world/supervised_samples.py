"""Supervised samples of the small world, as a file of conversations or suffixes would hold them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from mrt_hpc.domains.small_world.equations import (
    ANSWER_START,
    PARAGRAPH_END,
    THINK,
    Equation,
    Habits,
    Split,
    problems,
    think,
)
from mrt_hpc.mrt.sft import ASSISTANT, USER, Conversation, Message, Suffix
from mrt_hpc.run.seeds import derive_seed

if TYPE_CHECKING:
    from mrt_hpc.run.records import Problem

PATIENT = Habits(give_up=0.0, forget=0.0, overthink=0.0)
"""Continues until a check succeeds, and forgets none."""


def supervised_samples(form: str, count: int, seed: int) -> list[Conversation] | list[Suffix]:
    """The first ``count`` samples of a form, in an order drawn from ``seed``: patient solutions of training problems,
    as whole conversations, or as suffixes of a first check that somebody else made.

    Raises:
        UserError: there are fewer problems.
    """
    chosen = problems(Split.TRAIN, count, seed)
    if form == "conversations":
        return [_conversation(problem, seed) for problem in chosen]
    return [_suffix(problem, seed) for problem in chosen]


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
