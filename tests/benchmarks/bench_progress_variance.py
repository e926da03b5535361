"""How well does each prover estimate progress, for the tokens it spends?

    python tests/benchmarks/bench_progress_variance.py --forms 1 --into results/variance/one-form
    python tests/benchmarks/bench_progress_variance.py --forms 10 --into results/variance/ten-forms
    python tests/benchmarks/bench_progress_variance.py --gguf MODEL.gguf --into results/variance/language-model

Traces of the small world's warm-started model are sampled once. The value of every prefix becomes known by thousands of
branches of `forced_answer`. Then each prover estimates the progress of every episode, several times over with other
seeds; its error is taken against that truth, less what the truth itself is uncertain by. Tokens are those that were
generated and those prompt tokens that were not found in the prefix cache; the trace's own prefix is put there before,
as when branches are issued hot. `--forms 10` teaches the model ten ways of writing each answer (7, 8-1, 9-2, ...), of
which a prover knows the gold answer only, and what it has seen. `--gguf` takes a real language model and word problems
instead, see `small_language_model.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from small_language_model import convert, word_problems

from mrt_hpc.analysis.plots import Series, compared
from mrt_hpc.analysis.statistics import Estimate
from mrt_hpc.grading.pool import GraderPool
from mrt_hpc.inference.client import GenerationClient, connect
from mrt_hpc.inference.sampler import RolloutSampler, ValuedTrace
from mrt_hpc.inference.server import ServerSettings, VllmServer
from mrt_hpc.inference.wire import Request, Settings
from mrt_hpc.mrt.progress import progress
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.graded import Asking, TraceGrader, sampled_group
from mrt_hpc.roles.inference import rollout_plan
from mrt_hpc.roles.prompting import Prompter
from mrt_hpc.roles.proving import Mu, ProverMaker
from mrt_hpc.roles.starts import WholeTraces, trace_settings
from mrt_hpc.world.task import FORCED_TEXT, Habits, Split, problems
from mrt_hpc.world.warm_start import WarmStartSettings, warm_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from mrt_hpc.inference.traces import SampledTrace
    from mrt_hpc.run.records import Problem

RECIPE = Path(__file__).parents[2] / "recipes" / "small_world" / "mrt_online.yaml"
REFERENCE = "forced_answer, G = 4"
TRUTH_SEED = 1_000_000
"""Not among the seeds of the repeats."""
THOUGHT_END = "</think>"
SMALLEST_SHOWN = 1e-5
"""Of an error, in the figure; what is exact has none."""


@dataclass(frozen=True)
class Setting:
    """Where it is measured."""

    changes: tuple[str, ...]
    """Of the recipe."""
    problems: Callable[[int], list[Problem]]
    forced_text: str
    longest_answer: int
    """Tokens."""
    sequence: int
    """Tokens of the longest one."""


SMALL_WORLD = Setting((), partial(problems, Split.HELD_OUT), FORCED_TEXT, 8, 512)
LANGUAGE_MODEL = Setting(
    (
        'prompt={thought_start: "", instruction: " Think in a few short steps, with a blank line between them."}',
        'episodes={markers: [""], min_paragraphs: 1, max_episodes: 6}',
        "sampling.max_prompt_tokens=128",
    ),
    word_problems,
    "\n\nSo the final answer is \\boxed{",
    12,
    1024,
)


@dataclass(frozen=True)
class Contender:
    """One way of estimating values."""

    name: str
    prover: str
    """The recipe's section, as YAML."""


def contenders(setting: Setting, reference_branches: int = 4) -> list[Contender]:
    """All that are compared, the reference first.

    Args:
        setting: where.
        reference_branches: G of the reference: thousands of branches are the truth.
    """
    text = json.dumps(setting.forced_text)

    def prover(kind: str, branches: int = 4, **more: object) -> str:
        fields = {"type": kind, "temperature": 1.0, "forced_text": text, **more}
        if kind != "gold_likelihood":
            fields |= {"branches": branches, "max_tokens": setting.longest_answer}
        return "{" + ", ".join(f"{key}: {value}" for key, value in fields.items()) + "}"

    def several(kind: str, sizes: Sequence[int], label: str = "", **more: object) -> list[Contender]:
        return [Contender(f"{kind}{label}, G = {g}", prover(kind, g, **more)) for g in sizes]

    return [
        *several("forced_answer", (reference_branches, 8, 16)),
        *several("forced_answer", (2, 4, 8), " common", seeds="common"),
        *several("boxed_answer", (4, 8)),
        *several("boxed_answer", (2, 4, 8), " common", seeds="common"),
        *several("look_ahead", (1, 2, 4)),
        *several("look_ahead", (1, 2, 4), " common", seeds="common"),
        *several("look_ahead", (2, 4), " common planned", seeds="common", planner="by_openness"),
        Contender("gold_likelihood", prover("gold_likelihood")),
        *several("rao_blackwell", (1, 2, 4)),
        *several("rao_blackwell", (1, 2, 4), " common", seeds="common"),
        *several("majority", (4, 8)),
    ]


