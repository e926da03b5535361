"""Compares arms, of one or several runs each, problem by problem, and says in words and in rows of numbers
what the comparison shows.
"""

import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

import numpy as np

from mrt_hpc.analysis import intervals
from mrt_hpc.analysis.model_samples import other_settings
from mrt_hpc.analysis.named_models import Arm
from mrt_hpc.analysis.problem_measures import MajorityAtK, Measure, Regret
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.votes import RULE


@dataclass(frozen=True)
class Side:
    """One arm in a comparison."""

    name: str
    interval: intervals.IntervalEstimate | None
    """None for a mean over benchmarks."""
    samples: int
    """The samples of the problem that has the fewest."""
    means: tuple[float, ...]
    """[S] the mean of each run."""

    @property
    def runs(self) -> int:
        """S."""
        return len(self.means)

    @property
    def mean(self) -> float:
        """The mean over runs."""
        return math.fsum(self.means) / self.runs

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the means of the runs; None of a single run."""
        return None if self.runs == 1 else statistics.stdev(self.means)


@dataclass(frozen=True)
class Comparison:
    """One measure of two arms on the same problems, or its mean over several benchmarks."""

    measure: Measure
    benchmark: str
    first: Side
    second: Side
    problems: int
    left_out: int
    """Problems that not all runs of the two have."""
    gain: intervals.MeanGain
    """The gain of the second over the first, as a share of ``scale``."""
    scale: float
    """What a share of 1 is worth: 1 for shares, the largest number of tokens for tokens."""
    spread: intervals.Spread | None
    """The spread of the gains, as shares of ``scale``; None where it is not known."""
    corrected_p: float
    """The p-value with Holm's correction for all comparisons that were made together."""
    together: int = 1
    """The number of comparisons that were made together."""

    @property
    def shown(self) -> bool:
        """Whether the arms differ by more than chance gives."""
        return self.corrected_p < intervals.SIGNIFICANCE

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both arms."""
        return self.first, self.second

    @property
    def of_recipes(self) -> bool:
        """Whether both arms have several seeds, so that the interval holds for others, too."""
        return min(self.first.runs, self.second.runs) > 1

    @property
    def detectable(self) -> float:
        """The smallest difference that 80 % of such comparisons would show after the correction, in the measure's unit;
        infinite where a single problem shows nothing.
        """
        return self.scale * intervals.detectable(self.gain.error, self.gain.degrees, self.together)

    def needed(self, difference: float) -> "Needed | None":
        """The problems, or the samples, that would show a difference between two models; None where the spread of
        gains is not known, as in a mean over benchmarks, and for arms of several runs: see ``seeds_needed``.

        Args:
            difference: in the measure's unit, positive.
        """
        if self.problems < 2 or self.benchmark == MEAN or self.gain.seeds:
            return None
        share, variance = difference / self.scale, self.gain.error**2 * self.problems
        samples = (
            None if self.spread is None else intervals.samples_needed(self.spread, self.problems, share, self.together)
        )
        return Needed(intervals.problems_needed(variance, share, self.together), samples, self.spread is not None)

    def seeds_needed(self, difference: float) -> int | None:
        """The seeds in each arm that would show a difference with these problems; see ``intervals.seeds_needed``. None
        also where an arm has a single run, which shows nothing of other seeds.

        Args:
            difference: in the measure's unit, positive.
        """
        return intervals.seeds_needed(self.gain, difference / self.scale, self.together) if self.of_recipes else None


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


def compare(first: Sequence[Arm], others: Sequence[Sequence[Arm]], measures: Sequence[Measure]) -> list[Comparison]:
    """Compare each of the other arms with the first, by each measure on each benchmark, and by the mean over the
    benchmarks where there are several.

    Args:
        first: the samples of the first arm, one item a benchmark.
        others: of each other arm, on the same benchmarks in the same order.
        measures: what is compared.

    Raises:
        UserError: two arms share no problem, or their samples do not give a measure.
    """
    comparisons = []
    for measure in measures:
        for other in others:
            pairs = [_on_shared_problems(a, b) for a, b in zip(first, other, strict=True)]
            single = [
                _compared(*pair, measure, _left_out(*whole))
                for pair, whole in zip(pairs, zip(first, other, strict=True), strict=True)
            ]
            comparisons += single
            if len(single) > 1 and measure.is_share:
                comparisons.append(_mean(pairs, measure, single))
    corrected = intervals.holm([comparison.gain.p_value for comparison in comparisons])
    return [
        replace(comparison, corrected_p=p, together=len(comparisons))
        for comparison, p in zip(comparisons, corrected, strict=True)
    ]


def _compared(first: Arm, second: Arm, measure: Measure, left_out: int) -> Comparison:
    """Two arms on the same problems."""
    before, after = first.values(measure), second.values(measure)
    scale = 1.0 if measure.is_share else float(max(before.max(), after.max(), 1.0))
    gain = intervals.crossed_gain([(before / scale, after / scale)])
    return Comparison(
        measure,
        first.benchmark,
        _side(first, before, measure, scale),
        _side(second, after, measure, scale),
        problems=before.shape[1],
        left_out=left_out,
        gain=gain,
        scale=scale,
        spread=_spread(first, second, measure, scale),
        corrected_p=gain.p_value,
    )


def _side(arm: Arm, values_SP: intervals.FloatArray, measure: Measure, scale: float) -> Side:
    """One arm; the interval of its mean is that of the measure for a single run, and over seeds and problems else."""
    means = tuple(math.fsum(values_P) / len(values_P) for values_P in values_SP)
    if len(arm.runs) == 1:
        return Side(arm.name, measure.interval(arm.runs[0]), arm.fewest, means)
    if measure.is_share:
        return Side(arm.name, intervals.crossed_share(values_SP), arm.fewest, means)
    own = intervals.crossed_gain([(np.zeros((1, values_SP.shape[1])), values_SP / scale)]).interval
    interval = intervals.IntervalEstimate(own.mean * scale, max(0.0, own.low) * scale, own.high * scale)
    return Side(arm.name, interval, arm.fewest, means)


def _on_shared_problems(first: Arm, second: Arm) -> tuple[Arm, Arm]:
    """Both arms with the problems that all runs have, in the order of the first.

    Raises:
        UserError: there is none.
    """
    runs = [*first.runs, *second.runs]
    shared = [problem for problem in runs[0].problems if all(problem in run.problems for run in runs)]
    if not shared:
        raise UserError(
            f"{first.name} and {second.name} have no problem in common on {first.benchmark}",
            value=[problem for run in runs for problem in list(run.problems)[:3]],
            advice=f"mrt-hpc eval {' '.join(run.source for run in runs)} --suite SUITE",
        )
    return first.on(shared), second.on(shared)


def _left_out(first: Arm, second: Arm) -> int:
    """The number of problems that some runs of two arms have, and others have not."""
    problems = [run.problems.keys() for run in (*first.runs, *second.runs)]
    return len(set().union(*problems).difference(set(problems[0]).intersection(*problems)))


def _spread(first: Arm, second: Arm, measure: Measure, scale: float) -> intervals.Spread | None:
    """The parts of the variance of gains between two single runs."""
    if len(first.runs) + len(second.runs) > 2:
        return None
    terms = measure.terms(first.runs[0]), measure.terms(second.runs[0])
    if terms[0] is None or terms[1] is None or len(first.runs[0].problems) < 2:
        return None
    before, after = ({p: one / scale for p, one in side.items()} for side in terms if side is not None)
    return intervals.spread_of(before, after)


def _mean(pairs: Sequence[tuple[Arm, Arm]], measure: Measure, single: Sequence[Comparison]) -> Comparison:
    """The mean over benchmarks, each with the same weight; the runs of an arm are the same on all of them."""
    gain = intervals.crossed_gain([(first.values(measure), second.values(measure)) for first, second in pairs])
    return Comparison(
        measure,
        MEAN,
        _mean_side([comparison.first for comparison in single]),
        _mean_side([comparison.second for comparison in single]),
        problems=sum(comparison.problems for comparison in single),
        left_out=sum(comparison.left_out for comparison in single),
        gain=gain,
        scale=1.0,
        spread=None,
        corrected_p=gain.p_value,
    )


def _mean_side(sides: Sequence[Side]) -> Side:
    """One arm in the mean over benchmarks."""
    means_S = np.mean([side.means for side in sides], axis=0)
    return Side(sides[0].name, None, min(side.samples for side in sides), tuple(means_S.tolist()))


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
    """What the comparison shows, in one sentence, and whether it is about recipes or about trained models."""
    if comparison.shown:
        return f"{comparison.second.name} is {_direction(comparison)}: {_more(comparison)} ({_about(comparison)})"
    corrected = " after the correction" if comparison.gain.p_value < intervals.SIGNIFICANCE else ""
    seeds = f"{_seeds(comparison)} on " if comparison.of_recipes else ""
    limit = can_show(comparison.measure, comparison.problems, comparison.detectable)
    return f"cannot be distinguished{corrected}: {seeds}{limit}"


def _about(comparison: Comparison) -> str:
    """What a verdict is about."""
    alone = [side.name for side in comparison.sides if side.runs == 1]
    if not alone:
        return _seeds(comparison)
    if len(alone) == 2:
        return "as two trained models, not as recipes"
    return f"{alone[0]} as one trained model, not as a recipe"


def _seeds(comparison: Comparison) -> str:
    return f"{comparison.first.runs} and {comparison.second.runs} seeds"


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
    start = f"to distinguish {quantity(comparison.measure, difference)}: "
    if comparison.of_recipes:
        seeds = comparison.seeds_needed(difference)
        told = f"{seeds:,}" if seeds is not None else f"more than {intervals.MOST_SEEDS:,}"
        return f"{start}{told} seeds in each arm with these {counted(comparison.problems, 'problem')}"
    needed = comparison.needed(difference)
    if needed is None:
        return None
    start += f"{counted(needed.problems, 'problem')} "
    samples = min(comparison.first.samples, comparison.second.samples)
    return f"{start}with {counted(samples, 'sample')} each; or {_enough_samples(needed, comparison)}"


def _enough_samples(needed: Needed, comparison: Comparison) -> str:
    these = f"with these {counted(comparison.problems, 'problem')}"
    if needed.samples is not None:
        return f"{counted(needed.samples, 'sample')} each {these}"
    if needed.samples_known:
        return f"no number of samples {these}: they differ too much among themselves"
    return f"more samples, how many is not known: {_why_samples_are_not_known(comparison)}"


def _why_samples_are_not_known(comparison: Comparison) -> str:
    if not comparison.measure.is_mean:
        return f"{comparison.measure.name} is no mean over samples"
    if min(comparison.first.samples, comparison.second.samples) < 2:
        return "problems have a single sample"
    return "no sample gains or loses more than another"


def counted(number: int, what: str) -> str:
    """A number with its noun: ``1 problem``, ``1,200 problems``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


