"""Where the rollouts of a group start: at the prompt, or at the prefix of a stale trace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.inference.protocol import SamplingSettings
from mrt_hpc.inference.thoughts import answer_start
from mrt_hpc.inference.traces import PromptedGroup, Start
from mrt_hpc.mrt.mrt import draw_boundary
from mrt_hpc.recipe.algorithms import Mrt
from mrt_hpc.roles.sampling.proving import forced_text
from mrt_hpc.roles.task.sampled_groups import set_group_aside
from mrt_hpc.run.archive import read_sampled
from mrt_hpc.run.layout import collection_of, is_collection
from mrt_hpc.run.manifest import DamagedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.inference.prompting import Prompter
    from mrt_hpc.inference.tokens import TokenBytes
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.groups import Group
    from mrt_hpc.run.records import Problem, Rollout


class Starts(Protocol):
    """Makes groups of problems."""

    @property
    def group_size(self) -> int:
        """n, rollouts of a group."""

    def group(self, problem: Problem) -> PromptedGroup:
        """The group of a problem.

        Raises:
            UserError: its prompt is too long.
        """


@dataclass(frozen=True)
class WholeTraces:
    """Every rollout is sampled from the prompt on."""

    prompter: Prompter
    group_size: int
    settings: SamplingSettings
    max_prompt_tokens: int

    def group(self, problem: Problem) -> PromptedGroup:
        """n traces of one problem."""
        ids = self.prompter.prompt_ids(problem, self.max_prompt_tokens)
        return PromptedGroup(problem, ids, (Start(ids, self.group_size, self.settings),))


@dataclass(frozen=True)
class StalePrefixes:
    """From the prefix c_j of a problem's stale trace half of the rollouts go on, the others are forced to answer."""

    task: Task
    prompter: Prompter
    tokens: TokenBytes
    positions: dict[str, int]
    """Of the problems among those whose traces were collected, by id."""
    iteration: int

    @property
    def group_size(self) -> int:
        """n, both halves together."""
        return self.task.recipe.sampling.rollouts_per_problem

    def group(self, problem: Problem) -> PromptedGroup:
        """Both halves of one problem's rollouts."""
        recipe, stale = self.task.recipe, self._stale_trace(problem)
        boundary = draw_boundary(len(stale.boundaries) - 1, recipe.seed, problem.id, self.iteration)
        prefix = stale.prefix(boundary)
        context = [*stale.prompt_ids, *prefix]
        text, half = b"".join(self.tokens.pieces(prefix)), self.group_size // 2
        text_forced = forced_text(recipe.prover)
        forced = self.prompter.ids(text_forced)
        going_on = Start(context, half, self._settings(len(prefix)), text)
        stopping = Start(
            [*context, *forced],
            half,
            self._answer_settings,
            text + text_forced.encode(),
            len(forced),
            answer_start(text_forced, recipe.prompt.thought_end),
        )
        return PromptedGroup(problem, stale.prompt_ids, (going_on, stopping))

    def _settings(self, prefix_tokens: int) -> SamplingSettings:
        settings = trace_settings(self.task.recipe, self.prompter, self.iteration)
        return SamplingSettings(
            max(1, settings.max_tokens - prefix_tokens),
            settings.temperature,
            stop_token_ids=settings.stop_token_ids,
        )

    @property
    def _answer_settings(self) -> SamplingSettings:
        prover = self.task.recipe.prover
        assert prover is not None  # the recipe sees to that
        return SamplingSettings(prover.max_tokens, prover.temperature, stop_token_ids=self.prompter.stop_token_ids)

    def _stale_trace(self, problem: Problem) -> Rollout:
        version = self.task.recipe.algorithm.traces_version(self.iteration)
        try:
            return collected_group(self.task, version, self.positions[problem.id]).rollouts[0]
        except DamagedError as damage:
            raise UserError(
                f"a stale trace was damaged: {damage.what}",
                where=damage.where,
                advice="the same submit command again: the trace is sampled again",
                exit_code=ExitCode.RETRYABLE,
            ) from damage


def collected_group(task: Task, version: int, position: int) -> Group:
    """What a weights version sampled for a problem before training went on; where it is damaged it is set aside, and
    who collects has to do so again.

    Raises:
        DamagedError: it was damaged.
    """
    collection = collection_of(version)
    read = partial(read_sampled, task.layout, collection, position)
    try:
        return task.retrying(read, f"reading group {position} of the collection of version {version}")
    except DamagedError as damage:
        reopen_collection(task, version, f"its group {position} was found damaged: {damage.what}")
        set_group_aside(task, collection, position, damage)
        raise


def reopen_collection(task: Task, version: int, why: str) -> None:
    """What a weights version collected is not whole any more: who collects has to do so again."""
    jobs = [job for job in task.plan.jobs if collection_of(version) in job.iterations]
    task.reopen([(job.name, index) for job in jobs for index in range(job.tasks)], why)


def trace_settings(recipe: Recipe, prompter: Prompter, iteration: int) -> SamplingSettings:
    """How traces of an iteration are sampled; the length curriculum is obeyed."""
    limit = recipe.schedule.max_tokens(iteration, recipe.sampling.max_tokens)
    return SamplingSettings(limit, recipe.sampling.temperature, stop_token_ids=prompter.stop_token_ids)


def starts_of(
    task: Task, prompter: Prompter, tokens: TokenBytes, problems: Sequence[Problem], iteration: int
) -> Starts:
    """Where the rollouts of an iteration start, by the recipe's algorithm."""
    recipe = task.recipe
    stale = isinstance(recipe.algorithm, Mrt)
    if stale and not is_collection(iteration):
        positions = {problem.id: position for position, problem in enumerate(problems)}
        return StalePrefixes(task, prompter, tokens, positions, iteration)
    size = 1 if stale else recipe.sampling.rollouts_per_problem
    settings = trace_settings(recipe, prompter, iteration)
    return WholeTraces(prompter, size, settings, recipe.sampling.max_prompt_tokens)
