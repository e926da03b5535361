"""``mrt-hpc analyze gradients``: the signal of each estimator at equal cost."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mrt_hpc.analysis.figures import LineFigure, Panel, line_of
from mrt_hpc.analysis.findings import Analysis, Cells, DataTable, data_table
from mrt_hpc.analysis.intervals import FloatArray, IntervalEstimate
from mrt_hpc.mrt.gradient_signal import GradientSignal, Interval, alignment

NAME = "gradients"
COUNTINGS = ("rollouts", "generated tokens", "generated and prefilled tokens")
NOT_RESOLVED = "not resolved"
DRAWN = 6
"""Lines of a figure."""


@dataclass(frozen=True)
class MeasuredEstimators:
    names: tuple[str, ...]
    """The run's own first."""
    prices: FloatArray
    """[3, E] of a mean group, in each counting."""
    gram: FloatArray
    """[E, M, E, M] inner products of the gradients."""
    scaled_gram: FloatArray | None
    """Through Adam's scaling."""
    source: str
    remarks: tuple[str, ...]
    seed: int


def analyse_estimators(measured: MeasuredEstimators) -> Analysis:
    signals = {"plain": GradientSignal.of(measured.gram, measured.seed)}
    if measured.scaled_gram is not None:
        signals["through Adam"] = GradientSignal.of(measured.scaled_gram, measured.seed)
    plain = signals["plain"]
    rows = [row for way, signal in signals.items() for row in _rows(measured, way, signal)]
    columns = "gradient estimator counting batch snr low high alignment low high"
    pairs = [row for way, signal in signals.items() for row in _cosines(measured, way, signal)]
    verdicts = tuple(sentence_on(measured, plain, other) for other in _compared(measured))
    return Analysis(
        (data_table(NAME, columns, rows), data_table("cosines", "gradient estimator other cosine low high", pairs)),
        (_figure(measured, plain),),
        DataTable(f"{NAME}: signal to noise", *_summary(measured, signals)),
        verdicts,
        measured.remarks,
    )


def batch_of_equal_price(measured: MeasuredEstimators, counting: int, estimator: int) -> float:
    """Groups for the price of the run's own batch."""
    prices = measured.prices[counting]
    return float(measured.gram.shape[1] * prices[0] / prices[estimator])


def _rows(measured: MeasuredEstimators, way: str, signal: GradientSignal) -> Iterator[Cells]:
    for number, name in enumerate(measured.names):
        for counting, counted in enumerate(COUNTINGS):
            batch = batch_of_equal_price(measured, counting, number)
            snr = signal.snr(number, batch)
            yield way, name, counted, batch, _estimate(snr), _estimate(alignment(snr))


def _cosines(measured: MeasuredEstimators, way: str, signal: GradientSignal) -> Iterator[Cells]:
    for first, name in enumerate(measured.names):
        for second, other in enumerate(measured.names[:first]):
            found = signal.cosine(first, second)
            yield way, name, other, *((NOT_RESOLVED, "", "") if found is None else (_estimate(found),))


def _summary(
    measured: MeasuredEstimators, signals: dict[str, GradientSignal]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    ways = [*COUNTINGS, "alignment", "cosine with the run's own", *[way for way in signals if way != "plain"]]
    plain, rows = signals["plain"], []
    for number, name in enumerate(measured.names):
        snrs = [plain.snr(number, batch_of_equal_price(measured, n, number)) for n in range(len(COUNTINGS))]
        scaled = [signal.snr(number, signal.groups) for way, signal in signals.items() if way != "plain"]
        cosine = "" if number == 0 else interval_text(plain.cosine(number, 0))
        rows.append(
            (name, *map(interval_text, snrs), interval_text(alignment(snrs[0])), cosine, *map(interval_text, scaled))
        )
    return ("estimator", *ways), tuple(rows)


def _compared(measured: MeasuredEstimators) -> list[int]:
    return [n for n, name in enumerate(measured.names) if n and name in ("grpo", "credit: permuted")]


def sentence_on(measured: MeasuredEstimators, signal: GradientSignal, other: int) -> str:
    ratios = []
    for counting, counted in enumerate(COUNTINGS):
        prices = measured.prices[counting]
        found = signal.snr_ratio(0, other, (float(prices[0]), float(prices[other])))
        ratios.append(f"{interval_text(found)} at equal {counted}")
    goes = f"cosine of their means: {interval_text(signal.cosine(0, other))}"
    return f"signal to noise of {measured.names[0]} over that of {measured.names[other]}: {', '.join(ratios)}; {goes}"


def _figure(measured: MeasuredEstimators, signal: GradientSignal) -> LineFigure:
    panels = []
    for counting, counted in enumerate(COUNTINGS):
        lines = []
        for number, name in enumerate(measured.names[:DRAWN]):
            batches = signal.groups * 2.0 ** np.arange(-3, 4)
            points = [alignment(signal.snr(number, float(batch))) for batch in batches]
            spent = batches * measured.prices[counting, number]
            lines.append(line_of(name, spent, map(_estimate, points)))
        label = "alignment with the mean, 95 % interval"
        title = f"Gradients of {measured.source}" if counting == 0 else ""
        panels.append(Panel(title, f"{counted} of a batch", label, tuple(lines), logarithmic=True))
    return LineFigure(NAME, tuple(panels))


def _estimate(found: Interval) -> IntervalEstimate:
    return IntervalEstimate(found.value, found.low, found.high)


def interval_text(found: Interval | None) -> str:
    return NOT_RESOLVED if found is None else _estimate(found).decimals(".2f")
