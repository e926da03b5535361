"""How well does each prover estimate progress, for the tokens it spends?

    python benchmarks/bench_progress_variance.py --forms 1
    python benchmarks/bench_progress_variance.py --forms 10
    python benchmarks/bench_progress_variance.py --gguf MODEL.gguf

Traces of the small world's warm-started model are sampled once. The value of every prefix becomes known by thousands of
branches of `forced_answer`. Then each prover estimates the progress of every episode, several times over with other
seeds; its error is taken against that truth, less what the truth itself is uncertain by, and against the mean of its
own estimates. Tokens are those that were generated and those prompt tokens that were not found in the prefix cache; the
trace's own prefix is put there before, as when branches are issued hot. `--forms 10` teaches the model ten ways of
writing each answer (7, 8-1, 9-2, ...), of which a prover knows the gold answer only, and what it has seen. `--gguf`
takes a real language model and word problems instead, see `small_language_model.py`.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarking import RESULTS, ROOT, options
from benchmarking import SMALL_WORLD as RECIPES
from small_language_model import INSTRUCTION, TIME_IS_UP, convert, word_problems
from variance_tables import Measured, Row, Valued, measure, table, write
from warm_start import EquationExamples, WarmStartSettings, warm_start

from mrt_hpc.algorithms.base import WholeTraces, trace_settings
from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.domains.small_world.equations import FORCED_TEXT, Habits, Split, problems
from mrt_hpc.domains.verifiers import MathVerifier
from mrt_hpc.inference.client import GenerationClient, connect
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.protocol import Request, SamplingSettings
from mrt_hpc.inference.sampler import RolloutSampler
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_start import ServerSettings
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel, ProverSession
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.sampling.round_sampler import rollout_plan
from mrt_hpc.roles.sampling.sampling_session import SamplingSession

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mrt_hpc.inference.traces import PromptedGroup, SampledTrace
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.run.records import Problem

RECIPE = RECIPES / "mrt_online.yaml"
REFERENCE = "forced_answer, G = 4"
TRUTH_SEED = 1_000_000  # not among the seeds of the repeats


@dataclass(frozen=True)
class Setting:
    changes: tuple[str, ...]  # of the recipe
    problems: Callable[[int], list[Problem]]
    forced_text: str
    longest_answer: int  # tokens
    sequence: int  # tokens of the longest one


SMALL_WORLD = Setting((), partial(problems, Split.HELD_OUT), FORCED_TEXT, 8, 512)
LANGUAGE_MODEL = Setting(
    (
        f'prompt={{thought_start: "", instruction: "{INSTRUCTION}"}}',
        'episodes={markers: [""], min_paragraphs: 1, max_episodes: 6}',
        "sampling.max_prompt_tokens=128",
    ),
    word_problems, "\n\n" + TIME_IS_UP, 12, 1024,
)  # fmt: skip


@dataclass(frozen=True)
class Contender:
    name: str
    prover: str  # the recipe's section, as YAML


def contenders(setting: Setting, reference_branches: int = 4) -> list[Contender]:
    """All that are compared, the reference first; thousands of its branches are the truth."""
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


@contextmanager
def served(model: Path, sequence: int, log: Path, *flags: str, **more: Any) -> Iterator[VllmServer]:
    """A server of a model in 32 bits whose samples can be drawn again."""
    settings = ServerSettings(
        model, max_model_len=sequence, dtype="float32", kv_cache_gib=1.0, noise_by_request=True,
        extra_args=("--enforce-eager", *flags), **more,
    )  # fmt: skip
    with VllmServer(settings, log) as server:
        yield server


def groups_of(recipe: Recipe, prompter: Prompter, problems: Iterable[Problem], size: int) -> list[PromptedGroup]:
    """The groups of whole traces of these problems."""
    settings = trace_settings(recipe, prompter, 0)
    starts = WholeTraces(prompter, size, settings, recipe.sampling.max_prompt_tokens)
    return [starts.group(problem) for problem in problems]


def session_of(
    prover: str, mu: ProverModel, client: GenerationClient, changes: tuple[str, ...] = (), seed: int = 0
) -> ProverSession:
    """What asks a prover of the recipe's section."""
    recipe = load_recipe(RECIPE, (*changes, f"prover={prover}"))
    assert recipe.prover is not None
    return ProverFactory.of(recipe.prover, mu, seed).session(client)


