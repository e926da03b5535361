"""What does a progress value cost: tokens, prompt tokens from the prefix cache, and seconds?

    python benchmarks/bench_branch_cost.py --run FINISHED_RUN

The traces of one iteration of `recipes/small_world/mrt_online.yaml` are sampled alone, and with each prover. *Hot*:
the prover is asked the moment a trace is finished, as a run does. *Cold*: all traces are sampled first, the server then
forgets every prefix, and the prover is asked about all. Both with the prefix cache and without one. Seconds are those
beyond the sampling and grading of the same traces alone, the median of several repeats in turn; the share is that of
the whole of it. `--run` adds from the wall times of a finished run what share of an iteration that is.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench_progress_variance import RECIPE, SMALL_WORLD, contenders, groups_of, served, session_of
from benchmarking import RESULTS, ROOT, options, table, written

from mrt_hpc.analysis.measures import IterationMetrics, Phase
from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.domains.small_world.equations import Split, problems
from mrt_hpc.domains.verifiers import MathVerifier
from mrt_hpc.inference.client import GenerationClient, connect
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.sampler import RolloutSampler
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.provers.prover_session import ProverModel, ProverSession
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.sampling.round_sampler import rollout_plan
from mrt_hpc.roles.sampling.sampling_session import SamplingSession
from mrt_hpc.run.groups import merge_samples
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from mrt_hpc.inference.traces import PromptedGroup
    from mrt_hpc.run.groups import Sampled

PROVERS = (
    "forced_answer, G = 4", "boxed_answer, G = 4", "look_ahead common, G = 2", "gold_likelihood",
    "rao_blackwell, G = 2",
)  # fmt: skip
HEAD = ("prover", "cache", "branches", "generated", "prefilled", "cached", "ms", "share of sampling")


@dataclass(frozen=True)
class Spent:
    """What one way of asking spent beyond the traces."""

    seconds: float  # of traces and values together
    values: int  # progress values: episodes of all traces
    generated: int
    prompt: int
    cached: int


@dataclass
class Bench:
    """One server, and the groups of an iteration."""

    server: VllmServer
    client: GenerationClient
    pool: GraderPool
    mu: ProverModel
    groups: list[PromptedGroup]
    group_size: int

    async def hot(self, asking: ProverSession | None) -> tuple[float, list[Sampled]]:
        """Seconds, and graded traces whose prover was asked as soon as they were finished; or no prover at all."""
        await asyncio.to_thread(self.server.control.reset_prefix_cache)
        session = self.session(asking)
        started = time.perf_counter()
        graded = await asyncio.gather(*[trace async for _, trace in session.traces(self.groups)])
        return time.perf_counter() - started, graded

    async def cold(self, asking: ProverSession) -> tuple[float, list[Sampled]]:
        """The same, when all traces were sampled before and every prefix has been forgotten."""
        session = self.session(asking)
        await asyncio.to_thread(self.server.control.reset_prefix_cache)
        started = time.perf_counter()
        traces = [trace async for trace in session.sampler.sample(self.groups)]
        sampled = time.perf_counter() - started
        await asyncio.to_thread(self.server.control.reset_prefix_cache)
        started = time.perf_counter()
        found = await asyncio.gather(*map(session.value, traces))
        return sampled + time.perf_counter() - started, found

    def session(self, prover: ProverSession | None) -> SamplingSession:
        plan = rollout_plan(load_recipe(RECIPE), 0, self.group_size)
        return SamplingSession(RolloutSampler(self.client, self.mu.tokens, plan), self.pool, prover)


def spent(seconds: float, graded: Sequence[Sampled]) -> Spent:
    cost = merge_samples(graded).statistics
    values = sum(len(g.rollouts[0].boundaries) - 1 for g in graded)
    return Spent(seconds, values, cost.branch_tokens, cost.prompt_tokens, cost.cached_tokens)


async def measured(server: VllmServer, model: Path, caching: bool, given: argparse.Namespace) -> list[list[str]]:
    recipe = load_recipe(RECIPE)
    prompter, size = Prompter.of(model, recipe.prompt), recipe.sampling.rollouts_per_problem
    sections = {c.name: c.prover for c in contenders(SMALL_WORLD)}
    rows = []
    async with connect(server.socket, server.key) as client:
        groups = groups_of(recipe, prompter, problems(Split.TRAIN, given.problems), size)
        with GraderPool(MathVerifier(), 1) as pool:
            bench = Bench(server, client, pool, ProverModel.of(prompter), groups, size)
            await bench.hot(None)  # the first requests find a server that is not warm yet
            for name in PROVERS:
                rows += await rows_of(bench, name, sections[name], caching, given.repeats)
    return rows


async def rows_of(bench: Bench, name: str, section: str, caching: bool, repeats: int) -> list[list[str]]:
    asking = session_of(section, bench.mu, bench.client)
    await bench.hot(asking)  # from here on it knows what is answered
    alone, hot, cold = [], [], []
    for _ in range(repeats):
        alone.append((await bench.hot(None))[0])
        hot.append(spent(*await bench.hot(asking)))
        cold.append(spent(*await bench.cold(asking)))
    usual = statistics.median(alone)
    rows = [row(name, caching, order, runs, usual) for order, runs in (("hot", hot), ("cold", cold))]
    print(*rows, sep="\n", flush=True)
    return rows


def row(name: str, caching: bool, order: str, runs: Sequence[Spent], alone: float) -> list[str]:
    """One row of the table; tokens and seconds are of one progress value."""
    one, seconds = runs[-1], statistics.median(r.seconds for r in runs)
    each = (one.generated, one.prompt - one.cached, one.cached, 1000 * (seconds - alone))
    share = f"{100 * (seconds - alone) / seconds:.0f} %"
    return [name, "on" if caching else "off", order, *(f"{number / one.values:.1f}" for number in each), share]


def of_an_iteration(layout: RunLayout) -> str:
    """What sampling and branching together take of the wall time of a run's iterations, but for the first, which waits
    for the server to start.
    """
    metrics = [IterationMetrics.read(p) for p in sorted(layout.root.glob("iterations/*/metrics.json"))[1:]]
    generation = sum(m.seconds.get(Phase.GENERATION, 0.0) for m in metrics)
    share = generation / sum(m.wall_seconds or 0.0 for m in metrics)
    return f"Sampling and branching together are {100 * share:.0f} % of an iteration's wall time after the first."


def main() -> None:
    given = options(
        __doc__, problems=16, repeats=5, into=RESULTS / "branch-cost", work=ROOT / "runs" / "branch-cost", run=Path,
        model=Path,
    )  # fmt: skip
    model = given.model or STARTING_MODEL
    given.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for caching in (True, False):
        switch = () if caching else ("--no-enable-prefix-caching",)
        cpus = load_recipe(RECIPE).resources.inference.cpus
        with served(model, 512, given.work / f"vllm-{caching}.log", *switch, cpu_threads=cpus) as server:
            rows += asyncio.run(measured(server, model, caching, given))
    told = [] if given.run is None else ["", of_an_iteration(RunLayout(given.run))]
    written("\n".join([*table(HEAD, rows, words=3), *told]), given.into)


if __name__ == "__main__":
    main()
