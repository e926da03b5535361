"""From the recipe's ``prover``, of the training or of the evaluation, to one that asks a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.protocol import SamplingSettings
from mrt_hpc.inference.thoughts import answer_start
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.provers import estimators as provers
from mrt_hpc.provers.box_tokens import Closing, Writing
from mrt_hpc.provers.branches import Branches, Fork
from mrt_hpc.provers.history import Experience, Planner
from mrt_hpc.provers.scoring import Scorer
from mrt_hpc.recipe.algorithms import Mrt
from mrt_hpc.recipe.provers import (
    BoxedAnswer,
    Continuation,
    GoldLikelihood,
    LookAhead,
    Majority,
    RaoBlackwell,
)
from mrt_hpc.run.layout import is_collection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mrt_hpc.inference.sampler import Generator
    from mrt_hpc.inference.traces import SampledTrace
    from mrt_hpc.recipe.provers import AnyProver
    from mrt_hpc.recipe.schema import Recipe

BOXING = (BoxedAnswer, GoldLikelihood, LookAhead, RaoBlackwell)
"""Provers whose answers begin inside a box."""


@dataclass(frozen=True)
class ProverModel:
    """The model that serves as prover, as far as its tokens go."""

    prompter: Prompter
    tokens: TokenBytes
    policy_tokens: TokenBytes | None = None
    """Of the policy, where mu is another model and reads its traces as text; None where mu is the policy itself."""

    @staticmethod
    def of(prompter: Prompter) -> ProverModel:
        """The policy itself."""
        return ProverModel(prompter, TokenBytes(prompter.tokenizer))

    def replaced(self, wanted: AnyProver | None) -> ProverModel:
        """The model that a prover names in the policy's place; the policy itself where it names none."""
        if wanted is None or wanted.model is None:
            return self
        prompter = Prompter.of(Path(wanted.model), self.prompter.prompt)
        return ProverModel(prompter, TokenBytes(prompter.tokenizer), self.tokens)

    def context(self, trace: SampledTrace, boundary: int) -> list[int]:
        """The prompt and the prefix before a boundary, in mu's tokens."""
        if self.policy_tokens is None:
            return trace.context(boundary)
        sampled = self.policy_tokens.pieces(trace.completion.token_ids[: trace.boundaries[boundary]])
        text = (trace.start.prefix + b"".join(sampled)).decode(errors="replace")
        return [*self.prompter.encoded(trace.group.problem.problem), *self.prompter.ids(text)]


def forced_text(wanted: AnyProver | None) -> str:
    """What is written after a prefix: the recipe's text, and the opened box where the prover wants one."""
    if wanted is None:
        return ""
    if isinstance(wanted, BOXING) and not wanted.forced_text.endswith(wanted.box):
        return wanted.forced_text + " " + wanted.box
    return wanted.forced_text


def longest_question(wanted: AnyProver | None, mu: ProverModel) -> int:
    """Tokens, at most, that asking the prover adds to a trace: forced text and answer."""
    return 0 if wanted is None else len(mu.prompter.ids(forced_text(wanted))) + wanted.max_tokens


def shares_seeds(wanted: AnyProver | None) -> bool:
    """Whether the branches of a trace share their random numbers."""
    return getattr(wanted, "seeds", None) == "common"


def asked_boundaries(recipe: Recipe, iteration: int) -> Callable[[SampledTrace], Sequence[int]] | None:
    """Which boundaries an algorithm wants to know the values of; None where it asks for none in this iteration."""
    if recipe.prover is None:
        return None
    if isinstance(recipe.algorithm, Mrt):
        wanted = recipe.algorithm.bonus == "next_episode" and not is_collection(iteration)
        return first_new_boundary if wanted else None
    return every_boundary


def every_boundary(trace: SampledTrace) -> Sequence[int]:
    """0 .. k"""
    return range(len(trace.boundaries))


def first_new_boundary(trace: SampledTrace) -> Sequence[int]:
    """The end of the first new episode of a rollout that went on; none where it stopped at once, or was forced to."""
    return range(1, min(2, len(trace.boundaries)))


@dataclass(frozen=True)
class ProverFactory:
    """Makes a prover for one generator after the other; its experience lasts as long as the maker."""

    wanted: AnyProver
    mu: ProverModel
    run_seed: int
    closing: Closing
    experience: Experience
    planner: Planner | None

    @staticmethod
    def of(wanted: AnyProver, mu: ProverModel, run_seed: int) -> ProverFactory:
        """With no experience yet."""
        limit = wanted.known_answers if isinstance(wanted, RaoBlackwell) else 1
        return ProverFactory(wanted, mu, run_seed, Closing(mu.tokens), Experience(limit), _planner(wanted))

    @property
    def branches_think(self) -> bool:
        """Whether branches go on thinking, so that they answer only after their thought has ended."""
        return isinstance(self.wanted, Continuation)

    def prover(
        self, generator: Generator, boundaries: Callable[[SampledTrace], Sequence[int]] = every_boundary
    ) -> provers.Prover:
        """The prover that asks ``generator`` about these boundaries of each trace."""
        wanted, fork = self.wanted, self._fork(generator, boundaries)
        if isinstance(wanted, GoldLikelihood):
            return provers.GoldLikelihood(Scorer(fork), self.writings)
        if isinstance(wanted, RaoBlackwell):
            branches = Branches(fork, self.closing)
            return provers.RaoBlackwell(Scorer(fork), branches, wanted.branches, self.experience, self.writings)
        if isinstance(wanted, LookAhead):
            looking = Branches(fork, self.closing, wanted.likely_tokens, wanted.least_probability)
            return provers.LookingAhead(looking, wanted.branches, self.experience, self.planner)
        branches = Branches(fork, self.closing if isinstance(wanted, BoxedAnswer) else None)
        kind = provers.MajorityVote if isinstance(wanted, Majority) else provers.MonteCarlo
        return kind(branches, wanted.branches)

    def writings(self, trace: SampledTrace) -> list[Writing]:
        """The tokens that can write the answers known for a trace's problem, gold first; without answers that no branch
        is long enough for.
        """
        problem = trace.group.problem
        found = [
            self.closing.writing(answer, self.mu.prompter.ids(answer))
            for answer in self.experience.answers(problem.id, problem.answer)
        ]
        return [w for w in found if 0 < w.longest <= self.wanted.max_tokens]

    def _fork(self, generator: Generator, boundaries: Callable[[SampledTrace], Sequence[int]]) -> Fork:
        wanted, prompter, text = self.wanted, self.mu.prompter, forced_text(self.wanted)
        return Fork(
            generator=generator,
            tokens=self.mu.tokens,
            context=self.mu.context,
            forced_ids=prompter.ids(text),
            answer_start=answer_start(text, prompter.prompt.thought_end),
            settings=SamplingSettings(wanted.max_tokens, wanted.temperature, stop_token_ids=prompter.stop_token_ids),
            run_seed=self.run_seed,
            boundaries=boundaries,
            common_seeds=shares_seeds(wanted),
        )


def _planner(wanted: AnyProver) -> Planner | None:
    if not isinstance(wanted, LookAhead) or wanted.planner == "uniform":
        return None
    return Planner(wanted.branches - 1)
