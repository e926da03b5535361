"""Does the signal to noise of early gradients say which arm of the learning study learns more?

    python benchmarks/bench_referee.py

The study (``bench_learning.py``) keeps no groups. So its arms are run again for a few updates, from a model that is
warm-started with each seed and with the settings that they had then, and what `mrt-hpc analyze gradients` measures is
taken on the groups of some versions: the ratio of each estimator's signal to noise to that of GRPO, on the same groups.
A ratio above 1 predicts that the arm is better than GRPO at that equal cost, one below 1 that it is worse. The outcome
is each difference of the study whose interval excludes 0.

`mrt` is not measured: half of its rollouts begin with a stale prefix, and no estimator of GRPO's objective can be made
of them. What was measured lies in ``work`` and is not measured again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from bench_learning import ARMS, MEASURES, Arm, Study, warm_started
from benchmarking import RESULTS, ROOT, SMALL_WORLD, csv_text, options, submit, table, written
from learning_curves import Draws
from learnt import Learnt, Spending

from mrt_hpc.analysis.estimator_signals import COUNTINGS, MeasuredEstimators
from mrt_hpc.analysis.intervals import IntervalEstimate
from mrt_hpc.mrt.gradient_signal import GradientSignal
from mrt_hpc.roles.gradient_referee import measure_estimators
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.prompt_files import read_experiment

if TYPE_CHECKING:
    import argparse

ONLINE = "{type: 'study_credit:EpisodesAlone', alpha: 1.0, baseline: group, normalise: outcome_group_std}"
ALGORITHMS = {
    "mrt_online": ONLINE,
    "mrt_online_look_ahead": ONLINE,
    "length_penalty": "{type: length_penalty, coefficient: 0.2, baseline: group, normalise: group_std}",
}
"""The arms that can be measured, by recipe, with the credit and the divisors that they had in the study."""
GRPO = "grpo, normalise: group_std"
BESIDE = (GRPO, "mrt_online")
EQUAL = dict(zip(Spending, COUNTINGS, strict=True))
"""Equal updates are equal rollouts."""
STUDY_SEEDS = range(5)
KEPT = 32
"""Versions and checkpoints, more than a run has."""
COLUMNS = ("arm", "seed", "version", "gradient", "estimator", "equal", "ratio to grpo", "low", "high", "cosine")


@dataclass(frozen=True)
class Ratio:
    """Of the signal to noise of an estimator to GRPO's, on the groups of one version of one run."""

    arm: str
    seed: int
    version: int
    gradient: str
    estimator: str
    equal: str
    ratio: float  # not a number where GRPO's is not resolved
    low: float
    high: float
    cosine: float

    @property
    def cells(self) -> tuple[object, ...]:
        numbers = (f"{x:.3f}" for x in (self.ratio, self.low, self.high, self.cosine))
        return (self.arm, self.seed, self.version, self.gradient, self.estimator, self.equal, *numbers)


# -- runs and ratios


def ratios(arm: Arm, seed: int, given: argparse.Namespace) -> Iterator[Ratio]:
    layout = RunLayout(given.work.absolute() / "runs" / f"{arm.recipe}-{seed}")
    for version in given.versions:
        kept = layout.root.with_name(f"{layout.root.name}-{version}.json")
        if not kept.exists():
            run(arm, seed, layout, given)
            measured = measure_estimators(layout, read_experiment(layout), version, 0, print, BESIDE)
            kept.write_text(json.dumps([ratio.__dict__ for ratio in of_version(arm, seed, version, measured)]))
        yield from (Ratio(**ratio) for ratio in json.loads(kept.read_text()))


def run(arm: Arm, seed: int, layout: RunLayout, given: argparse.Namespace) -> None:
    iterations = max(given.versions) + 1
    changes = {
        "seed": seed,
        "model": warm_started(seed, given),
        **arm.changes,
        "schedule.iterations": iterations,
        "schedule.iterations_per_job": iterations,
        "training.schedule": "constant",
        "training.keep_weights": KEPT,
        "training.keep_checkpoints": KEPT,
        "evaluation.benchmarks": "[]",
    }
    submit(recipe_of_study(arm, given), layout.root, changes)


def recipe_of_study(arm: Arm, given: argparse.Namespace) -> Path:
    """Beside a copy of the module that it names."""
    path = given.work.absolute() / "recipes" / f"{arm.recipe}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("study_credit.py"), path.parent)
    path.write_text(f"extends: {SMALL_WORLD / path.name}\nalgorithm: {ALGORITHMS[arm.recipe]}\n")
    return path


def of_version(arm: Arm, seed: int, version: int, measured: MeasuredEstimators) -> Iterator[Ratio]:
    grpo = measured.names.index(GRPO)
    grams = {"plain": measured.gram, "through Adam": measured.scaled_gram}
    for gradient, signal in ((way, GradientSignal.of(g, 0)) for way, g in grams.items() if g is not None):
        for number, name in enumerate(measured.names):
            for equal, prices in zip(COUNTINGS, measured.prices, strict=True) if number != grpo else ():
                found = signal.snr_ratio(number, grpo, (float(prices[number]), float(prices[grpo])))
                cosine = signal.cosine(number, grpo)
                numbers = (np.nan,) * 3 if found is None else (found.value, found.low, found.high)
                own = "the arm's" if number == 0 else name
                yield Ratio(
                    arm.name, seed, version, gradient, own, equal, *numbers, np.nan if cosine is None else cosine.value
                )


