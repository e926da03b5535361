"""Compares models problem by problem: what the comparison shows in words, and its numbers as rows for CSV and JSON."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from io import StringIO
from typing import Any

from mrt_hpc.analysis.intervals import (
    SIGNIFICANCE,
    IntervalEstimate,
    MeanGain,
    Spread,
    detectable,
    holm,
    mean_gain,
    problems_needed,
    samples_needed,
    spread_of,
)
from mrt_hpc.analysis.model_samples import ModelSamples, other_settings
from mrt_hpc.analysis.problem_measures import MajorityAtK, Measure
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.votes import RULE


@dataclass(frozen=True)
class Side:
    """One model in a comparison."""

    name: str
    mean: float
    interval: IntervalEstimate | None
    """None for a mean over benchmarks."""
    samples: int
    """The samples of the problem that has the fewest."""


@dataclass(frozen=True)
class Comparison:
    """One measure of two models on the same problems, or its mean over several benchmarks."""

    measure: Measure
    benchmark: str
    first: Side
    second: Side
    problems: int
    left_out: int
    """Problems that only one of the two has."""
    gain: MeanGain
    """The gain of the second over the first, as a share of ``scale``."""
    scale: float
    """What a share of 1 is worth: 1 for shares, the largest number of tokens for tokens."""
    spread: Spread | None
    """The spread of the gains, as shares of ``scale``; None where it is not known."""
    corrected_p: float
    """The p-value with Holm's correction for all comparisons that were made together."""
    together: int = 1
    """The number of comparisons that were made together."""

    @property
    def shown(self) -> bool:
        """Whether the models differ by more than chance gives."""
        return self.corrected_p < SIGNIFICANCE

    @property
    def detectable(self) -> float:
        """The smallest difference that 80 % of such comparisons would show after the correction, in the measure's unit;
        infinite where a single problem shows nothing.
        """
        return self.scale * detectable(self.gain.error, self.gain.degrees, self.together)

    def needed(self, difference: float) -> Needed | None:
        """The problems, or the samples, that would show a difference; None where the spread of gains is not known, as
        in a mean over benchmarks.

        Args:
            difference: in the measure's unit, positive.
        """
        if self.problems < 2 or self.benchmark == MEAN:
            return None
        share, variance = difference / self.scale, self.gain.error**2 * self.problems
        samples = None if self.spread is None else samples_needed(self.spread, self.problems, share, self.together)
        return Needed(problems_needed(variance, share, self.together), samples, self.spread is not None)


@dataclass(frozen=True)
class Needed:
    """What would show a difference."""

    problems: int
    """The problems needed, with as many samples of each as now."""
    samples: int | None
    """The samples needed of each problem, with as many problems as now; None if no number is enough, or it is not
    known.
    """
    samples_known: bool


MEAN = "mean"
"""Stands for a benchmark in the mean over all of them."""


def compare(
    first: Sequence[ModelSamples], others: Sequence[Sequence[ModelSamples]], measures: Sequence[Measure]
) -> list[Comparison]:
    """Compare each of the other models with the first, by each measure on each benchmark, and by the mean over the
    benchmarks where there are several.

    Args:
        first: the samples of the first model, one item a benchmark.
        others: of each other model, on the same benchmarks in the same order.
        measures: what is compared.

    Raises:
        UserError: two models share no problem, or their samples do not give a measure.
    """
    comparisons = []
    for measure in measures:
        for other in others:
            single = [_compared(a, b, measure) for a, b in zip(first, other, strict=True)]
            comparisons += single
            if len(single) > 1 and measure.is_share:
                comparisons.append(_mean(first, other, measure, single))
    corrected = holm([comparison.gain.p_value for comparison in comparisons])
    return [
        replace(comparison, corrected_p=p, together=len(comparisons))
        for comparison, p in zip(comparisons, corrected, strict=True)
    ]


def _compared(whole_first: ModelSamples, whole_second: ModelSamples, measure: Measure) -> Comparison:
    first, second = _on_shared_problems(whole_first, whole_second)
    before, after = measure.values(first), measure.values(second)
    scale = 1.0 if measure.is_share else max(*before.values(), *after.values(), 1.0)
    gain = mean_gain([({p: v / scale for p, v in before.items()}, {p: v / scale for p, v in after.items()})])
    sides = [Side(model.name, *_summary(model, measure), model.fewest) for model in (first, second)]
    return Comparison(
        measure,
        first.benchmark,
        sides[0],
        sides[1],
        len(before),
        len(whole_first.problems.keys() ^ whole_second.problems.keys()),
        gain,
        scale,
        _spread(first, second, measure, scale),
        gain.p_value,
    )


