"""Every gold answer beside the repository is right against itself and against its usual other spellings."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from spellings import FILES, gold_answers, spelt

from mrt_hpc.domains.verifiers import MathVerifier

VERIFIER = MathVerifier(strict=True)


def right(answer: str, gold: str) -> bool:
    """The verdict in this process, strict as in training."""
    certain = VERIFIER.certain(answer, gold)
    return VERIFIER.judge(answer, gold).correct if certain is None else certain


def test_the_spellings_are_those_that_people_use() -> None:
    for gold, others in (
        ("\\frac{1}{2}", ["\\dfrac{1}{2}", "\\tfrac{1}{2}", "\\frac{1}{2}\\text{ units}", "x=\\frac{1}{2}"]),
        ("12345", ["12345\\text{ units}", "12,345", "12,\\!345", "12{,}345", "x=12345"]),
        ("-0.5", ["-0.5\\text{ units}", "-.5", "x=-0.5"]),
        ("(1,2)", ["\\left(1,2\\right)"]),
        ("y = 2x", []),
    ):
        assert set(spelt(gold).values()) - {gold, f"{gold}.", f" {gold} ", f"${gold}$"} == set(others)


@pytest.mark.parametrize("file", FILES)
def test_every_gold_answer_is_right_in_every_spelling(file: str, shared_data: Path) -> None:
    golds = gold_answers(shared_data, [file])
    assert [(a, gold) for gold in golds for a in spelt(gold).values() if not right(a, gold)] == []


def test_no_spelling_of_another_gold_answer_is_right(shared_data: Path) -> None:
    golds = [gold for gold in gold_answers(shared_data, ["aime24", "aime25", "amc23"]) if gold.isdigit()]
    wrong = [(a, gold) for gold, other in pairwise(golds) for a in spelt(other).values()]
    assert len(wrong) > 300
    assert [pair for pair in wrong if right(*pair)] == []
