"""A finished run of any length without its computation: the writers of the run directory write made-up measurements."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

import numpy as np
from basics import QUICKSTART
from run_of import run_of
from samples import branch_with, draw_problems, rollout_with
from warm_start import build_tokenizer

from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics, Phase
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.evaluate.asked_models import ModelsAsked
from mrt_hpc.evaluate.evaluation_alone import evaluation_recipe
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.schema import EvaluatedModel, Experiment, Recipe
from mrt_hpc.roles.evaluation_summary import list_by_problem
from mrt_hpc.run.archive import archive_groups
from mrt_hpc.run.atomic import write_text
from mrt_hpc.run.evaluation_settings import evaluation_settings
from mrt_hpc.run.events import EventKind, event_file
from mrt_hpc.run.groups import Sampled, commit_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import Branch, GroupStatistics, PrefixValue, Problem, Rollout

SAMPLES, BRANCHES, EPISODES, BUDGETS = 4, 4, 6, (4096, 8192, 12288, 16384)
VALUED = (
    f"evaluation.max_tokens={max(BUDGETS)}",
    f"evaluation.regret_budgets={list(BUDGETS)}",
    f"evaluation.prover={{type: forced_answer, branches: {BRANCHES}, max_tokens: 8, temperature: 0.6}}",
)
"""The fields of evaluations whose prefixes have values."""
BEGIN = 1_750_000_000  # when the run began, seconds since the epoch
HOSTILE = (
    "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'> <!-- & \u2028 \u2029 "
    "\x00 \x1b[31m \u202e {{ 7 * 7 }} é 数学 🙂\n\n"
)
"""What no text of a model may do to a page."""


@dataclass(frozen=True)
class Shape:
    iterations: int = 248
    evaluated_every: int = 62
    benchmarks: tuple[str, ...] = ("aime24", "math500")
    problems: int = 30  # of a benchmark
    samples: int = SAMPLES  # of a problem
    paragraphs: int = 30  # of an episode, about 20 tokens each
    name: str = "long-run"
    seed: int = 0


def made_up_metrics(iteration: int, iterations: int, random: np.random.Generator) -> IterationMetrics:
    """What a run of so many iterations measures of one."""
    done, noise = iteration / iterations, float(random.normal(0, 0.03))
    return IterationMetrics(
        iteration=iteration, reward_mean=0.4 + 0.2 * done + noise, wall_seconds=500.0, sampling_seconds=200.0,
        seconds={phase: 20.0 * (1 + n) + 100 * abs(noise) for n, phase in enumerate(Phase)}, problems=8, rollouts=32,
        tokens_per_rollout=6000 - 1500 * done + 9000 * noise, generated_tokens=190_000, branch_tokens=30_000,
        prefilled_tokens=50_000, progress_error=0.3 - 0.1 * done + noise / 4, signal_share=0.6 + noise,
        progress_by_episode=tuple((0.2 + noise) / (1 + j) + 0.05 * done * j for j in range(EPISODES)),
        truncated_share=0.2 - 0.1 * done, answered_share=0.8 + 0.1 * done, loss=0.01 + noise,
        quality={"well_formed": 0.9 + noise / 3, "right_checks": 0.8 + noise}, grad_norm=0.2 + abs(noise),
        learning_rate=1e-6 * (1 - done), entropy=0.5 - 0.1 * done + noise / 3, kl_reference=0.002 * done,
        mismatch_mean=1.0 + noise / 100,
    )  # fmt: skip


class SyntheticRun:
    def __init__(self, root: Path, shape: Shape) -> None:
        self.shape, self.random = shape, np.random.default_rng(shape.seed)
        self.recipe, self.layout = self._directory(root)
        self.tokenizer = build_tokenizer()
        self.tokens = TokenBytes(self.tokenizer)
        self.paragraphs = {text: self._ids(text) for text in ("First, x=3: 2*x+4 = 10 vs 12, low.\n\n", HOSTILE)}

    def _directory(self, root: Path) -> tuple[Experiment, RunLayout]:
        recipe = load_recipe(QUICKSTART, _overrides(self.shape))
        return recipe, run_of(root, recipe=recipe)

    def write(self) -> RunLayout:
        self.tokenizer.save_pretrained(self.layout.weights_version(0))
        for iteration in range(self.shape.iterations):
            made_up_metrics(iteration, self.shape.iterations, self.random).write(self.layout.metrics(iteration))
        for iteration in (0, round((self.shape.iterations - 1) / 2), self.shape.iterations - 1):
            self._groups(iteration)
        for version in range(0, self.shape.iterations + 1, self.shape.evaluated_every):
            for benchmark in self.shape.benchmarks:
                self._evaluation(version, benchmark)
        self._events()
        return self.layout

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _groups(self, iteration: int) -> None:
        problems = read_problems(self.layout.train_data)
        assert isinstance(self.recipe, Recipe)
        drawn = draw_problems(problems, self.recipe.seed, iteration, self.recipe.sampling.problems_per_iteration)
        for position, problem in enumerate(drawn):
            commit_group(self.layout.group(iteration, position), self._sampled(iteration, [problem]))
        archive_groups(self.layout, iteration, len(drawn))

    def _evaluation(self, version: int, benchmark: str) -> None:
        problems = read_problems(self.layout.benchmark_data(benchmark))
        settings = evaluation_settings(self.layout, self.recipe)[benchmark]
        sampled = self._sampled(version, problems)
        if version in (0, self.shape.iterations):
            shard = self.layout.evaluation_shard(version, benchmark, 0)
            commit_group(shard, sampled, weights="digest", settings=settings.sampled)
        counted = [rollout for rollout in sampled.rollouts if rollout.counts]
        rewards, answers = (list_by_problem(counted, attrgetter(name)) for name in ("reward", "answer"))
        means = {problem: float(np.mean(mine)) for problem, mine in rewards.items()}
        regret = {budget: {p: 1 - m * budget / (budget + 4096) for p, m in means.items()} for budget in BUDGETS}
        summary = summarise_evaluation(version, benchmark, rewards, answers=answers)
        told = {"regret": regret, "settings": settings.summarised, "tokens_per_rollout": 5000.0, "answered_share": 0.9}
        summary.model_copy(update=told).write(self.layout.evaluation_summary(version, benchmark))

    def _sampled(self, iteration: int, problems: Sequence[Problem]) -> Sampled:
        rollouts, branches, values = [], [], []
        for problem in problems:
            for sample in range(self.shape.samples):
                rollout, reached = self._rollout(iteration, problem, sample)
                rollouts.append(rollout)
                for boundary, right in enumerate(reached):
                    branches += [_branch(rollout, boundary, n, n < right) for n in range(BRANCHES)]
                    values.append(_value(rollout, boundary, right / BRANCHES))
        statistics = GroupStatistics(len(rollouts), len(branches), 0, 0, 0, 0, 0, {"generation": 1.0})
        return Sampled(rollouts=rollouts, branches=branches, values=values, statistics=statistics)

    def _rollout(self, iteration: int, problem: Problem, sample: int) -> tuple[Rollout, list[int]]:
        steps = self.random.integers(-2, 4, EPISODES).cumsum() + int(self.random.integers(0, 3))
        reached = [1, *(int(min(BRANCHES, max(0, step))) for step in steps)]
        right = reached[-1] > BRANCHES // 2
        plain, hostile = self.paragraphs.values()
        episodes = [
            [*self._ids(f"Wait, x={n}: "), *(hostile if n == 1 else []), *(plain * self.shape.paragraphs)]
            for n in range(EPISODES)
        ]
        answer = problem.answer if right else "0"
        ids = [token for episode in episodes for token in episode] + self._ids(f"\n</think>\n\n\\boxed{{{answer}}}")
        rollout = rollout_with(
            [*ids, self.tokenizer.eos_token_id], iteration=iteration, problem_id=problem.id, sample=sample, seed=sample,
            weights_version=iteration, text=self.tokens.text(ids), answer=answer, reward=float(right),
            boundaries=[int(end) for end in np.cumsum([0, *map(len, episodes)])],
        )  # fmt: skip
        return rollout, reached

    def _events(self) -> None:
        """Six hours with an inference task that was stopped and one that was lost, and a trainer that resumed."""
        attempts = (("inference", "aaaa", "stopped"), ("inference", "bbbb", None), ("trainer", "cccc", "done"))
        for number, (role, attempt, ended) in enumerate(attempts):
            self._attempt(f"segment-000.{role}", attempt, number, ended)

    def _attempt(self, job: str, attempt: str, number: int, ended: str | None) -> None:
        begin, where = BEGIN + 7200 * number, {"job": job, "task": 0, "rank": 0}
        told = [
            {"time": begin, "kind": EventKind.TASK_STARTED, **where, "attempt": attempt, "world_size": 1},
            {"time": begin + 60, "kind": EventKind.RESUMED, "iteration": 12, "checkpoint": "step000012", "rank": 0},
            {"time": begin + 90, "kind": EventKind.SET_ASIDE, "path": "metrics.json", "reason": "newer than that"},
            {"time": begin + 7200, "kind": EventKind.TASK_ENDED, **where, "outcome": ended},
        ]
        lines = [{**event, "host": "node1", "pid": 100 + number} for event in told]
        wanted = [line for line in lines if job.endswith("trainer") or line["kind"].startswith("task_")]
        text = "".join(f"{json.dumps(line)}\n" for line in (wanted if ended else wanted[:-1]))
        write_text(event_file(self.layout.events, job, 0, 0, attempt), text)


class SyntheticEvaluation(SyntheticRun):
    """Writes the directory of an evaluation on its own of two models, ``first`` and ``second``. Each sample has a first
    attempt besides its result.
    """

    def __init__(self, root: Path, seed: int = 0) -> None:
        super().__init__(root, Shape(1, 1, ("aime24", "math500"), problems=4, paragraphs=2, seed=seed))

    def _directory(self, root: Path) -> tuple[Experiment, RunLayout]:
        source = f"{{type: small_world, split: held_out, problems: {self.shape.problems}}}"
        entry = f"samples: {SAMPLES}, problems: {source}, mode: {{type: history_conditioned}}"
        entries = ", ".join(f"{{name: {name}, {entry}}}" for name in self.shape.benchmarks)
        changes = (f"evaluation.benchmarks=[{entries}]", *VALUED, f"seed={self.shape.seed}")
        models = tuple(self._model(root.parent, name) for name in ("first", "second"))
        recipe = evaluation_recipe(ModelsAsked(models, (), ()), "small_world", changes, root.parent / "results")
        return recipe, run_of(root, recipe=recipe)

    def _model(self, folder: Path, name: str) -> EvaluatedModel:
        """A model that a run has yet to publish, as its files need not be there."""
        return EvaluatedModel(name=name, path=str(folder / name), run=str(folder / "run"), version=0)

    def write(self) -> RunLayout:
        for version in range(2):
            self.tokenizer.save_pretrained(self.layout.weights_version(version))
            for benchmark in self.shape.benchmarks:
                self._evaluation(version, benchmark)
                path = self.layout.evaluation_summary(version, benchmark)
                summary = EvaluationSummary.read(path)
                stages = {"first attempt": 0.125, "second attempt": summary.accuracy}
                by_problem = {problem: (0.125, share) for problem, share in summary.per_problem.items()}
                summary.model_copy(update={"stages": stages, "stages_by_problem": by_problem}).write(path)
        self._attempt("evaluation", "aaaa", 0, "done")
        return self.layout

    def _sampled(self, iteration: int, problems: Sequence[Problem]) -> Sampled:
        found = super()._sampled(iteration, problems)
        firsts = [replace(r, sample=2 * r.sample, stages=2, reward=0.0) for r in found.rollouts]
        results = [replace(r, sample=2 * r.sample + 1, stage=1, stages=2) for r in found.rollouts]
        branches = [replace(b, sample=2 * b.sample + 1) for b in found.branches]
        values = [replace(v, sample=2 * v.sample + 1) for v in found.values]
        return replace(found, rollouts=[*firsts, *results], branches=branches, values=values)


def _overrides(shape: Shape) -> tuple[str, ...]:
    source = f"{{type: small_world, split: held_out, problems: {shape.problems}}}"
    benchmarks = ", ".join(f"{{name: {n}, samples: {shape.samples}, problems: {source}}}" for n in shape.benchmarks)
    return (
        f"name={shape.name}", f"seed={shape.seed}", f"schedule.iterations={shape.iterations}",
        f"schedule.iterations_per_job={shape.iterations}", "sampling.problems_per_iteration=8",
        f"sampling.rollouts_per_problem={SAMPLES}", f"evaluation.every={shape.evaluated_every}",
        f"evaluation.benchmarks=[{benchmarks}]", *VALUED,
    )  # fmt: skip


def _branch(rollout: Rollout, boundary: int, number: int, right: bool) -> Branch:
    answer = rollout.answer if right else None if number == BRANCHES - 1 else f"{number}<b>"
    return branch_with(
        [1], iteration=rollout.iteration, problem_id=rollout.problem_id, sample=rollout.sample, boundary=boundary,
        branch=number, weights_version=rollout.weights_version, answer=answer, reward=float(right),
    )  # fmt: skip


def _value(rollout: Rollout, boundary: int, value: float) -> PrefixValue:
    return PrefixValue(
        iteration=rollout.iteration, problem_id=rollout.problem_id, sample=rollout.sample, boundary=boundary,
        value=value, variance=0.05, progress_variance=math.nan, branches=BRANCHES, baseline=0.0,
    )  # fmt: skip
