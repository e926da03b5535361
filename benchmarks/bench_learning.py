"""Which algorithm learns most: in as many updates, and for as many tokens with all branches counted?

    python benchmarks/bench_learning.py --seeds 0 1 2 3 4
    python benchmarks/bench_learning.py --against mrt_online --arms mrt_online_train_branches --every 24 \\
        --into runs/learning-from-branches --work runs/learning-from-branches/work
    python benchmarks/bench_learning.py --quickstart --seeds 0 1 2 --into runs/learning

Fixed before anything was compared: each seed has one warm-started model, from which all arms start; the recipes are
those of ``recipes/small_world``, with as many iterations and a constant learning rate, so that a run may be read at any
of its evaluations. All are evaluated on the same held-out problems, cut into episodes by one rule, with regret by
`gold_likelihood`, which is exact where an answer has one form. Tables have

- accuracy and normalised regret after the same number of updates, and after as many tokens (traces, branches,
  collection): those generated alone, and with those prefilled that were in no prefix cache. The tokens are those of the
  thriftier run of a pair of arms with one seed, so that no third arm moves a difference;
- each difference in two parts, cost and credit (``benchmarks/learning_curves.py``), when all of the budget is
  spent, and as the mean over as many equal shares of it as there are evaluations of trained weights. At equal updates
  these are the evaluations themselves. This mean was chosen after the runs had been seen;
- tokens until an accuracy is reached, as a ratio to GRPO's; a run that never reaches it counts as infinite.

Intervals are 95 %, paired with GRPO's: by a percentile bootstrap that draws seeds and problems, and behind it a t
interval over the seeds alone. With five seeds the first one may hold the truth less often than it says, and the second
one is the more careful. Of a group of 8, `mrt` lets 4 think on and stops 4. Regret's prover asks as that of
`mrt_online` does, which is therefore paid for what is measured. What is kept of each run lies beside the tables
(`runs/*.parquet`): such a run is not repeated, and one that was cut short goes on. These runs are no sweep, as a seed
decides their model too. The third command compares the last weights version of the quickstart with the first, in a
sweep over seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from benchmarking import RESULTS, ROOT, SMALL_WORLD, csv_text, options, spread, submit, table, written
from learning_curves import Contrast, Draws, SeededEstimate, contrast
from learnt import Learnt, Spending
from numpy.typing import NDArray
from run_of import read_events
from warm_start import WarmStartSettings, warm_start

from mrt_hpc.analysis.figures import Line, LineFigure, Panel, draw
from mrt_hpc.analysis.intervals import IntervalEstimate, paired_difference
from mrt_hpc.analysis.measures import EvaluationSummary
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.family import runs_of
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

BENCHMARK = "held-out"
BUDGETS = (32, 64, 128, 256)
SHOWN_BUDGET = 128  # of which the figures show the regret
ACCURACIES = (0.6, 0.7, 0.8)
REGRET_PROVER = r'{type: gold_likelihood, temperature: 1.0, forced_text: "Time is up.\n\n</think>\n\n\\boxed{"}'
EPISODES = "{markers: [Wait], min_paragraphs: 1, max_episodes: 99}"
COLUMNS = ("arm", "seed", "version", "generated", "prefilled", "accuracy", "tokens_per_rollout")


@dataclass(frozen=True)
class Arm:
    name: str
    recipe: str  # of recipes/small_world
    changes: dict[str, str] = field(default_factory=dict)  # of that recipe


ARMS = (
    Arm("grpo", "grpo"),
    Arm("mrt", "mrt"),
    Arm("mrt_online, forced_answer G = 4", "mrt_online"),
    Arm("mrt_online, look_ahead G = 1", "mrt_online_look_ahead", {"prover.branches": "1", "prover.planner": "uniform"}),
    Arm("length_penalty", "length_penalty"),
)
ALONE = (Arm("mrt_online, forced_answer G = 4, branches learnt", "mrt_online_train_branches"),)
"""Compared only where they are asked for."""


# -- runs


def learn(arm: Arm, seed: int, given: argparse.Namespace) -> Learnt:
    """What an arm learns with one seed: read, or run to its end."""
    kept, made = given.into / "runs" / f"{arm.recipe}-{seed}.parquet", settings(arm, given)
    if not kept.exists():
        Learnt.of_run(run(arm, seed, given), BENCHMARK, made).write(kept)
    learnt = Learnt.read(kept)
    if learnt.made != made:
        raise SystemExit(f"{kept} was made with {learnt.made}, not with {made}: take another --into")
    return learnt


def settings(arm: Arm, given: argparse.Namespace) -> dict[str, str]:
    """What the runs of an arm have in common, by the name of the recipe's field; all but its own are every arm's."""
    return {
        **arm.changes,
        "schedule.iterations": str(given.iterations),
        "schedule.iterations_per_job": str(given.iterations),
        "training.schedule": "constant",
        "evaluation.every": str(given.every),
        "evaluation.episodes": EPISODES,
        "evaluation.benchmarks.0.problems.problems": str(given.problems),
        "evaluation.prover": REGRET_PROVER,
        "evaluation.regret_budgets": str(list(BUDGETS)),
    }


def run(arm: Arm, seed: int, given: argparse.Namespace) -> RunLayout:
    """Submit it on this machine; one that is there already goes on."""
    layout = RunLayout(given.work.absolute() / "runs" / f"{arm.recipe}-{seed}")
    changes = {"seed": seed, "model": warm_started(seed, given), **settings(arm, given)}
    submit(SMALL_WORLD / f"{arm.recipe}.yaml", layout.root, changes)
    return layout


def warm_started(seed: int, given: argparse.Namespace) -> str:
    """The recipe's model from which all arms of a seed start."""
    model = given.work.absolute() / "models" / str(seed)
    if not (model / "config.json").exists():
        warm_start(WarmStartSettings(seed=seed), model, print)
    return f"{{type: hugging_face, path: {model}}}"