# -- rows --------------------------------------------------------------------------------------------------------------
# Comparisons as rows of plain numbers, for CSV and JSON, and the notes that a reader of them needs.


def row_of(comparison: Comparison, points: float) -> dict[str, Any]:
    """A comparison in plain numbers, shares in [0, 1] or tokens, by the columns of the CSV file.

    ``detectable`` is the smallest difference that 80 % of such comparisons would show, None where a single problem
    shows nothing. ``asked`` is the difference that the next three columns are about; ``seeds_needed`` are those of each
    arm where both have several runs, None where more than a thousand are needed.

    Args:
        comparison: of two models.
        points: the difference to be shown, see ``asked_difference``.
    """
    asked = asked_difference(comparison, points)
    needed = comparison.needed(asked)
    gain, scale = comparison.gain.interval, comparison.scale
    return {
        "benchmark": comparison.benchmark,
        "measure": comparison.measure.name,
        "problems": comparison.problems,
        **_columns("first", comparison.first),
        **_columns("second", comparison.second),
        "difference": gain.mean * scale,
        "difference_low": gain.low * scale,
        "difference_high": gain.high * scale,
        "p": comparison.gain.p_value,
        "corrected_p": comparison.corrected_p,
        "detectable": finite(comparison.detectable),
        "asked": asked,
        "problems_needed": None if needed is None else needed.problems,
        "samples_needed": None if needed is None else needed.samples,
        "seeds_needed": comparison.seeds_needed(asked),
        "verdict": verdict(comparison),
        "requirement": requirement(comparison, asked),
    }