@dataclass(frozen=True)
class Valued:
    """One trace with the values of its prefixes."""

    problem: str
    values: NDArray[np.float64]
    """[k + 1]"""
    generated: int
    prefilled: int
    """Prompt tokens that were not in the cache."""


@dataclass(frozen=True)
class Measured:
    """One estimate of all traces."""

    traces: list[Valued]

    @property
    def generated(self) -> float:
        """Tokens a boundary."""
        return sum(t.generated for t in self.traces) / self.boundaries

    @property
    def prefilled(self) -> float:
        """Tokens a boundary."""
        return sum(t.prefilled for t in self.traces) / self.boundaries

    @property
    def boundaries(self) -> int:
        """Of all traces."""
        return sum(len(t.values) for t in self.traces)


@dataclass
class Bench:
    """The traces and what asks about them."""

    client: GenerationClient
    server: VllmServer
    mu: Mu
    setting: Setting
    pool: GraderPool
    traces: list[SampledTrace]
    concurrency: asyncio.Semaphore

    async def estimate(self, contender: Contender, seed: int) -> Measured:
        """Values of all traces by one contender. The branches of a trace are issued hot."""
        await asyncio.to_thread(self.server.reset_prefix_cache)
        recipe = load_recipe(RECIPE, (*self.setting.changes, f"prover={contender.prover}"))
        assert recipe.prover is not None
        maker = ProverMaker.of(recipe.prover, self.mu, seed)
        asking = Asking.of(maker, self.client)
        by_problem = [list(g) for _, g in groupby(self.traces, key=lambda t: t.group.problem.id)]
        found = await asyncio.gather(*(self._problem(asking, traces) for traces in by_problem))
        return Measured([one for of_problem in found for one in of_problem])

    async def _problem(self, asking: Asking, traces: Sequence[SampledTrace]) -> list[Valued]:
        """One trace after the other: what the first ones answered, the prover knows of the last ones."""
        grader = TraceGrader(self.pool, THOUGHT_END, asking)
        async with self.concurrency:
            return [await self._one(asking, grader, trace) for trace in traces]

    async def _one(self, asking: Asking, grader: TraceGrader, trace: SampledTrace) -> Valued:
        whole = Request(trace.context(len(trace.boundaries) - 1), [0], Settings(max_tokens=1))
        async for _ in self.client.stream([whole]):
            pass
        valuation = await asking.prover.value(trace)
        graded = await grader.grade(ValuedTrace(trace, valuation))
        cost = sampled_group([graded], {}).statistics
        values = np.array([v.value for v in graded.values])
        return Valued(trace.group.problem.id, values, cost.branch_tokens, cost.prompt_tokens - cost.cached_tokens)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    generated: float
    """Tokens a boundary."""
    prefilled: float
    """Tokens a boundary."""
    error: Estimate
    """Mean squared error of progress, over episodes and repeats."""
    bias: float
    """Mean error of a value."""
    correlation: float
    """Of estimated with true progress."""
    ratio: Estimate
    """The error against the reference's, both times the tokens generated."""
    ratio_with_prefill: Estimate
    """The same with the prompt tokens that were not in the cache."""


Squares = dict[str, tuple[float, int]]
"""Of each problem the sum of squared errors of progress, less what the truth is uncertain by, and their number."""


def squares(runs: Sequence[Measured], truth: Measured, samples: int) -> Squares:
    """Errors of a contender against the truth, by problem: its traces are alike."""
    found: dict[str, tuple[float, int]] = {}
    for run in runs:
        for estimated, true in zip(run.traces, truth.traces, strict=True):
            error = (progress(estimated.values) - progress(true.values)) ** 2 - progress_noise(true.values, samples)
            total, count = found.get(true.problem, (0.0, 0))
            found[true.problem] = (total + float(error.sum()), count + len(error))
    return found