def _summary(model: ModelSamples, measure: Measure) -> tuple[float, IntervalEstimate]:
    interval = measure.interval(model)
    return interval.mean, interval


def _on_shared_problems(first: ModelSamples, second: ModelSamples) -> tuple[ModelSamples, ModelSamples]:
    """Both models with the problems that both have, in the order of the first.

    Raises:
        UserError: there is none.
    """
    shared = [problem for problem in first.problems if problem in second.problems]
    if not shared:
        raise UserError(
            f"{first.name} and {second.name} have no problem in common on {first.benchmark}",
            value=[*list(first.problems)[:3], *list(second.problems)[:3]],
            advice=f"mrt-hpc eval {first.source} {second.source} --suite SUITE",
        )
    before, after = ({problem: model.problems[problem] for problem in shared} for model in (first, second))
    return replace(first, problems=before), replace(second, problems=after)


def _spread(first: ModelSamples, second: ModelSamples, measure: Measure, scale: float) -> Spread | None:
    terms = measure.terms(first), measure.terms(second)
    if terms[0] is None or terms[1] is None or len(first.problems) < 2:
        return None
    before, after = ({p: one / scale for p, one in side.items()} for side in terms if side is not None)
    return spread_of(before, after)


def _mean(
    first: Sequence[ModelSamples], second: Sequence[ModelSamples], measure: Measure, single: Sequence[Comparison]
) -> Comparison:
    """The mean over benchmarks, each with the same weight."""
    shared = [_on_shared_problems(a, b) for a, b in zip(first, second, strict=True)]
    gain = mean_gain([(measure.values(a), measure.values(b)) for a, b in shared])
    sides = [
        Side(side[0].name, math.fsum(s.mean for s in side) / len(side), None, min(s.samples for s in side))
        for side in ([comparison.first for comparison in single], [comparison.second for comparison in single])
    ]
    problems, left_out = (
        sum(comparison.problems for comparison in single),
        sum(comparison.left_out for comparison in single),
    )
    return Comparison(measure, MEAN, sides[0], sides[1], problems, left_out, gain, 1.0, None, gain.p_value)


# -- in words


def quantity(measure: Measure, amount: float) -> str:
    """An amount without a sign: ``6.2 points``, ``1 point``, ``120 tokens``."""
    if not measure.is_share:
        return f"{amount:,.{0 if amount >= 10 else 1}f} tokens"
    text = f"{100 * amount:.1f}".removesuffix(".0")
    if text == "0" and amount > 0:
        text = f"{100 * amount:.2g}"
    return f"{text} point" if text == "1" else f"{text} points"


def verdict(comparison: Comparison) -> str:
    """What the comparison shows, in one sentence."""
    if comparison.shown:
        return f"{comparison.second.name} is {_direction(comparison)}: {_more(comparison)}"
    corrected = " after the correction" if comparison.gain.p_value < SIGNIFICANCE else ""
    limit = can_show(comparison.measure, comparison.problems, comparison.detectable)
    return f"cannot be distinguished{corrected}: {limit}"


def can_show(measure: Measure, problems: int, smallest: float) -> str:
    """What so many problems can show, in words.

    Args:
        measure: that is compared.
        problems: how many there are.
        smallest: the smallest difference that they can show, in the measure's unit.
    """
    if not math.isfinite(smallest):
        return "a single problem shows nothing of others"
    if measure.is_share and smallest > 1:
        return f"n = {problems} problems are too few to show any difference"
    return f"n = {problems} problems can show {quantity(measure, smallest)} or more"


def _more(comparison: Comparison) -> str:
    amount = quantity(comparison.measure, abs(comparison.gain.mean) * comparison.scale)
    return f"{amount} {'more' if comparison.gain.mean > 0 else 'less'}"


def _direction(comparison: Comparison) -> str:
    better = (comparison.gain.mean > 0) == comparison.measure.more_is_better
    return "better" if better else "worse"


def requirement(comparison: Comparison, difference: float) -> str | None:
    """What would show a difference, in one sentence; None where it is not known.

    Args:
        comparison: of two models.
        difference: in the measure's unit, positive.
    """
    needed = comparison.needed(difference)
    if needed is None:
        return None
    start = f"to distinguish {quantity(comparison.measure, difference)}: {_count(needed.problems, 'problem')} "
    samples = min(comparison.first.samples, comparison.second.samples)
    return f"{start}with {_count(samples, 'sample')} each; or {_enough_samples(needed, comparison)}"