@dataclass
class Bench:
    """The traces and what asks about them."""

    client: GenerationClient
    server: VllmServer
    mu: ProverModel
    setting: Setting
    pool: GraderPool
    traces: list[SampledTrace]
    concurrency: asyncio.Semaphore

    async def estimate(self, contender: Contender, seed: int) -> Measured:
        """Values of all traces by one contender. The branches of a trace are issued hot."""
        await asyncio.to_thread(self.server.control.reset_prefix_cache)
        asking = session_of(contender.prover, self.mu, self.client, self.setting.changes, seed)
        by_problem = [list(g) for _, g in groupby(self.traces, key=lambda t: t.group.problem.id)]
        found = await asyncio.gather(*(self._problem(asking, traces) for traces in by_problem))
        return Measured([one for of_problem in found for one in of_problem])

    async def _problem(self, asking: ProverSession, traces: Sequence[SampledTrace]) -> list[Valued]:
        """One trace after the other: what the first ones answered, the prover knows of the last ones."""
        plan = rollout_plan(load_recipe(RECIPE, self.setting.changes), 0, len(traces))
        session = SamplingSession(RolloutSampler(self.client, self.mu.tokens, plan), self.pool, asking)
        async with self.concurrency:
            return [await self._one(session, trace) for trace in traces]

    async def _one(self, session: SamplingSession, trace: SampledTrace) -> Valued:
        whole = Request(trace.context(len(trace.boundaries) - 1), [0], SamplingSettings(max_tokens=1))
        async for _ in self.client.stream([whole]):
            pass
        graded = await session.value(trace)
        cost = graded.statistics
        return Valued(
            trace.group.problem.id,
            graded.rollouts[0].reward,
            np.array([v.value for v in graded.values]),
            np.array([v.progress_variance for v in graded.values[1:]]),
            cost.branch_tokens,
            cost.prompt_tokens - cost.cached_tokens,
        )


async def run(server: VllmServer, model: Path, setting: Setting, given: argparse.Namespace) -> tuple[str, list[Row]]:
    mu = ProverModel.of(Prompter.of(model, load_recipe(RECIPE, setting.changes).prompt))
    async with connect(server.socket, server.key) as client:
        traces = await sampled_traces(client, mu, setting, given)
        with GraderPool(MathVerifier(), 1) as pool:
            room = asyncio.Semaphore(given.concurrency)
            return await rows_of(Bench(client, server, mu, setting, pool, traces, room), given)


async def sampled_traces(
    client: GenerationClient, mu: ProverModel, setting: Setting, given: argparse.Namespace
) -> list[SampledTrace]:
    """Those with an episode, by problem."""
    recipe, size = load_recipe(RECIPE, setting.changes), given.rollouts
    sampler = RolloutSampler(client, mu.tokens, rollout_plan(recipe, 0, size))
    groups = groups_of(recipe, mu.prompter, setting.problems(given.problems), size)
    found = [trace async for trace in sampler.sample(groups)]
    return sorted((t for t in found if len(t.boundaries) > 1), key=lambda t: (t.group.problem.id, t.sample))


async def rows_of(bench: Bench, given: argparse.Namespace) -> tuple[str, list[Row]]:
    """What was measured on, and how every contender did, the reference first."""
    truth = await bench.estimate(contenders(bench.setting, given.truth)[0], TRUTH_SEED)
    print(heading(truth), flush=True)
    rows: list[Row] = []
    reference: list[Measured] = []
    for contender in contenders(bench.setting):
        if contender.name != REFERENCE and not contender.name.startswith(tuple(given.only)):
            continue
        runs = [await bench.estimate(contender, seed) for seed in range(given.repeats)]
        reference = reference or runs
        rows.append(measure(contender.name, runs, reference, truth, given.truth))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    return heading(truth), rows


def heading(truth: Measured) -> str:
    return (
        f"{len(truth.traces)} traces of {len(set(truth.problems))} problems, {truth.boundaries} boundaries; median "
        f"value {np.median(truth.values):.2f}, standard deviation of true progress {truth.gains.std():.2f}."
    )


def main() -> None:
    given = options(
        __doc__,
        forms=1,  # ways of writing an answer
        gguf=Path,  # a language model, in place of the small world's
        taught=40,  # steps in which the language model is shown its form
        problems=16,
        rollouts=4,  # traces a problem
        truth=2000,  # branches a boundary
        repeats=10,
        concurrency=8,  # problems asked about at once
        into=Path,  # where the tables go; by default beside this file
        only=[""],  # contenders whose names begin with one of these
        model=Path,  # a warm-started model, instead of making one
    )
    setting, name = SMALL_WORLD, f"forms-{given.forms}"
    if given.gguf:
        setting, name = LANGUAGE_MODEL, "language-model"
    given.into = given.into or RESULTS / "variance" / name
    work = ROOT / "runs" / "variance" / name
    work.mkdir(parents=True, exist_ok=True)
    model = given.model or made_model(work / "model", given)
    with served(model, setting.sequence, work / "vllm.log") as server:
        told, rows = asyncio.run(run(server, model, setting, given))
    write(rows, told, given.into)


def made_model(path: Path, given: argparse.Namespace) -> Path:
    if not (path / "config.json").exists() and given.gguf:
        convert(given.gguf, path, given.taught)
    elif not (path / "config.json").exists():
        examples = EquationExamples(Habits(answer_forms=given.forms))
        warm_start(WarmStartSettings(seed=1, examples=examples), path, print)
    return path


if __name__ == "__main__":
    main()