def quickstart_row(layout: RunLayout) -> str:
    recipe = read_recipe_lock(layout.recipe_lock)
    seed, last = recipe.seed, recipe.schedule.iterations
    before, after = (EvaluationSummary.read(layout.evaluation_summary(v, BENCHMARK)) for v in (0, last))
    gain = paired_difference(before.per_problem, after.per_problem)
    changes = "  ".join(
        f"{100 * before.quality[q]:5.1f} -> {100 * after.quality[q]:5.1f}" for q in sorted(before.quality)
    )
    times = [event["time"] for event in read_events(layout.events)]
    minutes = (times[-1] - times[0]) / 60
    return (
        f"{seed:4d}  {100 * before.accuracy:5.1f} -> {100 * after.accuracy:5.1f}  "
        f"{100 * gain.mean:+5.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})  {changes}  "
        f"{before.tokens_per_rollout or 0:5.0f} -> {after.tokens_per_rollout or 0:5.0f}  {minutes:5.1f}"
    )


def quickstart(seeds: list[int], into: Path) -> None:
    """Does the quickstart learn? The goal: every interval clear of zero, neither share of well-formed traces and of
    right checks down by more than 5 points, 12 minutes at most. A run that is there already is read, not repeated.
    """
    family = (into / "quickstart").absolute()
    submit(ROOT / "recipes" / "quickstart.yaml", family, {}, sweep={"seed": seeds})
    print("seed  accuracy, %     gain, points (95 %)      right checks, %   well formed, %   tokens       minutes")
    print(*map(quickstart_row, map(RunLayout, runs_of(family))), sep="\n")


# -- tables


Measure = Callable[[Learnt], NDArray[np.float64]]  # [E, P] of a run


MEASURES: dict[str, Measure] = {
    "accuracy": lambda run: run.accuracies_EP,
    **{f"normalised regret at {b} tokens": partial(lambda budget, run: run.regrets_EP[budget], b) for b in BUDGETS},
}


