"""The starts of a group's rollouts: the prompt, unless an algorithm defines others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.protocol import SamplingSettings
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.inference.traces import PromptedGroup, Start
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.records import Problem, Rollout


@dataclass(frozen=True)
class StartContext:
    """The data from which the starts of one iteration are made."""

    recipe: Recipe
    iteration: int
    prompter: Prompter
    tokens: TokenBytes
    """The token bytes of the policy's tokenizer."""
    stale_trace: Callable[[Problem], Rollout]
    """A function that returns the trace collected for a problem; it raises UserError where the trace is damaged."""


class Starts(Protocol):
    """A factory that makes a group from each problem."""

    @property
    def group_size(self) -> int:
        """n, the number of rollouts of a group."""

    def group(self, problem: Problem) -> PromptedGroup:
        """Return the group of a problem.

        Raises:
            UserError: its prompt is too long.
        """


@dataclass(frozen=True)
class WholeTraces:
    """The starts of rollouts that are all sampled from the prompt."""

    prompter: Prompter
    group_size: int
    settings: SamplingSettings
    max_prompt_tokens: int

    def group(self, problem: Problem) -> PromptedGroup:
        """Return a group of n traces of one problem."""
        ids = self.prompter.prompt_ids(problem, self.max_prompt_tokens)
        return PromptedGroup(problem, ids, (Start(ids, self.group_size, self.settings),))


def whole_traces(context: StartContext, group_size: int) -> WholeTraces:
    """Return the starts of n traces of each problem, within the iteration's limit."""
    settings = trace_settings(context.recipe, context.prompter, context.iteration)
    return WholeTraces(context.prompter, group_size, settings, context.recipe.sampling.max_prompt_tokens)


def trace_settings(recipe: Recipe, prompter: Prompter, iteration: int) -> SamplingSettings:
    """Return the sampling settings of an iteration's traces; the length curriculum sets the limit."""
    limit = recipe.schedule.max_tokens(iteration, recipe.sampling.max_tokens)
    return SamplingSettings(limit, recipe.sampling.temperature, stop_token_ids=prompter.stop_token_ids)
