"""Every gold answer beside the repository is right against itself and against its usual other spellings."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from spellings import FILES, gold_answers, spelt

from mrt_hpc.domains.math.verifier import MathVerifier

DATA = Path(__file__).parents[2].parent / "shared" / "data"
VERIFIER = MathVerifier(strict=True)


def right(answer: str, gold: str) -> bool:
    """The verdict in this process, strict as in training."""
    certain = VERIFIER.certain(answer, gold)
    return VERIFIER.judge(answer, gold).correct if certain is None else certain


def other_spellings(gold: str) -> set[str]:
    return set(spelt(gold).values()) - {gold, f"{gold}.", f" {gold} ", f"${gold}$"}


def test_the_spellings_are_those_that_people_use() -> None:
    assert other_spellings("\\frac{1}{2}") == {
        "\\dfrac{1}{2}", "\\tfrac{1}{2}", "\\frac{1}{2}\\text{ units}", "x=\\frac{1}{2}"
    }  # fmt: skip
    assert other_spellings("12345") == {
        "12345\\text{ units}", "12,345", "12,\\!345", "12{,}345", "x=12345"
    }  # fmt: skip
    assert other_spellings("-0.5") == {"-0.5\\text{ units}", "-.5", "x=-0.5"}
    assert other_spellings("(1,2)") == {"\\left(1,2\\right)"}
    assert other_spellings("y = 2x") == set()


@pytest.mark.skipif(not DATA.is_dir(), reason="no benchmark data beside the repository")
@pytest.mark.parametrize("file", FILES)
def test_every_gold_answer_is_right_in_every_spelling(file: str) -> None:
    refused = [(a, gold) for gold in gold_answers(DATA, [file]) for a in spelt(gold).values() if not right(a, gold)]
    assert refused == []


@pytest.mark.skipif(not DATA.is_dir(), reason="no benchmark data beside the repository")
def test_no_spelling_of_another_gold_answer_is_right() -> None:
    golds = [gold for gold in gold_answers(DATA, ["aime24", "aime25", "amc23"]) if gold.isdigit()]
    wrong = [(a, gold) for gold, other in pairwise(golds) for a in spelt(other).values()]
    assert len(wrong) > 300
    assert [pair for pair in wrong if right(*pair)] == []