def measure(name: str, runs: Sequence[Measured], reference: Sequence[Measured], truth: Measured, samples: int) -> Row:
    """The error of a contender against the truth, and against the reference's at equal tokens."""
    mine, its = squares(runs, truth, samples), squares(reference, truth, samples)
    values = [np.concatenate([t.values for t in run.traces]) for run in runs]
    gains = [np.concatenate([progress(t.values) for t in run.traces]) for run in runs]
    true = np.concatenate([progress(t.values) for t in truth.traces])
    return Row(
        name,
        mean(run.generated for run in runs),
        mean(run.prefilled for run in runs),
        resampled(mine, lambda problems: error_of(mine, problems)),
        float(np.mean(values) - np.mean(np.concatenate([t.values for t in truth.traces]))),
        float(np.corrcoef(np.concatenate(gains), np.tile(true, len(runs)))[0, 1]),
        resampled(mine, lambda problems: scaled(mine, its, runs, reference, problems, prefill=False)),
        resampled(mine, lambda problems: scaled(mine, its, runs, reference, problems, prefill=True)),
    )


def error_of(parts: Squares, problems: Sequence[str]) -> float:
    """Mean squared error over the episodes of some problems."""
    return sum(parts[p][0] for p in problems) / sum(parts[p][1] for p in problems)


def scaled(
    mine: Squares,
    its: Squares,
    runs: Sequence[Measured],
    reference: Sequence[Measured],
    problems: Sequence[str],
    *,
    prefill: bool,
) -> float:
    """Error times tokens against the reference's: an error falls as one over the tokens, as rows of one prover show."""
    tokens, of_reference = (
        mean(run.generated + (run.prefilled if prefill else 0.0) for run in of) for of in (runs, reference)
    )
    return error_of(mine, problems) * tokens / (error_of(its, problems) * of_reference)


def mean(numbers: Iterable[float]) -> float:
    """Of at least one."""
    return float(np.mean(list(numbers)))


def progress_noise(truth: NDArray[np.float64], samples: int) -> NDArray[np.float64]:
    """Variance of the true progress, each value of which is the mean of so many independent branches."""
    variance = truth * (1 - truth) / samples
    return variance[1:] + variance[:-1]