def _columns(which: str, side: Side) -> dict[str, Any]:
    """The columns of one side: its runs, each with a seed of its own, and None for the deviation of a single run."""
    low, high = (None, None) if side.interval is None else map(finite, (side.interval.low, side.interval.high))
    return {
        which: side.name,
        f"{which}_runs": side.runs,
        f"{which}_samples": side.samples,
        f"{which}_mean": side.mean,
        f"{which}_low": low,
        f"{which}_high": high,
        f"{which}_deviation": side.deviation,
    }


def finite(number: float) -> float | None:
    """The number, or None where it is infinite: JSON has no such number."""
    return number if math.isfinite(number) else None


def asked_difference(comparison: Comparison, points: float) -> float:
    """The difference of so many percentage points in the measure's unit; of tokens, per cent of the first model's."""
    return points / 100 * (1.0 if comparison.measure.is_share else comparison.first.mean)


def csv_of(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as CSV with a heading."""
    stream = StringIO()
    writer = csv.DictWriter(stream, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


FEW = 10
"""Below so many problems an interval depends on how the gains are distributed."""


def notes(comparisons: Sequence[Comparison], arms: Sequence[Sequence[Arm]]) -> list[str]:
    """What a reader has to know beside the numbers, a sentence each.

    Args:
        comparisons: all that were made together.
        arms: the samples of each arm, one item a benchmark.
    """
    several = any(len(arm[0].runs) > 1 for arm in arms)
    over = "problems, and over the seeds of an arm of several runs" if several else "problems"
    sentences = [
        f"intervals are 95 %, over {over}; a difference that can be shown is found in 80 % of such comparisons"
    ]
    sentences += _on_seeds(comparisons)
    sentences += filter(None, dict.fromkeys(_on_unequal_arms(comparison) for comparison in comparisons))
    if len(comparisons) > 1:
        corrected = f"p, verdicts and differences that can be shown are corrected for {len(comparisons)} comparisons"
        sentences.append(f"{corrected} (Holm); intervals are not")
    if any(isinstance(comparison.measure, MajorityAtK) for comparison in comparisons):
        sentences.append(RULE)
    if any(isinstance(comparison.measure, Regret) for comparison in comparisons):
        first = arms[0][0].runs[0]
        sentences.append(
            f"regret of all counts the {first.counted} tokens, as evaluation.regret_tokens of {first.name}"
        )
    sentences += dict.fromkeys(_on_problems(comparison) for comparison in comparisons if comparison.left_out)
    sentences += dict.fromkeys(_on_few(comparison) for comparison in comparisons if comparison.problems < FEW)
    runs = [[run for arm in of_benchmark for run in arm.runs] for of_benchmark in zip(*arms, strict=True)]
    return sentences + [note for mine in runs for note in other_settings(mine[0], mine[1:], seeds=not several)]


def _on_seeds(comparisons: Sequence[Comparison]) -> list[str]:
    """How far the runs of an arm differ, and what follows where an arm has a single one."""
    sentences = list(
        dict.fromkeys(
            _on_seeds_of(side, comparison) for comparison in comparisons for side in comparison.sides if side.runs > 1
        )
    )
    if all(comparison.of_recipes for comparison in comparisons):
        return sentences
    about = "a verdict with a single run on a side is about trained models and not about recipes"
    other = "another training seed of the same recipe may differ from it by about as much"
    return [f"{about}: {other}; --arm NAME=RUN,RUN,... takes the seeds of a recipe as one arm", *sentences]


def _on_seeds_of(side: Side, comparison: Comparison) -> str:
    most, deviation = (quantity(comparison.measure, x) for x in (float(np.ptp(side.means)), side.deviation or 0.0))
    where = f"{comparison.measure.name} on {comparison.benchmark}"
    return f"the {side.runs} seeds of {side.name} differ by up to {most} in {where} (standard deviation {deviation})"


UNEQUAL = {2: (3, "3 to 12"), 3: (6, "4 to 8"), 4: (8, "3 to 7")}
"""By the seeds of the smaller arm: from how many of the other one on its interval may call equal recipes different more
often than in 5 %, and how often it does, per cent, with seeds that differ as much in both arms, or twice as much in one
(``Recipes`` of ``tests/support/simulated_arms.py``, 300 problems like AIME and MATH500, 1,000 comparisons of each)."""


def _on_unequal_arms(comparison: Comparison) -> str | None:
    """How often the interval of a small arm against a large one errs; None where it does not more than it says."""
    few, many = sorted(comparison.sides, key=lambda side: side.runs)
    least, errs = UNEQUAL.get(few.runs, (math.inf, ""))
    if many.runs < least:
        return None
    return (
        f"{few.name} has {few.runs} seeds, and {many.name} {many.runs}: with so unequal arms an interval calls equal "
        f"recipes different in {errs} % of simulated comparisons, and not in 5 %; more seeds of {few.name} mend this"
    )


def _on_problems(comparison: Comparison) -> str:
    names = f"{comparison.first.name} and {comparison.second.name}"
    return f"{comparison.left_out} problems of {comparison.benchmark} are left out, which not both of {names} have"


def _on_few(comparison: Comparison) -> str:
    return (
        f"{comparison.benchmark} has {counted(comparison.problems, 'problem')}: with fewer than {FEW} an interval "
        "assumes that gains follow a normal distribution; where a few problems gain much more than the others, it "
        "holds the truth less often than it says"
    )
