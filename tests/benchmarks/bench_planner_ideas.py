"""What else could a branch planner do? Ideas tried on true values, for as many branches.

    python tests/benchmarks/bench_planner_ideas.py

Takes the true values that `bench_progress_variance.py` has written beside its tables, draws the branches of
`forced_answer` from them (a branch is right with probability V), and estimates progress in other ways than by the same
number of independent branches everywhere. Nothing is asked of a model, so each idea is repeated until its error is
known to a percent. An idea that spends fewer branches is compared at equal ones: noise falls as one over their
number, what is systematically wrong stays. *Oracle* knows what no run knows, and bounds what the idea can bring.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from variance_tables import TRUTH, TrueTrace, read_truth

from mrt_hpc.mrt.planner import draw_counts, expected_branches
from mrt_hpc.mrt.progress import progress
from mrt_hpc.run.atomic import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

RESULTS = Path(__file__).parent / "results" / "variance"
BUDGET = 4
"""G of the reference."""
MOST = 12
"""Branches at a boundary."""
PILOTS = 2
"""Branches that tell where more are wanted."""


@dataclass(frozen=True)
class Estimated:
    """The values of one trace, and what they cost."""

    values: NDArray[np.float64]
    """[k + 1]"""
    branches: float


Idea = Callable[[TrueTrace, np.random.Generator], Estimated]


def drawn(values: NDArray[np.float64], counts: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """How many of so many branches are right."""
    return rng.binomial(counts, values)


def uniform(trace: TrueTrace, rng: np.random.Generator, branches: int = BUDGET) -> Estimated:
    """G independent branches everywhere."""
    counts = np.full(len(trace.values), branches)
    return Estimated(drawn(trace.values, counts, rng) / counts, float(counts.sum()))


def neyman(trace: TrueTrace, rng: np.random.Generator, usual: float) -> Estimated:
    """Two branches everywhere, and more where these disagree."""
    values, pilots = trace.values, np.full(len(trace.values), PILOTS)
    right = drawn(values, pilots, rng)
    more = allotted(guessed_spread(right), BUDGET - float(PILOTS), usual, rng)
    return Estimated((right + drawn(values, more, rng)) / (pilots + more), float((pilots + more).sum()))


def guessed_spread(right: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard deviation of a branch, after so many pilots were right."""
    guess = (right + 0.5) / (PILOTS + 1.0)
    return np.sqrt(guess * (1 - guess))


def usual_pilot_spread(traces: Sequence[TrueTrace]) -> float:
    """The mean of that over all boundaries."""
    values, right = np.concatenate([t.values for t in traces])[:, None], np.arange(PILOTS + 1)
    ways = np.array([comb(PILOTS, int(r)) for r in right])
    chances = ways * values**right * (1 - values) ** (PILOTS - right)
    return float((chances @ guessed_spread(right)).mean())


def neyman_oracle(trace: TrueTrace, rng: np.random.Generator, scale: float) -> Estimated:
    """In proportion to the true spread, but one at least: unbiased."""
    expected = np.clip(scale * true_spreads(trace), 1.0, MOST)
    counts = draw_counts(expected, rng.random(len(expected)))
    return Estimated(drawn(trace.values, counts, rng) / counts, float(counts.sum()))


def true_spreads(*traces: TrueTrace) -> NDArray[np.float64]:
    """Standard deviation of one branch at each boundary."""
    values = np.concatenate([t.values for t in traces])
    return np.sqrt(values * (1 - values))


def scale_for(traces: Sequence[TrueTrace]) -> float:
    """Branches a spread, so that a boundary gets the budget on average: found by halving."""
    low, high, spreads = 0.0, 1e6, true_spreads(*traces)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(middle * spreads, 1.0, MOST).mean() < BUDGET else (low, middle)
    return low