def resampled(parts: Squares, measure: Callable[[Sequence[str]], float], draws: int = 2000) -> Estimate:
    """A measure of all problems, with a 95 % interval by drawing problems."""
    rng, problems = np.random.default_rng(0), sorted(parts)
    drawn = [measure([problems[i] for i in rng.integers(len(problems), size=len(problems))]) for _ in range(draws)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(measure(problems), float(low), float(high))


def table(rows: Sequence[Row]) -> str:
    """As Markdown."""
    lines = [
        "| prover | generated | prefilled | squared error of progress (95 %) | bias of V | correlation "
        "| error, ratio at equal generated tokens (95 %) | at equal generated and prefilled |",
        "|---|---:|---:|---|---:|---:|---|---|",
    ]
    lines += [
        f"| {r.name} | {r.generated:.1f} | {r.prefilled:.1f} | {told(r.error, 4)} | {r.bias:+.3f} "
        f"| {r.correlation:.2f} | {told(r.ratio, 3)} | {told(r.ratio_with_prefill, 3)} |"
        for r in rows
    ]
    return "\n".join(lines)


def told(estimate: Estimate, digits: int) -> str:
    """With its interval."""
    return f"{estimate.mean:.{digits}f} ({estimate.low:.{digits}f} to {estimate.high:.{digits}f})"


async def run(server: VllmServer, model: Path, setting: Setting, arguments: argparse.Namespace) -> list[Row]:
    """Sample the traces, find the truth, compare."""
    mu = Mu.of(Prompter.of(model, load_recipe(RECIPE, setting.changes).prompt))
    async with connect(server.socket, server.key) as client:
        traces = await sampled_traces(client, mu, setting, arguments)
        with GraderPool(1) as pool:
            room = asyncio.Semaphore(arguments.concurrency)
            return await rows_of(Bench(client, server, mu, setting, pool, traces, room), arguments)


async def sampled_traces(
    client: GenerationClient, mu: Mu, setting: Setting, arguments: argparse.Namespace
) -> list[SampledTrace]:
    """Those with an episode, by problem."""
    recipe, size = load_recipe(RECIPE, setting.changes), arguments.rollouts
    starts = WholeTraces(mu.prompter, size, trace_settings(recipe, mu.prompter, 0), recipe.sampling.max_prompt_tokens)
    sampler = RolloutSampler(client, mu.tokens, rollout_plan(recipe, 0, size))
    groups = [starts.group(p) for p in setting.problems(arguments.problems)]
    found = [v.trace async for v in sampler.sample(groups)]
    return sorted((t for t in found if len(t.boundaries) > 1), key=lambda t: (t.group.problem.id, t.sample))


async def rows_of(bench: Bench, arguments: argparse.Namespace) -> list[Row]:
    """Of every contender, the reference first."""
    truth = await bench.estimate(contenders(bench.setting, arguments.truth)[0], TRUTH_SEED)
    values = [t.values for t in truth.traces]
    print(f"{len(values)} traces, {truth.boundaries} boundaries; median value {np.median(np.concatenate(values)):.2f}, "
          f"spread of progress {np.concatenate([progress(v) for v in values]).std():.2f}", flush=True)  # fmt: skip
    rows: list[Row] = []
    reference: list[Measured] = []
    for contender in contenders(bench.setting):
        if contender.name != REFERENCE and not contender.name.startswith(tuple(arguments.only)):
            continue
        runs = [await bench.estimate(contender, seed) for seed in range(arguments.repeats)]
        reference = reference or runs
        rows.append(measure(contender.name, runs, reference, truth, arguments.truth))
        print(rows[-1], flush=True)
    return rows


def write(rows: Sequence[Row], into: Path) -> None:
    """The table as Markdown and CSV, and the figure."""
    (into / "table.md").write_text(table(rows) + "\n")
    with (into / "table.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["prover", "generated", "prefilled", "error", "low", "high", "bias", "correlation", "ratio"])
        writer.writerows(
            [
                r.name,
                r.generated,
                r.prefilled,
                r.error.mean,
                r.error.low,
                r.error.high,
                r.bias,
                r.correlation,
                r.ratio.mean,
            ]
            for r in rows
        )
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.name.partition(", G")[0], []).append(row)
    compared(
        into / "error.png",
        "Error of progress by what it costs",
        "generated tokens a boundary",
        "mean squared error",
        [series(name, of) for name, of in lines.items()],
        logarithmic=True,
    )


def series(name: str, rows: Sequence[Row]) -> Series:
    """One prover with several numbers of branches."""

    def shown(errors: Iterable[float]) -> tuple[float, ...]:
        return tuple(max(error, SMALLEST_SHOWN) for error in errors)

    return Series(
        name,
        tuple(r.generated for r in rows),
        shown(r.error.mean for r in rows),
        shown(r.error.low for r in rows),
        shown(r.error.high for r in rows),
    )


def main() -> None:
    """Warm up a model, measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", type=int, default=1, help="ways of writing an answer")
    parser.add_argument("--gguf", type=Path, help="a language model, in place of the small world's")
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--rollouts", type=int, default=4, help="traces a problem")
    parser.add_argument("--truth", type=int, default=2000, help="branches a boundary")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--concurrency", type=int, default=8, help="problems asked about at once")
    parser.add_argument("--into", type=Path, default=Path("results/variance"))
    parser.add_argument("--only", nargs="+", default=[""], help="contenders whose names begin with one of these")
    parser.add_argument("--model", type=Path, help="a warm-started model, instead of making one")
    arguments = parser.parse_args()
    model, setting = arguments.model or arguments.into / "model", LANGUAGE_MODEL if arguments.gguf else SMALL_WORLD
    if not (model / "config.json").exists() and arguments.gguf:
        convert(arguments.gguf, model)
    elif not (model / "config.json").exists():
        warm_start(WarmStartSettings(seed=1, habits=Habits(answer_forms=arguments.forms)), model, print)
    settings = ServerSettings(
        model,
        max_model_len=setting.sequence,
        dtype="float32",
        kv_cache_gib=1.0,
        noise_by_request=True,
        extra_args=("--enforce-eager",),
    )
    arguments.into.mkdir(parents=True, exist_ok=True)
    with VllmServer(settings, arguments.into / "vllm.log") as server:
        rows = asyncio.run(run(server, model, setting, arguments))
    write(rows, arguments.into)
    print(table(rows))


if __name__ == "__main__":
    main()
