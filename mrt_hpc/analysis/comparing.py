"""Compares arms, of one or several runs each, problem by problem."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mrt_hpc.analysis import intervals, named_models
from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.analysis.model_samples import other_settings
from mrt_hpc.analysis.named_models import Arm, NamedArm
from mrt_hpc.analysis.number_formats import plural
from mrt_hpc.analysis.problem_measures import MajorityAtK, MeanMeasure, Measure, Regret, measure_of
from mrt_hpc.analysis.spending import BranchCost
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.mrt.votes import RULE
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.run.family import missing_runs
from mrt_hpc.run.typed_file import readable

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Side:
    name: str
    interval: intervals.IntervalEstimate | None
    """None for a mean over benchmarks."""
    samples: int
    """Of the problem that has the fewest."""
    means: tuple[float, ...]
    """[S] the mean of each run."""
    is_mixed: bool = False

    @property
    def runs(self) -> int:
        return len(self.means)

    @property
    def mean(self) -> float:
        return math.fsum(self.means) / self.runs

    @property
    def deviation(self) -> float | None:
        return None if self.runs == 1 else statistics.stdev(self.means)


@dataclass(frozen=True)
class Comparison:
    """One measure of two arms on the same problems, or its mean over benchmarks."""

    measure: Measure
    benchmark: str
    first: Side
    second: Side
    problems: int
    left_out: int
    """Problems that not all runs of the two have."""
    gain: intervals.MeanGain
    """Of the second over the first, as a share of ``scale``."""
    scale: float
    """The unit of a share of 1: 1 for shares, the largest number of tokens for tokens."""
    spread: intervals.Spread | None
    """Of the gains, as shares of ``scale``; None where it is not known."""
    corrected_p: float
    """With Holm's correction for all comparisons made together."""
    together: int = 1
    paired: bool = False

    @property
    def is_significant(self) -> bool:
        return self.corrected_p < intervals.SIGNIFICANCE

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.first, self.second

    @property
    def has_several_seeds(self) -> bool:
        """Whether both arms have several seeds, so that the interval holds for other seeds."""
        return min(self.first.runs, self.second.runs) > 1

    @property
    def detectable(self) -> float:
        """The smallest difference, in the measure's unit, that 80 % of such comparisons would show after the
        correction; infinite for a single
        problem.
        """
        return self.scale * intervals.detectable(self.gain.error, self.gain.degrees, self.together)

    def needed_size(self, difference: float) -> tuple[int, int | None] | None:
        """The problems, with as many samples of each as now, that show a difference in the measure's unit between two
        models; and the samples of each of these problems, None if no number is enough, or the spread of gains is not
        known. None for arms of several runs, and for a mean over benchmarks.
        """
        if self.problems < 2 or self.benchmark == MEAN or self.gain.seeds:
            return None
        share, variance = difference / self.scale, self.gain.error**2 * self.problems
        problems = intervals.problems_needed(variance, share, self.together)
        if self.spread is None:
            return problems, None
        return problems, intervals.samples_needed(self.spread, self.problems, share, self.together)

    def seeds_needed(self, difference: float) -> int | None:
        """In each arm; None for a single run."""
        if not self.has_several_seeds:
            return None
        return intervals.seeds_needed(self.gain, difference / self.scale, self.together)

    def problems_beyond_seeds(self, difference: float) -> int | None:
        """Only where no number of seeds shows a difference with these."""
        share, squared = difference / self.scale, sum(part.size for part in self.gain.problems)
        without = replace(self.gain, seeds=())
        if not self.has_several_seeds or not squared or not math.isfinite(squared):
            return None
        if intervals.detectable(without.error, without.degrees, self.together) <= share:
            return None
        return intervals.problems_needed(squared * self.problems, share, self.together)


MEAN = "mean"