def _enough_samples(needed: Needed, comparison: Comparison) -> str:
    these = f"with these {_count(comparison.problems, 'problem')}"
    if needed.samples is not None:
        return f"{_count(needed.samples, 'sample')} each {these}"
    if needed.samples_known:
        return f"no number of samples {these}: they differ too much among themselves"
    return f"more samples, how many is not known: {_why_samples_are_not_known(comparison)}"


def _why_samples_are_not_known(comparison: Comparison) -> str:
    if not comparison.measure.is_mean:
        return f"{comparison.measure.name} is no mean over samples"
    if min(comparison.first.samples, comparison.second.samples) < 2:
        return "problems have a single sample"
    return "no sample gains or loses more than another"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


# -- as rows of numbers, for CSV and JSON, with notes


@dataclass(frozen=True)
class ComparisonRow:
    """One comparison in plain numbers: shares in [0, 1], or tokens."""

    benchmark: str
    measure: str
    problems: int
    first: str
    first_samples: int
    first_mean: float
    first_low: float | None
    first_high: float | None
    second: str
    second_samples: int
    second_mean: float
    second_low: float | None
    second_high: float | None
    difference: float
    """The difference of the second to the first."""
    difference_low: float
    difference_high: float
    p: float
    corrected_p: float
    """The p-value with Holm's correction."""
    detectable: float | None
    """The smallest difference that 80 % of such comparisons would show; None where a single problem shows nothing."""
    asked: float
    """The difference that the next two are about."""
    problems_needed: int | None
    samples_needed: int | None
    verdict: str
    requirement: str | None


def row_of(comparison: Comparison, points: float) -> ComparisonRow:
    """A comparison as a row.

    Args:
        comparison: of two models.
        points: the difference to be shown, see ``asked_difference``.
    """
    asked = asked_difference(comparison, points)
    needed = comparison.needed(asked)
    gain, scale = comparison.gain.interval, comparison.scale
    return ComparisonRow(
        benchmark=comparison.benchmark,
        measure=comparison.measure.name,
        problems=comparison.problems,
        **_side("first", comparison.first),
        **_side("second", comparison.second),
        difference=gain.mean * scale,
        difference_low=gain.low * scale,
        difference_high=gain.high * scale,
        p=comparison.gain.p_value,
        corrected_p=comparison.corrected_p,
        detectable=finite(comparison.detectable),
        asked=asked,
        problems_needed=None if needed is None else needed.problems,
        samples_needed=None if needed is None else needed.samples,
        verdict=verdict(comparison),
        requirement=requirement(comparison, asked),
    )


def _side(which: str, side: Side) -> dict[str, Any]:
    ends = (None, None) if side.interval is None else map(finite, (side.interval.low, side.interval.high))
    values = (side.name, side.samples, side.mean, *ends)
    return dict(zip([which, *(f"{which}_{of}" for of in ("samples", "mean", "low", "high"))], values, strict=True))


def finite(number: float) -> float | None:
    """The number, or None where it is infinite: JSON has no such number."""
    return number if math.isfinite(number) else None


def asked_difference(comparison: Comparison, points: float) -> float:
    """The difference of so many percentage points in the measure's unit; of tokens, per cent of the first model's."""
    return points / 100 * (1.0 if comparison.measure.is_share else comparison.first.mean)


def csv_of(rows: Sequence[ComparisonRow]) -> str:
    """The rows as CSV with a heading."""
    stream = StringIO()
    writer = csv.DictWriter(stream, [field.name for field in fields(ComparisonRow)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return stream.getvalue()


def notes(comparisons: Sequence[Comparison], models: Sequence[Sequence[ModelSamples]]) -> list[str]:
    """What a reader has to know beside the numbers, a sentence each.

    Args:
        comparisons: all that were made together.
        models: the samples of each model, one item a benchmark.
    """
    sentences = [
        "intervals are 95 %, over problems; a difference that can be shown is found in 80 % of such comparisons"
    ]
    if len(comparisons) > 1:
        corrected = f"p, verdicts and differences that can be shown are corrected for {len(comparisons)} comparisons"
        sentences.append(f"{corrected} (Holm); intervals are not")
    if any(isinstance(comparison.measure, MajorityAtK) for comparison in comparisons):
        sentences.append(RULE)
    sentences += dict.fromkeys(_left_out(comparison) for comparison in comparisons if comparison.left_out)
    return sentences + [
        note for samples in zip(*models, strict=True) for note in other_settings(samples[0], samples[1:])
    ]


def _left_out(comparison: Comparison) -> str:
    names = f"{comparison.first.name} and {comparison.second.name}"
    return f"{comparison.left_out} problems of {comparison.benchmark} are left out, which not both of {names} have"