# -- the prediction and the outcome


def pooled(found: list[Ratio], **those: str) -> IntervalEstimate:
    """The geometric mean of those that are resolved; its interval takes those of the ratios for independent."""
    mine = [r for r in found if np.isfinite(r.ratio) and all(getattr(r, k) == v for k, v in those.items())]
    logs = np.log([(r.ratio, r.low, r.high) for r in mine])
    mean, half = logs[:, 0].mean(), np.sqrt(((logs[:, 2] - logs[:, 1]) ** 2).sum()) / 2 / len(mine)
    return IntervalEstimate(*(float(np.exp(x)) for x in (mean, mean - half, mean + half)))


def said(ratio: IntervalEstimate | None) -> str:
    if ratio is None:
        return "not measured"
    return "better" if ratio.low > 1 else "worse" if ratio.high < 1 else "nothing"


def outcomes(equal: Spending) -> Iterator[tuple[Arm, str, str, IntervalEstimate]]:
    """The differences from GRPO of the study whose interval excludes 0: arm, measure, when, points."""
    kept = RESULTS / "learning" / "runs"
    runs = {arm.name: [Learnt.read(kept / f"{arm.recipe}-{seed}.parquet") for seed in STUDY_SEEDS] for arm in ARMS}
    study, first = Study([*STUDY_SEEDS], runs), runs[ARMS[0].name]
    draws = Draws.of(len(first), len(first[0].problems_P))
    for arm in ARMS[1:]:
        for name, measure in MEASURES.items():
            total_SFR = 100 * study.contrast(arm.name, measure, equal, draws).total_SFR
            for when, taken in (("at the end", slice(-1, None)), ("on average", slice(None))):
                found = draws.estimate(total_SFR[:, taken].mean(axis=1)).drawn
                if found.excludes_zero:
                    yield arm, name, when, found


def calibration(found: list[Ratio]) -> Iterator[tuple[object, ...]]:
    """A row for each difference: what the ratio predicts, what came out, and whether they agree."""
    for equal, counting in EQUAL.items():
        for arm, measure, when, points in outcomes(equal):
            measured = any(ratio.arm == arm.name for ratio in found)
            those = {"arm": arm.name, "estimator": "the arm's", "equal": counting}
            ratio = pooled(found, **those) if measured else None
            predicted, came = said(ratio), "better" if (points.mean > 0) == (measure == "accuracy") else "worse"
            agree = "no" if predicted in ("better", "worse") else "cannot tell"
            told = "–" if ratio is None else ratio.decimals(".3f")
            shown = (equal, arm.name, measure, when, points.decimals("+.1f"), came, told, predicted)
            yield *shown, "yes" if predicted == came else agree


def markdown(found: list[Ratio]) -> str:
    plain = [ratio for ratio in found if ratio.gradient == "plain"]
    versions = sorted({ratio.version for ratio in plain})
    rows = []
    for arm, estimator in dict.fromkeys((ratio.arm, ratio.estimator) for ratio in plain):
        those = {"arm": arm, "estimator": estimator}
        of_all = [pooled(plain, **those, equal=counting).decimals(".3f") for counting in COUNTINGS]
        of_each = [pooled([r for r in plain if r.version == v], **those, equal=COUNTINGS[0]) for v in versions]
        mine = [r for r in plain if (r.arm, r.estimator, r.equal) == (arm, estimator, COUNTINGS[0])]
        resolved = [r.cosine for r in mine if np.isfinite(r.ratio)]
        counted = f"{len(resolved)} of {len(mine)}"
        each = (one.decimals(".3f") for one in of_each)
        rows.append((arm, estimator, counted, *of_all, *each, f"{min(resolved):.2f}"))
    of_versions = (f"rollouts, version {version}" for version in versions)
    head = ("groups of", "estimator", "resolved", *COUNTINGS, *of_versions, "least cosine")
    outcome = ("equal", "arm", "measure", "budget", "difference, points (95 %)", "the arm was")
    scaled = [ratio for ratio in found if ratio.gradient != "plain"]
    resolved = sum(bool(np.isfinite(ratio.ratio)) for ratio in scaled)
    return "\n".join([
        *table(head, rows, words=3), "",
        *table((*outcome, "ratio (95 %)", "predicted", "agree"), calibration(plain), words=9), "",
        f"Through Adam {resolved} of {len(scaled)} ratios are resolved.",
    ])  # fmt: skip


def main() -> None:
    given = options(
        __doc__,
        seeds=[0, 1],
        arms=[*ALGORITHMS],
        versions=[0, 2, 6],
        into=RESULTS / "gradients",
        work=ROOT / "runs" / "referee",
    )
    arms = [arm for arm in ARMS if arm.recipe in given.arms]
    found = [ratio for seed in given.seeds for arm in arms for ratio in ratios(arm, seed, given)]
    written(csv_text(COLUMNS, (ratio.cells for ratio in found)), given.into, "calibration.csv")
    written(markdown(found), given.into, "calibration.md")


if __name__ == "__main__":
    main()
