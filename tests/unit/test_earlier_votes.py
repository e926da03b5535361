"""Whether thinking on pays, on curves whose differences were worked out by hand."""

from __future__ import annotations

import pytest
from evaluated import PROBLEMS, boundary, model, trace
from scipy.stats import t as student

from mrt_hpc.analysis.scaling import (
    ScalingCurve,
    ScalingPoint,
    analyse_scaling,
    earlier_votes,
    equal_tokens,
    equal_tokens_verdict,
    progress_verdict,
    table_of_earlier_votes,
    table_of_equal_tokens,
)

LAST = {str(n): 0.5 + n / 100 for n in range(10)}


def before(gain: float, spread: float) -> dict[str, float]:
    """The accuracies from which the last ones gain so much, by turns more and less by ``spread``."""
    return {p: last - gain - spread * (-1) ** n for n, (p, last) in enumerate(LAST.items())}


def votes(*earlier: dict[str, float], last: dict[str, float] = LAST) -> ScalingCurve:
    """Votes of four at prefixes that take 1,000 tokens, 500 more at each episode."""
    points = [ScalingPoint(j, 1000 + 500 * j, accuracy) for j, accuracy in enumerate((*earlier, last))]
    return ScalingCurve("m", "maj@4 at prefix", tuple(points), voters=4)


def complete(*tokens: float) -> ScalingCurve:
    """Complete samples, of which one is right in 40 % and two in 70 %."""
    points = [ScalingPoint(k, tokens[k - 1], dict.fromkeys(LAST, share)) for k, share in ((1, 0.4), (2, 0.7))]
    return ScalingCurve("m", "maj@k", tuple(points))


def test_the_last_vote_is_compared_with_each_earlier_one() -> None:
    """Ten gains of 0.45 and 0.35 by turns have a standard deviation of 0.05 sqrt(10 / 9), and a standard error of 0.05
    / 3; those of 0.12 and -0.08 one of 0.1 / 3. The smaller p-value is doubled.
    """
    first, second = earlier_votes(votes(before(0.4, 0.05), before(0.02, 0.1)))
    assert (first.gain.mean, first.gain.error) == pytest.approx((0.4, 0.05 / 3))
    assert first.corrected_p == pytest.approx(2 * 2 * student.sf(24, 9))
    assert second.gain.p_value == second.corrected_p == pytest.approx(2 * student.sf(0.6, 9))
    assert (first.saved, second.saved) == (1000, 500)
    assert (first.is_beaten, second.is_beaten) == (True, False)
    table = table_of_earlier_votes([votes(before(0.4, 0.05), before(0.02, 0.1))])
    half = student.ppf(0.975, 9) * 0.1 / 3
    assert table.rows[1][2:8] == pytest.approx((1, 1500, 500, 0.02, 0.02 - half, 0.02 + half))


def test_the_earliest_vote_that_cannot_be_told_apart_is_named_with_what_it_saves() -> None:
    """Two comparisons are corrected together: (t(0.9875) + t(0.8)) standard errors of 0.1 / 3 are 11.9 points."""
    smallest = (student.ppf(1 - 0.05 / 4, 9) + student.ppf(0.8, 9)) * 0.1 / 3
    assert progress_verdict(votes(before(0.4, 0.05), before(0.02, 0.1))) == (
        "m, maj@4 at the prefixes: a vote at episode 1 would have done as well, and saved 500 of 2,000 tokens: it "
        f"cannot be told from the last one, and n = 10 problems can show {100 * smallest:.1f} points or more"
    )


def test_gains_over_every_earlier_vote_are_told_by_the_smallest() -> None:
    assert progress_verdict(votes(before(0.4, 0.05), before(0.2, 0.05))) == (
        "m, maj@4 at the prefixes: thinking on gains 20 points or more over a vote at every earlier episode"
    )


def test_an_earlier_vote_that_is_better_is_told() -> None:
    assert progress_verdict(votes(before(0.4, 0.05), before(-0.1, 0.01))) == (
        "m, maj@4 at the prefixes: a vote at episode 1 is better by 10 points, and would have saved 500 of 2,000 tokens"
    )


def test_too_few_problems_promise_nothing() -> None:
    one = votes({"0": 0.2}, last={"0": 0.5})
    told = str(progress_verdict(one))
    assert told.endswith("whether thinking on gains anything cannot be told: a single problem tells nothing of others")
    two = votes({"0": 0.2, "1": 0.9}, last={"0": 0.9, "1": 0.2})
    assert str(progress_verdict(two)).endswith("cannot be told: n = 2 problems are too few to show any difference")
    assert progress_verdict(votes()) is None, "no earlier prefix"


def test_complete_samples_of_equal_tokens_are_paired_by_problem() -> None:
    """2,000 tokens are a third of the way from 1,500 to 3,000: an accuracy of 0.5. The last vote has 0.50, 0.51 ..
    0.59: 0.045 more, with a standard error of 0.0302765 / sqrt(10) = 0.0095743.
    """
    curve = votes({}, {})
    found = equal_tokens(curve, complete(1500, 3000))
    assert found is not None
    assert (found.complete, found.gain.mean, found.gain.error) == pytest.approx((0.5, 0.045, 0.0095743), abs=1e-6)
    assert equal_tokens_verdict(curve, complete(1500, 3000)) == (
        "m, maj@4 at the last prefix against a vote of complete samples of equal tokens: +0.045 (+0.023 to +0.067), it "
        "is better by 4.5 points"
    )
    (row,) = table_of_equal_tokens([(curve, complete(1500, 3000)), (curve, complete(2001, 4002))]).rows
    assert row[2:6] == pytest.approx((2000, 0.545, 0.5, 0.045))


def test_where_no_complete_samples_have_so_many_tokens_nothing_is_compared() -> None:
    curve = votes({}, {})
    assert equal_tokens_verdict(curve, complete(2500, 5000)).endswith(
        "not compared, it takes 2,000 tokens, and one complete sample 2,500"
    )
    assert equal_tokens_verdict(curve, complete(500, 1000)).endswith(
        "not compared, it takes 2,000 tokens, and the complete samples (2 of a problem) 1,000"
    )


def test_the_analysis_tells_two_sentences_a_model_and_has_their_tables() -> None:
    """Problem ``a`` of the samples loses by thinking on, ``b`` stays: [maj@4]_j is 1, 0.875 and 0.75 with 8, 34.5 .."""
    never = model({p: (trace("X", 9, boundary(0, "XX"), boundary(9, "XX")),) * 2 for p in PROBLEMS}, "never")
    found = analyse_scaling([model(PROBLEMS), never])
    assert [verdict.split(" at the ")[0] for verdict in found.verdicts] == [
        "model, maj@4", "model, maj@4", "never, maj@2", "never, maj@2",
    ]  # fmt: skip
    assert [table.name for table in found.tables] == ["scaling", "earlier_votes", "equal_tokens"]
    earlier = {row[:3]: row[5] for row in found.tables[1].rows}
    assert earlier["model", "maj@4 at prefix", 0] == pytest.approx(-0.25)
    assert earlier["model", "maj@4 at prefix", 1] == pytest.approx(-0.125)