def compare(
    first: Sequence[Arm], others: Sequence[Sequence[Arm]], measures: Sequence[Measure], *, paired: bool = False
) -> list[Comparison]:
    """Compare the other arms with the first, on each benchmark and by the mean over benchmarks.

    Args:
        first: one item a benchmark.
        others: on the same benchmarks in the same order.
        paired: seed by seed; the runs of all arms then stand in the same order of seeds.
    """
    comparisons = []
    for measure in measures:
        for other in others:
            pairs = [_restrict_to_shared(a, b) for a, b in zip(first, other, strict=True)]
            left_out = [_count_left_out(a, b) for a, b in zip(first, other, strict=True)]
            for pair, left in zip(pairs, left_out, strict=True):
                comparisons.append(_compare_pairs([pair], measure, left, paired=paired))
            if len(pairs) > 1 and measure.is_share:
                comparisons.append(_compare_pairs(pairs, measure, sum(left_out), paired=paired))
    corrected = intervals.holm([comparison.gain.p_value for comparison in comparisons])
    return [
        replace(comparison, corrected_p=p, together=len(comparisons))
        for comparison, p in zip(comparisons, corrected, strict=True)
    ]


def _compare_pairs(pairs: Sequence[tuple[Arm, Arm]], measure: Measure, left_out: int, *, paired: bool) -> Comparison:
    """On one benchmark, or by the mean over several, which have the same weight, and the same runs of an arm."""
    values = [(first.values(measure), second.values(measure)) for first, second in pairs]
    most = max(float(values_SP.max()) for pair in values for values_SP in pair)
    scale = 1.0 if measure.is_share else max(most, 1.0)
    gain = intervals.crossed_gain([(before / scale, after / scale) for before, after in values], paired=paired)
    first, second = (_side([pair[n] for pair in pairs], [pair[n] for pair in values], measure, scale) for n in (0, 1))
    return Comparison(
        measure,
        MEAN if len(pairs) > 1 else pairs[0][0].benchmark,
        first,
        second,
        problems=sum(before.shape[1] for before, _ in values),
        left_out=left_out,
        gain=gain,
        scale=scale,
        spread=None if len(pairs) > 1 else _spread(*pairs[0], measure, scale),
        corrected_p=gain.p_value,
        paired=paired,
    )


def _side(arms: Sequence[Arm], values: Sequence[intervals.FloatArray], measure: Measure, scale: float) -> Side:
    """One arm on each of the benchmarks."""
    means = np.mean([[math.fsum(values_P) / len(values_P) for values_P in values_SP] for values_SP in values], axis=0)
    interval = None if len(arms) > 1 else _own_interval(arms[0], values[0], measure, scale)
    samples = min(arm.fewest for arm in arms)
    return Side(arms[0].name, interval, samples, tuple(means.tolist()), bool(arms[0].differing))


def _own_interval(
    arm: Arm, values_SP: intervals.FloatArray, measure: Measure, scale: float
) -> intervals.IntervalEstimate:
    """The measure's for a single run, else over seeds and problems."""
    if len(arm.runs) == 1:
        return measure.interval(arm.runs[0])
    if measure.is_share:
        return intervals.crossed_share(values_SP)
    own = intervals.crossed_gain([(np.zeros((1, values_SP.shape[1])), values_SP / scale)]).interval
    return intervals.IntervalEstimate(own.mean * scale, max(0.0, own.low) * scale, own.high * scale)


def _restrict_to_shared(first: Arm, second: Arm) -> tuple[Arm, Arm]:
    """The problems that all runs have, at least one, in the order of the first."""
    runs = [*first.runs, *second.runs]
    shared = [problem for problem in runs[0].problems if all(problem in run.problems for run in runs)]
    if not shared:
        raise UserError(
            f"{first.name} and {second.name} have no problem in common on {first.benchmark}",
            value=[problem for run in runs for problem in list(run.problems)[:3]],
            advice=Advice("mrt-hpc eval {source} --suite SUITE", source=[run.source for run in runs]),
        )
    return first.restrict(shared), second.restrict(shared)


