"""Comparisons of recipes over training seeds: do 95 % intervals hold the truth, and is a recipe told from itself?

    python benchmarks/bench_seeds.py

The first table simulates two recipes whose true difference is known (``benchmarks/simulated_arms.py``), with and
without an effect of the seed, and of the seed on single problems; and a recipe that is compared with itself. The second
compares recipes with themselves in the runs that the learning study has kept: the seeds of each are divided in all ways
into two arms. Such divisions share most of their runs, so that they are far fewer than so many independent comparisons.
All seeds are fixed: the same tables come out again. Needs no model; takes twelve minutes on one core.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import TYPE_CHECKING

import numpy as np
from benchmarking import RESULTS, csv_text, options, table, written
from learnt import Learnt
from simulated import AIME, HARD, MATH500, Coverage
from simulated_arms import Recipes

from mrt_hpc.analysis.intervals import crossed_gain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
SEEDS = ((3, 3), (5, 5), (10, 10), (2, 2), (3, 10))
PROBLEMS = (30, 500)
EFFECTS = {
    "none": (0.0, 0.0), "seed": (0.4, 0.0), "seed by problem": (0.0, 0.8), "both": (0.4, 0.8),
    "both, small": (0.15, 0.5),
}  # fmt: skip
"""Standard deviations of the effect of a seed, and of a seed on a problem, log-odds."""
WANTED = (0.93, 0.97)
STUDIED = ("grpo", "mrt", "mrt_online", "mrt_online_look_ahead", "length_penalty")
DIVISIONS = ((1, 1), (2, 2), (2, 3))


Simulated = tuple[str, str, str, int, float, Coverage, float, Coverage]


def in_words(seeds: tuple[int, int]) -> str:
    return f"{seeds[0]} and {seeds[1]}"


def simulated(trials: int, seed: int) -> Iterator[Simulated]:
    """Population, effect, seeds, problems, truth, coverage, the share of a recipe's comparisons with itself that call
    it different, and the coverage of the first recipe's own accuracy.
    """
    for mixture, (effect, spreads), seeds, problems in product((AIME, MATH500, HARD), EFFECTS.items(), SEEDS, PROBLEMS):
        recipes = Recipes(mixture, *spreads)
        found = recipes.covered(trials, seeds, problems, seed)
        different = recipes.called_different(trials, seeds, problems, seed)
        own = recipes.first_covered(trials, seeds[0], problems, seed)
        yield mixture.name, effect, in_words(seeds), problems, recipes.truth, found, different, own


def shown(coverage: Coverage) -> str:
    """Coverage in per cent; bold outside the wanted range."""
    share = f"{100 * coverage.share:.1f}"
    return share if WANTED[0] <= coverage.share <= WANTED[1] else f"**{share}**"


# -- stored runs


def divisions(first: int, second: int) -> Iterator[tuple[list[int], list[int]]]:
    """All ways to divide five seeds into two arms of these sizes."""
    for one in combinations(range(5), first):
        for other in combinations(sorted(set(range(5)).difference(one)), second):
            if first != second or one < other:
                yield list(one), list(other)


def measured(runs: Path) -> dict[str, list[NDArray[np.float64]]]:
    """[recipe][S, P] after the last iteration, by measure."""
    learnt = [[Learnt.read(runs / f"{recipe}-{seed}.parquet") for seed in range(5)] for recipe in STUDIED]
    found = {"accuracy": [np.array([run.accuracies_EP[-1] for run in of_recipe]) for of_recipe in learnt]}
    for budget in (64, 256):
        found[f"regret@{budget}"] = [np.array([run.regrets_EP[budget][-1] for run in runs]) for runs in learnt]
    return found


def stored_rows(runs: Path) -> Iterator[list[str]]:
    """Measure, and for each division the arms that are called different, of how many."""
    for measure, of_recipes in measured(runs).items():
        cells = []
        for division in DIVISIONS:
            p_values = [
                crossed_gain([(values_SP[one], values_SP[other])]).p_value
                for values_SP in of_recipes
                for one, other in divisions(*division)
            ]
            cells.append(f"{sum(p < 0.05 for p in p_values)} of {len(p_values)}")
        yield [measure, *cells]


def main() -> None:
    given = options(__doc__, trials=4000, seed=0, runs=RESULTS / "learning" / "runs", into=RESULTS / "seeds")
    found = []
    for one in simulated(given.trials, given.seed):
        found.append(one)
        print(*one, flush=True)
    written(document(given.trials, found, list(stored_rows(given.runs))), given.into)
    head = (
        "population",
        "effect",
        "seeds",
        "problems",
        "truth",
        "coverage",
        "below",
        "above",
        "width",
        "different",
        "own",
    )
    rows = [
        (*first, *(f"{number:.4g}" for number in (truth, one.share, one.below, one.above, one.width, same, own.share)))
        for *first, truth, one, same, own in found
    ]
    written(csv_text(head, rows), given.into, "table.csv")


def document(trials: int, found: Sequence[Simulated], stored: Sequence[Sequence[str]]) -> str:
    cells = {
        (population.removeprefix("like "), effect, seeds, problems): (
            shown(one), f"{100 * one.width:.1f}", f"{100 * same:.1f}", shown(own),
        )
        for population, effect, seeds, problems, _, one, same, own in found
    }  # fmt: skip
    heads = list(dict.fromkeys(key[:3] for key in cells))
    rows = [[*head, *(cell for problems in PROBLEMS for cell in cells[*head, problems])] for head in heads]
    columns = [
        f"{problems} problems{of}" for problems in PROBLEMS for of in (", coverage", ", width", ", same", ", own")
    ]
    return "\n".join([
        f"Two recipes, each with so many training seeds and four samples a problem: coverage of the 95 % interval of "
        f"their difference in {trials:,} trials, per cent, bold outside 93 to 97; its mean width, points; and under "
        "\"same\" the share of comparisons of a recipe with itself that call it different, per cent; and under "
        "\"own\" the coverage of the first one's own accuracy.", "",
        *table(("problems like", "effects", "seeds", *columns), rows, words=3), "",
        "Runs of the learning study, 250 problems: arms of one recipe that are called different, by how its five seeds "
        "are divided; 1 and 1 are single models.", "",
        *table(("measure", *map(in_words, DIVISIONS)), stored),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