@dataclass(frozen=True)
class Study:
    seeds: list[int]  # [S]
    runs: dict[str, list[Learnt]]  # [arm][S]; the first arm is what the others are compared with

    @property
    def reference(self) -> str:
        return next(iter(self.runs))

    def contrast(self, arm: str, measure: Measure, equal: Spending, draws: Draws) -> Contrast:
        """An arm against the reference, at equal shares of the budget of the two."""
        first, second = ([run.curve(measure(run), equal) for run in self.runs[a]] for a in (self.reference, arm))
        evaluations = len(first[0].updates_E) - 1
        return contrast(first, second, np.arange(1, evaluations + 1) / evaluations, draws.weights_RP)

    def of_measure(self, name: str, measure: Measure, equal: Spending, draws: Draws) -> list[tuple[object, ...]]:
        """Two rows for each arm but the reference: at the whole budget, and the mean over its shares."""
        rows: list[tuple[object, ...]] = []
        for arm in [*self.runs][1:]:
            found = self.contrast(arm, measure, equal, draws)
            for when, taken in (("all of it", slice(-1, None)), ("mean of its shares", slice(None))):
                total, cost, credit = (
                    draws.estimate(part_SFR[:, taken].mean(axis=1))
                    for part_SFR in (found.total_SFR, found.cost_SFR, found.credit_SFR)
                )
                reference = 100 * found.reference_SFR[:, taken, 0].mean()
                parts = ("–", told(total)) if equal is Spending.STEPS else (told(cost), told(credit))
                rows.append((name, equal, arm, when, f"{reference:.1f}", told(total), *parts))
        return rows

    def ratios(self, accuracy: float, spending: Spending) -> list[tuple[object, ...]]:
        of = {arm: np.array([run.spent_to(accuracy, spending) for run in runs]) for arm, runs in self.runs.items()}
        rows = []
        for arm, tokens_S in of.items():
            pairs = zip(tokens_S, of[self.reference], strict=True)
            ratios = [t / r if r > 0 else float("nan") for t, r in pairs if np.isfinite(t) or np.isfinite(r)]
            reached = f"{np.isfinite(tokens_S).sum()} of {len(tokens_S)}"
            median = f"{np.median(tokens_S):,.0f}"
            rows.append((f"{100 * accuracy:.0f} %", spending, arm, reached, median, spread(ratios) if ratios else "–"))
        return rows

    def markdown(self) -> str:
        first = self.runs[self.reference]
        draws = Draws.of(len(first), len(first[0].problems_P))
        measures = [
            row for equal in Spending for name, measure in MEASURES.items()
            for row in self.of_measure(name, measure, equal, draws)
        ]  # fmt: skip
        parts = ("difference, points (95 %)", "= cost", "+ credit")
        tokens = [
            row for spending in (Spending.GENERATED, Spending.ALL) for accuracy in ACCURACIES
            for row in self.ratios(accuracy, spending)
        ]  # fmt: skip
        head = ("accuracy", "counted", "arm", "reached by", "tokens, median")
        return "\n".join([
            *table(("measure", "equal", "arm", "budget", f"{self.reference}, %", *parts), measures, words=4), "",
            *table((*head, f"ratio to {self.reference}, median (range)"), tokens, words=3),
        ])  # fmt: skip

    def rows(self) -> list[tuple[object, ...]]:
        return [
            (arm, seed, run.versions_E[e], *(float(measure[e]) for measure in measures))
            for arm, runs in self.runs.items()
            for seed, run in zip(self.seeds, runs, strict=True)
            for measures in [(run.generated_E, run.prefilled_E, run.accuracies_EP.mean(axis=1), run.trace_tokens_E)]
            for e in range(len(run.versions_E))
        ]

    def curves(self, measure: Measure, spending: Spending) -> tuple[Line, ...]:
        """Mean over seeds by mean tokens, with the range over seeds."""
        lines = []
        for arm, runs in self.runs.items():
            measured = np.array([measure(run).mean(axis=1) for run in runs])
            tokens = np.mean([run.spent(spending) for run in runs], axis=0) / 1e6
            ends = zip(measured.mean(axis=0), measured.min(axis=0), measured.max(axis=0), strict=True)
            lines.append(Line(arm, tuple(tokens), tuple(IntervalEstimate(*three) for three in ends)))
        return tuple(lines)


def told(gain: SeededEstimate) -> str:
    """The bootstrap's interval, and that of t over the seeds."""
    low, high = 100 * gain.over_seeds.low, 100 * gain.over_seeds.high
    mean, ends = 100 * gain.drawn.mean, f"{100 * gain.drawn.low:+.1f} to {100 * gain.drawn.high:+.1f}"
    return f"{mean:+.1f} ({ends}; t {low:+.1f} to {high:+.1f})"


def main() -> None:
    given = options(
        __doc__,
        seeds=[0, 1, 2, 3, 4],
        arms=[arm.recipe for arm in ARMS],
        against="grpo",  # the recipe that the others are compared with
        iterations=24,
        every=6,  # iterations between evaluations
        problems=250,  # held out
        quickstart=False,  # the quickstart alone
        into=RESULTS / "learning",
        work=ROOT / "runs" / "learning",  # where the runs go
    )
    if given.quickstart:
        quickstart(given.seeds, given.into)
        return
    by_recipe = {arm.recipe: arm for arm in (*ARMS, *ALONE)}
    arms = [by_recipe[recipe] for recipe in dict.fromkeys([given.against, *given.arms])]
    # Seed by seed, so that what is there is whole when it is cut short.
    found = [[learn(arm, seed, given) for arm in arms] for seed in given.seeds]
    study = Study(given.seeds, {arm.name: [of_seed[i] for of_seed in found] for i, arm in enumerate(arms)})
    written(csv_text(COLUMNS, study.rows()), given.into, "evaluations.csv")
    written(study.markdown(), given.into)
    for name, measure in (("accuracy", "accuracy"), ("regret", f"normalised regret at {SHOWN_BUDGET} tokens")):
        for spending in (Spending.GENERATED, Spending.ALL):
            figure = given.into / f"{name}-by-{spending.name.lower()}.png"
            title = f"{measure.capitalize()} by tokens"
            panel = Panel(title, f"{spending}, millions", measure, study.curves(MEASURES[measure], spending))
            draw(LineFigure(figure.stem, (panel,)), figure)


if __name__ == "__main__":
    main()