def _count_left_out(first: Arm, second: Arm) -> int:
    problems = [run.problems.keys() for run in (*first.runs, *second.runs)]
    return len(set().union(*problems).difference(set(problems[0]).intersection(*problems)))


def _spread(first: Arm, second: Arm, measure: Measure, scale: float) -> intervals.Spread | None:
    if len(first.runs) + len(second.runs) > 2:
        return None
    terms = measure.terms(first.runs[0]), measure.terms(second.runs[0])
    if terms[0] is None or terms[1] is None or len(first.runs[0].problems) < 2:
        return None
    before, after = ({p: one / scale for p, one in side.items()} for side in terms if side is not None)
    return intervals.spread_of(before, after)


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
    """The sentence also says whether it is about recipes or trained models."""
    if comparison.is_significant:
        amount = quantity(comparison.measure, abs(comparison.gain.mean) * comparison.scale)
        found = f"{amount} {'more' if comparison.gain.mean > 0 else 'less'}"
        better = (comparison.gain.mean > 0) == comparison.measure.more_is_better
        how = f"is {'better' if better else 'worse'}:" if comparison.measure.is_share else "takes"
        return f"{comparison.second.name} {how} {found} ({_about(comparison)})"
    corrected = " after the correction" if comparison.gain.p_value < intervals.SIGNIFICANCE else ""
    seeds = f"{_seeds(comparison)} on " if comparison.has_several_seeds else ""
    limit = can_show(comparison.measure, comparison.problems, comparison.detectable)
    return f"cannot be distinguished{corrected}: {seeds}{limit}"


def _about(comparison: Comparison) -> str:
    alone = [side.name for side in comparison.sides if side.runs == 1]
    if not alone:
        return _seeds(comparison)
    if len(alone) == 2:
        return "as two trained models, not as recipes"
    return f"{alone[0]} as one trained model, not as a recipe"


def _seeds(comparison: Comparison) -> str:
    mixed = " and ".join(side.name for side in comparison.sides if side.is_mixed)
    runs = f"{comparison.first.runs} and {comparison.second.runs} {'runs' if mixed else 'seeds'}"
    runs = f"{comparison.first.runs} seeds, paired" if comparison.paired else runs
    return f"{runs}, of several recipes in {mixed}" if mixed else runs


def can_show(measure: Measure, problems: int, smallest: float) -> str:
    """``smallest`` is the smallest difference that so many problems show, in the measure's unit."""
    if not math.isfinite(smallest):
        return "a single problem shows nothing of others"
    if measure.is_share and smallest > 1:
        return f"n = {problems} problems are too few to show any difference"
    return f"n = {problems} problems can show {quantity(measure, smallest)} or more"


def requirement(comparison: Comparison, difference: float) -> str | None:
    """The effort to show a ``difference`` between two models; None where it is not known."""
    start = f"to distinguish {quantity(comparison.measure, difference)}: "
    if comparison.has_several_seeds:
        seeds, problems = comparison.seeds_needed(difference), comparison.problems_beyond_seeds(difference)
        these = f"with these {plural(comparison.problems, 'problem')}"
        if problems is not None:
            return f"{start}no number of seeds is enough {these}; it takes {plural(problems, 'problem')} at least"
        told = f"{seeds:,}" if seeds is not None else f"more than {intervals.MOST_SEEDS:,}"
        return f"{start}{told} seeds in each arm {these}"
    if (needed := comparison.needed_size(difference)) is None:
        return None
    samples = min(comparison.first.samples, comparison.second.samples)
    with_samples = f"{plural(needed[0], 'problem')} with {plural(samples, 'sample')} each"
    return f"{start}{with_samples}; or {_enough_samples(needed[1], comparison)}"


