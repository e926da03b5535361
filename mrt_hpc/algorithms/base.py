"""Base classes of algorithms. An algorithm is a section of the recipe that defines where rollouts start, which
boundaries the prover values, and which sequences an update learns.

To add one, write a module with a subclass of ``RolloutAlgorithm`` or ``SupervisedAlgorithm``, and add its name to
:data:`mrt_hpc.recipe.kinds.ALGORITHMS`; or name a class of any module in the recipe as ``algorithm: {type:
my_module:MyAlgorithm}``.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.protocol import SamplingSettings
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace, Start
from mrt_hpc.plan.hours import boundaries_per_trace, sequence_tokens, tokens_per_value, trace_tokens
from mrt_hpc.provers.base import every_boundary
from mrt_hpc.recipe.base import Count, Tokens, misfit, require_kind
from mrt_hpc.recipe.kinds import AlgorithmSettings, ExpectedTokens
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.records import Problem

if TYPE_CHECKING:
    from mrt_hpc.algorithms.batch import Batch, Learnt
    from mrt_hpc.algorithms.samples import SampleSource
    from mrt_hpc.mrt.sft import MaskedTokens
    from mrt_hpc.run.groups import Group


# The starts of a group's rollouts: the prompt, unless an algorithm defines others.


@dataclass(frozen=True)
class StartContext:
    """The inputs of an iteration's starts."""

    recipe: Recipe
    iteration: int
    prompter: Prompter
    tokens: TokenBytes
    """Of the policy's tokenizer."""
    stale_group: Callable[[Problem], "Group"]
    """The group collected for a problem; raises UserError where it is damaged."""


class Starts(Protocol):
    """Makes a group from each problem."""

    @property
    def group_size(self) -> int:
        """n, the rollouts of a group."""

    def group(self, problem: Problem) -> PromptedGroup:
        """Raises UserError where the problem's prompt is too long."""


@dataclass(frozen=True)
class WholeTraces:
    prompter: Prompter
    group_size: int
    settings: SamplingSettings
    max_prompt_tokens: int

    def group(self, problem: Problem) -> PromptedGroup:
        ids = self.prompter.prompt_ids(problem, self.max_prompt_tokens)
        return PromptedGroup(problem, ids, (Start(ids, self.group_size, self.settings),))


def trace_settings(recipe: Recipe, prompter: Prompter, iteration: int) -> SamplingSettings:
    """The length curriculum sets the limit of an iteration's traces."""
    limit = recipe.schedule.max_tokens(iteration, recipe.sampling.max_tokens)
    return SamplingSettings(limit, recipe.sampling.temperature, stop_token_ids=prompter.stop_token_ids)


class Algorithm(AlgorithmSettings):
    def starts(self, context: StartContext) -> Starts:
        """Of the rollouts of an iteration, or of a collection; by default the prompt."""
        recipe, prompter, iteration = context.recipe, context.prompter, context.iteration
        settings = trace_settings(recipe, prompter, iteration)
        return WholeTraces(prompter, self.group_size(recipe, iteration), settings, recipe.sampling.max_prompt_tokens)

    def boundaries(self, iteration: int) -> Callable[[SampledTrace], Sequence[int]] | None:  # noqa: ARG002 - some differ
        """Selects boundaries of a trace for the prover in an iteration; None selects none."""
        return every_boundary if self.needs_prover else None

    def cost(self, recipe: Recipe, iteration: int) -> ExpectedTokens:
        """By default of whole traces, each with branches at all its boundaries, and of an update with each of them."""
        sampling = recipe.sampling
        traces = sampling.rollouts_per_problem
        boundaries = 1 + traces * (boundaries_per_trace(recipe) - 1)  # a problem's traces share the empty prefix
        return ExpectedTokens(
            traces=traces * trace_tokens(recipe, iteration),
            branches=boundaries * tokens_per_value(recipe.prover, recipe),
            trained=(sampling.problems_per_iteration or 0) * traces * sequence_tokens(recipe, iteration),
            longest=sampling.max_prompt_tokens + sampling.max_tokens,
        )


class RolloutAlgorithm(Algorithm):
    """Learns from rollouts of the policy under training."""

    samples_rollouts: ClassVar[bool] = True

    def has_signal(self, group: "Batch") -> bool:
        """Whether an update learns anything of one problem's rollouts, by these alone."""
        return bool(self.learnt(group).groups_with_signal)

    @abstractmethod
    def learnt(self, batch: "Batch") -> "Learnt":
        """The sequences of an iteration, with the advantage of each token. The random generators of Python, NumPy and
        torch are seeded before, by the run's seed and the iteration. A batch that cannot be used raises UserError.
        """


class SupervisedAlgorithm(Algorithm):
    """Maximises the likelihood of given or selected samples."""

    samples_rollouts: ClassVar[bool] = False
    sequences_per_iteration: Count
    """The number of samples per iteration, drawn without repetition until all have been used."""
    max_tokens: Tokens = 16384
    """The maximum number of tokens of a sample, prompt included; longer samples are left out, and counted in the log.
    """

    @abstractmethod
    def samples(self, source: "SampleSource") -> "Iterator[MaskedTokens]":
        """All samples of the run, in an order that depends on the run directory alone. The random generators of Python,
        NumPy and torch are seeded before, by the run's seed.

        Raises:
            UserError: the source of the samples is missing, or cannot be converted to tokens.
        """

    turns: ClassVar[int] = 1
    """Traces in one sample, for the estimate of its length."""

    def cost(self, recipe: Recipe, iteration: int) -> ExpectedTokens:
        length = min(self.max_tokens, self.turns * sequence_tokens(recipe, iteration))
        trained = self.sequences_per_iteration * length
        return replace(super().cost(recipe, iteration), trained=trained, longest=self.max_tokens)


def algorithm_of(recipe: Recipe) -> Algorithm:
    """Raises TypeError where the recipe's class is no ``Algorithm``."""
    return require_kind(recipe.algorithm, Algorithm)


def check_keep(keep: int | None, recipe: Recipe) -> None:
    if (keep or 0) > recipe.sampling.rollouts_per_problem:
        raise misfit("algorithm.keep", "no more than sampling.rollouts_per_problem, from which they are chosen")


def check_one_temperature(recipe: Recipe, option: str) -> None:
    """Refuse a prover with another temperature where its answers are trained on."""
    if recipe.prover is not None and recipe.prover.temperature != recipe.sampling.temperature:
        raise misfit(
            "prover.temperature",
            f"{recipe.sampling.temperature:g}, as sampling.temperature is: with {option} the forced answers are "
            "trained on as well, and the trainer uses one temperature",
        )