def allotted(spreads: NDArray[np.float64], budget: float, usual: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Whole numbers of branches by the planner; ``usual`` is the mean spread over all traces."""
    expected = expected_branches(spreads, budget=budget, mean_spread=usual, most=MOST)
    return draw_counts(expected, rng.random(len(spreads)))


def skipping(trace: TrueTrace, rng: np.random.Generator, agreement: float) -> Estimated:
    """Every second boundary first; one between two that agree takes their mean, and no branch."""
    values, size = trace.values, len(trace.values)
    found = np.full(size, np.nan)
    first = sorted({*range(0, size, 2), size - 1})
    found[first] = drawn(values[first], np.full(len(first), BUDGET), rng) / BUDGET
    asked = len(first)
    for j in sorted(set(range(size)) - set(first)):
        if abs(found[j + 1] - found[j - 1]) <= agreement:
            found[j] = (found[j - 1] + found[j + 1]) / 2
        else:
            found[j] = rng.binomial(BUDGET, values[j]) / BUDGET
            asked += 1
    return Estimated(found, float(BUDGET * asked))


def stopping(trace: TrueTrace, rng: np.random.Generator, errors: float) -> Estimated:
    """Two more branches a round, but not where the progress on both sides has a clear sign already."""
    values, size = trace.values, len(trace.values)
    counts, right = np.full(size, 2), drawn(trace.values, np.full(size, 2), rng)
    while counts.max() < MOST:
        guess = (right + 0.5) / (counts + 1.0)
        noise = guess * (1 - guess) / counts
        clear = np.abs(progress(guess)) > errors * np.sqrt(noise[1:] + noise[:-1])
        wanted = ~(np.append(clear, True) & np.insert(clear, 0, True)) & (counts == counts.max())
        if not wanted.any():
            break
        more = np.where(wanted, 2, 0)
        right, counts = right + drawn(values, more, rng), counts + more
    return Estimated(right / counts, float(counts.sum()))


def natural_ending(trace: TrueTrace, rng: np.random.Generator) -> Estimated:
    """The reward of the trace itself as its last value, without a branch."""
    before = uniform(TrueTrace(trace.problem, trace.values[:-1], trace.reward), rng)
    return Estimated(np.append(before.values, trace.reward), before.branches)


def shrunk(trace: TrueTrace, rng: np.random.Generator) -> Estimated:
    """Drawn towards the trace's mean, by as much as its spread is noise."""
    plain = uniform(trace, rng)
    centre, noise = plain.values.mean(), float(np.mean(plain.values * (1 - plain.values)) / (BUDGET - 1))
    spread = float(plain.values.var(ddof=1))
    kept = max(0.0, 1.0 - noise / spread) if spread > 0 else 1.0
    return Estimated(centre + kept * (plain.values - centre), plain.branches)


def group_start(trace: TrueTrace, rng: np.random.Generator, size: int) -> Estimated:
    """V_0 is one value for all rollouts of a problem: from the branches of all of them."""
    plain = uniform(trace, rng)
    start = rng.binomial(BUDGET * size, trace.values[0]) / (BUDGET * size)
    return Estimated(np.append(start, plain.values[1:]), plain.branches)


def common(trace: TrueTrace, rng: np.random.Generator) -> Estimated:
    """The same random numbers at every boundary, as if an answer hung on one of them alone."""
    uniforms = rng.random(BUDGET)
    found = np.array([(uniforms < v).mean() for v in trace.values])
    return Estimated(found, float(BUDGET * len(found)))


def ideas(traces: Sequence[TrueTrace]) -> dict[str, Idea]:
    """All that are tried, the reference first."""
    found: dict[str, Idea] = {
        "uniform, G = 4": uniform,
        "uniform, G = 8": partial(uniform, branches=8),
        "Neyman, two pilots": partial(neyman, usual=usual_pilot_spread(traces)),
        "Neyman, oracle": partial(neyman_oracle, scale=scale_for(traces)),
        "skip where neighbours agree exactly": partial(skipping, agreement=0.0),
        "skip where neighbours agree within 1/4": partial(skipping, agreement=0.25),
        "stop at a clear sign, 1 standard error": partial(stopping, errors=1.0),
        "stop at a clear sign, 2 standard errors": partial(stopping, errors=2.0),
        "shrink towards the trace": shrunk,
        "V_0 from the group of 8": partial(group_start, size=8),
        "common random numbers, oracle": common,
    }
    if any(t.reward for t in traces):  # where no trace closes its thought there is no ending to take
        found["the natural ending as last value"] = natural_ending
    return found


@dataclass(frozen=True)
class Tried:
    """How an idea did."""

    branches: float
    """A boundary."""
    square: float
    """Mean squared error of progress."""
    bias: float
    """Root mean square of what repeats agree to be wrong about; of the natural ending, its one draw is part of that."""

    def at(self, branches: float) -> float:
        """The error, had it spent so many branches a boundary: noise falls as one over their number, bias does not."""
        noise = max(0.0, self.square - self.bias**2)
        return noise * self.branches / branches + self.bias**2

    def line(self, name: str, reference: Tried) -> str:
        """Of the table."""
        ratio = self.at(reference.branches) / reference.square
        return f"| {name} | {self.branches:.2f} | {self.square:.4f} | {self.bias**2:.4f} | {ratio:.2f} |"


def tried(idea: Idea, traces: Sequence[TrueTrace], repeats: int) -> Tried:
    """Repeat it on all traces."""
    rng = np.random.default_rng(0)
    runs = [[idea(trace, rng) for trace in traces] for _ in range(repeats)]
    true_N = np.concatenate([progress(t.values) for t in traces])
    errors_RN = np.array([np.concatenate([progress(e.values) for e in run]) for run in runs]) - true_N
    systematic = float(np.mean(errors_RN.mean(axis=0) ** 2 - errors_RN.var(axis=0, ddof=1) / repeats))
    branches = sum(e.branches for run in runs for e in run) / repeats / sum(len(t.values) for t in traces)
    return Tried(branches, float(np.mean(errors_RN**2)), max(0.0, systematic) ** 0.5)


def table(traces: Sequence[TrueTrace], repeats: int) -> str:
    """Of all ideas, as Markdown."""
    found = {name: tried(idea, traces, repeats) for name, idea in ideas(traces).items()}
    reference = next(iter(found.values()))
    lines = [
        "| idea | branches a boundary | squared error of progress | systematic | error at equal branches |",
        "|---|---:|---:|---:|---:|",
        *(t.line(name, reference) for name, t in found.items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Try all on each set of true values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variance", type=Path, default=RESULTS, help="where bench_progress_variance.py wrote")
    parser.add_argument("--repeats", type=int, default=1000)
    arguments = parser.parse_args()
    for truth in sorted(arguments.variance.glob(f"*/{TRUTH}")):
        told = table(read_truth(truth), arguments.repeats)
        write_text(truth.with_name("planner-ideas.md"), told)
        print(truth.parent.name, told, sep="\n")


if __name__ == "__main__":
    main()