def _enough_samples(samples: int | None, comparison: Comparison) -> str:
    these = f"with these {plural(comparison.problems, 'problem')}"
    if samples is not None:
        return f"{plural(samples, 'sample')} each {these}"
    if comparison.spread is not None:
        return f"no number of samples {these}: they differ too much among themselves"
    reason = "no sample gains or loses more than another"
    if not isinstance(comparison.measure, MeanMeasure):
        reason = f"{comparison.measure.name} is no mean over samples"
    elif min(comparison.first.samples, comparison.second.samples) < 2:
        reason = "problems have a single sample"
    return f"more samples, how many is not known: {reason}"


# -- rows --------------------------------------------------------------------------------------------------------------
# Comparisons as rows of plain numbers, for CSV and JSON, and the notes that a reader of them needs.


def row_of(comparison: Comparison, points: float) -> dict[str, Any]:
    """The columns of the CSV file: plain numbers, shares in [0, 1] or tokens.

    ``detectable`` is None for infinity. ``asked`` is the difference that the next three columns are about: ``points``
    percentage points, or of tokens per cent of the first model's. ``seeds_needed`` are those of each arm where both
    have several runs, None above a thousand; where no number is enough, ``problems_needed`` says how many problems
    there have to be at least.
    """
    asked = points / 100 * (1.0 if comparison.measure.is_share else comparison.first.mean)
    problems, samples = comparison.needed_size(asked) or (comparison.problems_beyond_seeds(asked), None)
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
        "problems_needed": problems,
        "samples_needed": samples,
        "seeds_needed": comparison.seeds_needed(asked),
        "verdict": verdict(comparison),
        "requirement": requirement(comparison, asked),
    }


def _columns(which: str, side: Side) -> dict[str, Any]:
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
    """JSON lacks infinity, which becomes None."""
    return number if math.isfinite(number) else None


FEW = 10
"""Below so many problems an interval depends on how gains are distributed."""


def notes(comparisons: Sequence[Comparison], arms: Sequence[Sequence[Arm]]) -> list[str]:
    several = any(len(arm[0].runs) > 1 for arm in arms)
    runs = [[run for arm in of_benchmark for run in arm.runs] for of_benchmark in zip(*arms, strict=True)]
    sentences = [note for mine in runs for note in other_settings(mine[0], mine[1:], seeds=not several)]
    sentences += filter(None, map(_unequal_arms_remark, comparisons))
    sentences += [
        f"{one.left_out} problems of {one.benchmark} are left out, which not both of {one.first.name} and "
        f"{one.second.name} have"
        for one in comparisons
        if one.left_out
    ]
    sentences += [
        f"{one.benchmark} has {plural(one.problems, 'problem')}: with fewer than {FEW} an interval assumes that gains "
        "follow a normal distribution; where a few problems gain much more than the others, it holds the truth less "
        "often than it says"
        for one in comparisons
        if one.problems < FEW
    ]
    sentences += _seed_remarks(comparisons)
    over = "problems, and over the seeds of an arm of several runs" if several else "problems"
    sentences.append(
        f"intervals are 95 %, over {over}; a difference that can be shown is found in 80 % of such comparisons"
    )
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
    return list(dict.fromkeys(sentences))


def _seed_remarks(comparisons: Sequence[Comparison]) -> list[str]:
    of_arms: dict[str, list[tuple[Side, Comparison]]] = defaultdict(list)
    for comparison in comparisons:
        for side in comparison.sides if comparison.benchmark != MEAN else ():
            of_arms[side.name].append((side, comparison))
    sentences = []
    for name, of_arm in of_arms.items():
        side, one = max(of_arm, key=lambda found: (found[0].deviation or 0.0) / found[1].scale)
        if side.deviation is not None:
            most, deviation = (quantity(one.measure, amount) for amount in (float(np.ptp(side.means)), side.deviation))
            where = f"{one.measure.name} on {one.benchmark} (standard deviation {deviation})"
            sentences.append(f"the {side.runs} seeds of {name} differ by up to {most} in {where}")
    if all(comparison.has_several_seeds for comparison in comparisons):
        return sentences
    about = "a verdict with a single run on a side is about trained models and not about recipes"
    other = "another training seed of the same recipe may differ from it by about as much"
    return [f"{about}: {other}; --arm NAME=RUN,RUN,... takes the seeds of a recipe as one arm", *sentences]


