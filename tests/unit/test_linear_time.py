"""Whatever sees a text of the model takes linear time: a text may be long, and the task's heartbeat waits meanwhile."""

import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest

from mrt_hpc.domains.base import Verifier
from mrt_hpc.domains.extraction import RULES, braces_balance
from mrt_hpc.inference.sampler import tokens_reaching, tokens_within
from mrt_hpc.inference.tokens import answer_start, last_box, thought_and_answer
from mrt_hpc.modes.writer import paragraph_break, whole_paragraphs
from mrt_hpc.mrt.episodes import cut_episodes
from mrt_hpc.mrt.votes import cleaned_answer
from mrt_hpc.provers.box_tokens import Closing, box_end, could_end
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.kinds import SINGLE_VERIFIERS
from mrt_hpc.recipe.registry import import_name
from mrt_hpc.recipe.sections import Episodes

Seeing = Callable[[str], object]

ATOMS = (
    " ", "\n", "\t", "\r\n", "\u00a0", "\n\n", "\\", "\\\\", "\\ ", "\\,", "\\!", "{", "}", "{}", "\\{", "\\}", "(",
    ")", "[", "]", "$", "$$", "\\(", "\\)", "\\[", "\\boxed", "\\boxed{", "\\boxed ", "\\fbox{", "\\frac", "\\frac{",
    "\\frac{1}", "\\frac{1}{2}", "\\left", "\\text{", "\\text{B}", "^", "^{", "_", "_{1}", "%", "=", "-", "+", "/", "*",
    ".", ",", "!", ":", "1", "12345", "1,000", "1 000", "1.", ".5", "a", "B", "(B)", "é", "answer", "Wait", "</think>",
    "</", "```", "```python\n", "'", '"', "x=", "and ", "°", "~",
    "\\boxed{x}", "\\boxed{{}", "answer 5 ", "5 +", "(5", ",123", "5" + " " * 50,
)  # fmt: skip
"""What the functions look for, and other characters."""
PREFIXES = ("", "\\boxed{", "\\boxed{A", "```python\n", "(A", "1", "$", "[1,", "**")
SUFFIXES = ("", "x}", "!")
FIRST_CHARS, SUSPECT_S = 2_000, 0.003  # texts that take longer are looked at closely
LENGTHS, ENOUGH_S, MOST_FOR_TWICE = (2_500, 5_000, 10_000, 20_000, 40_000, 80_000), 0.25, 3.0


class _Tokens:
    table = {number: bytes([number]) for number in range(256)} | {256: b"}.", 257: b"  "}

    def pieces(self, ids: list[int]) -> list[bytes]:
        return [self.table[one] for one in ids]


def _pieces(text: str) -> list[bytes]:
    whole = text.encode()
    return [whole[at : at + 3] for at in range(0, len(whole), 3)]


def _of_rules_and_verifiers() -> Iterator[tuple[str, Seeing]]:
    for name, rule in RULES.items():
        yield f"rule {name}", rule
        yield f"rule {name} in a thought", partial(rule, thinking=True)
    for name, where in SINGLE_VERIFIERS.built_in.items():  # the parts of a weighted one are among them
        verifier = require_kind(import_name(where)(), Verifier)
        if type(verifier).extract is not Verifier.extract:  # which is one of the rules
            yield f"extract of {name}", verifier.extract
        yield f"may_take_long of {name}", verifier.may_take_long
        for gold in ("7", "B", "\\frac{1}{2}"):
            yield f"certain of {name} for {gold}", lambda text, v=verifier, gold=gold: v.certain(text, gold)  # type: ignore[misc]


closing: Any = Closing(_Tokens())  # type: ignore[arg-type]
SEEING: dict[str, Seeing] = {
    **dict(_of_rules_and_verifiers()),
    "braces": braces_balance,
    "votes": cleaned_answer,
    "episodes": lambda text: cut_episodes(_pieces(text), Episodes()),
    "thought": lambda text: thought_and_answer(text.encode(), b"</think>"),
    "thought without tags": lambda text: thought_and_answer(text.encode(), b""),
    "last box": lambda text: last_box(text.encode()),
    "start of an answer": lambda text: answer_start(text, ""),
    "paragraphs": lambda text: (whole_paragraphs(_pieces(text)), paragraph_break(text.encode())),
    "tokens": lambda text: (tokens_within(_pieces(text), len(text)), tokens_reaching(_pieces(text), len(text))),
    "end of a box": lambda text: (box_end(text.encode()), could_end(text.encode())),
}
"""Every function that sees texts of the model in the task itself, by its name."""


def text_of(prefix: str, atom: str, suffix: str, length: int) -> str:
    return prefix + atom * (length // len(atom)) + suffix


def seconds(seeing: Seeing, text: str, times: int) -> float:
    """Of the processor, the least of some trials."""
    return min(timeit.repeat(lambda: seeing(text), timer=time.thread_time, number=1, repeat=times))


def is_linear(seeing: Seeing, parts: tuple[str, str, str], lengths: Sequence[int] = LENGTHS) -> bool:
    """Whether no text that takes long takes more than three times as long as one of half its length."""
    short = seconds(seeing, text_of(*parts, lengths[0]), 3)
    for length in lengths[1:]:
        long = seconds(seeing, text_of(*parts, length), 3)
        if long > ENOUGH_S and long > MOST_FOR_TWICE * short:
            return False
        short = long
    return True


@pytest.mark.parametrize("name", SEEING)
def test_twice_the_text_takes_twice_the_time(name: str) -> None:
    seeing = SEEING[name]
    confirmed = list(product(PREFIXES, ATOMS, SUFFIXES))
    for times in (1, 2):
        confirmed = [p for p in confirmed if seconds(seeing, text_of(*p, FIRST_CHARS), times) > SUSPECT_S]
    assert next((parts for parts in confirmed[:50] if not is_linear(seeing, parts)), None) is None


def test_an_answer_is_written_in_linear_time() -> None:
    assert is_linear(lambda text: closing.ways_to_write(text, list(text.encode())), ("", "1}.", ""), LENGTHS[:3])