def _branch_remarks(arms: Sequence[NamedArm]) -> list[str]:
    sentences = []
    for arm in arms:
        runs = {model.run.typed: model.run for model in arm.models if not model.run.models}
        paths = [run.layout.metrics(i) for run in runs.values() for i in range(read_plan(run.layout.plan).iterations)]
        if (cost := BranchCost.of(readable(paths, IterationMetrics.read)[0])) is not None:
            sentences.append(f"training of {arm.name or ', '.join(runs)} took {cost}")
    return list(dict.fromkeys(sentences))


UNEQUAL = {2: (3, "3 to 10"), 3: (6, "4 to 9"), 4: (8, "4 to 8")}
"""By the seeds of the smaller arm: the size of the other one from which its interval may call equal recipes different
in more than 5 %, and how often (per cent), by 1,000 comparisons of each in ``benchmarks/simulated_arms.py``.
"""


def _unequal_arms_remark(comparison: Comparison) -> str | None:
    few, many = sorted(comparison.sides, key=lambda side: side.runs)
    least, errs = UNEQUAL.get(few.runs, (math.inf, ""))
    if many.runs < least:
        return None
    return (
        f"{few.name} has {few.runs} seeds, and {many.name} {many.runs}: with so unequal arms an interval calls equal "
        f"recipes different in {errs} % of simulated comparisons, and not in 5 %; more seeds of {few.name} mend this"
    )


# -- what a user asks for ----------------------------------------------------------------------------------------------


PAIRING = (
    "the runs of each seed began with the same weights: --paired compares the arms seed by seed; choose it before you "
    "see what it shows, or not at all"
)


@dataclass(frozen=True)
class Compared:
    """The comparisons that a user has asked for."""

    comparisons: tuple[Comparison, ...]
    rows: tuple[dict[str, Any], ...]
    """Of each comparison, its numbers and what they show."""
    notes: tuple[str, ...]
    """What a reader has to know of the numbers, a sentence each."""

    def table(self) -> "pa.Table":
        """The rows."""
        import pyarrow as pa

        return pa.Table.from_pylist(list(self.rows))


def compare_named(
    what: Sequence[str],
    typed_arms: Sequence[str] = (),
    benchmarks: Sequence[str] = (),
    measures: Sequence[str] = ("pass@1",),
    *,
    difference: float = 1.0,
    paired: bool = False,
    trust: bool = False,
) -> Compared:
    """Compare models and arms with the first of them.

    Args:
        what: runs and evaluations, see ``named_models``.
        typed_arms: ``NAME=RUN,RUN,...``; compared with the models named alone.
        benchmarks: empty for all that the models share.
        difference: in percentage points.
        trust: import code of the runs also where another user can change it.
    """
    measured = [measure_of(name) for name in measures]
    asked = named_models.compared_arms(what, typed_arms, trust=trust)
    models = [model for arm in asked for model in arm.models]
    chosen = named_models.chosen_benchmarks(models, benchmarks)
    named, late = named_models.evaluated_runs(asked, chosen)
    if paired:
        named = named_models.seed_by_seed(named, chosen)
    arms = named_models.read_arms(named, chosen, graded=any(measure.is_graded for measure in measured))
    comparisons = compare(arms[0], arms[1:], measured, paired=paired)
    missing = missing_runs([*what, *(run for arm in typed_arms for run in arm.partition("=")[2].split(","))])
    left_out = () if benchmarks else named_models.benchmarks_left_out(models, chosen)
    pairing = () if paired or not named_models.may_be_paired(named, chosen) else (PAIRING,)
    remarks = [*named_models.remarks_on(named, chosen), *late, *missing, *left_out, *notes(comparisons, arms), *pairing]
    remarks += _branch_remarks(asked)
    return Compared(tuple(comparisons), tuple(row_of(one, difference) for one in comparisons), tuple(remarks))
