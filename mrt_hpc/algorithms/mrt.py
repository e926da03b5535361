"""MRT from stale traces, see :mod:`mrt_hpc.mrt.mrt`."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from mrt_hpc.algorithms.base import RolloutAlgorithm, StartContext, Starts, check_one_temperature, trace_settings
from mrt_hpc.algorithms.batch import Batch, Learnt, sampled_sequence
from mrt_hpc.algorithms.samples import values_of
from mrt_hpc.inference.protocol import SamplingSettings
from mrt_hpc.inference.tokens import answer_start
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace, Start
from mrt_hpc.mrt import mrt
from mrt_hpc.mrt.grpo import Baseline, Normalise
from mrt_hpc.plan.hours import boundaries_per_trace, branch_tokens, tokens_per_value, trace_tokens
from mrt_hpc.provers.base import every_boundary
from mrt_hpc.recipe.base import FormerValues, misfit
from mrt_hpc.recipe.kinds import ExpectedTokens, ProverSettings, Refreshed
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.layout import is_collection
from mrt_hpc.run.records import Problem, Rollout
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.training.settings import TrainingSequence

if TYPE_CHECKING:
    from mrt_hpc.run.groups import Group


class Mrt(RolloutAlgorithm, Refreshed):
    """Rollouts from a prefix of a stale trace, half continued, half forced to answer.

    Source: paper, Section 6, Figure 6 (right).
    """

    needs_prover: ClassVar[bool] = True
    former_values: ClassVar[FormerValues] = {
        "divide_by_std": {True: {"normalise": "outcome_group_std"}, False: {}},
        "baseline": {"termination": {"baseline": "prefix"}},
    }
    type: Literal["mrt"] = "mrt"
    boundary: Literal["uniform", "first_loss"] = "uniform"
    """The prefix of a stale trace: drawn uniformly; or the one before the first episode that loses value, for which the
    prover values all boundaries of the stale traces, and uniformly where no episode does.
    """
    alpha: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """The weight of the bonus against the outcome."""
    bonus: Literal["end_of_trace", "next_episode"] = "end_of_trace"
    """The quantity that alpha multiplies: the reward less the prefix's value (the authors' code), or the value that the
    first new episode reaches less the prefix's (the paper's equation), which needs branches at the end of that episode.
    """
    baseline: Literal["group", "leave_one_out", "prefix"] = "leave_one_out"
    """The quantity with which a reward is compared: the mean of the rollouts that continued, the own one in it, or of
    the others there, with the bonus added; or the prefix's value alone, without a bonus: the gain over stopping.
    """
    train_terminated: bool = False
    """Whether to learn also from the forced half: its answers, and the choice between stopping and continuing. The
    forced closing tags then count in the mismatch metrics as well, with the policy's probability of stopping.
    """
    normalise: Literal["none", "group_std", "outcome_group_std"] = "none"
    """The deviation that divides the advantages: that of the whole advantages of a group; or, as in the authors' code,
    that of the group's rewards, which divides the outcome alone and so changes the weight of alpha.
    """

    def starts(self, context: StartContext) -> Starts:
        """Whole traces for a collection, one per problem, and a prefix of these for every iteration."""
        if is_collection(context.iteration):
            return super().starts(context)
        return StalePrefixes(context, before_loss=self.boundary == "first_loss")

    def group_size(self, recipe: Recipe, iteration: int) -> int:
        """1 for a collection, and n otherwise."""
        return 1 if is_collection(iteration) else super().group_size(recipe, iteration)

    def boundaries(self, iteration: int) -> Callable[[SampledTrace], Sequence[int]] | None:
        if is_collection(iteration):
            return every_boundary if self.boundary == "first_loss" else None
        return first_new_boundary if self.bonus == "next_episode" else None

    def learnt(self, batch: Batch) -> Learnt:
        """Of each group the rollouts that continued, and the forced ones where these are trained."""
        by_problem: dict[str, list[tuple[Rollout, dict[int, float]]]] = defaultdict(list)
        for rollout, values in zip(batch.rollouts, batch.values, strict=True):
            by_problem[rollout.problem_id].append((rollout, values))
        return Learnt([s for members in by_problem.values() for s in _group_sequences(members, self)])

    def cost(self, recipe: Recipe, iteration: int) -> ExpectedTokens:
        """Of one stale trace a problem in a collection, with branches where values choose the prefix; otherwise of both
        halves, with branches only where the bonus needs the end of the first new episode.
        """
        usual, trace = super().cost(recipe, iteration), trace_tokens(recipe, iteration)
        trained = usual.trained if self.train_terminated else usual.trained / 2
        value = tokens_per_value(recipe.prover, recipe)
        if is_collection(iteration) or recipe.prover is None:
            valued = boundaries_per_trace(recipe) if self.boundary == "first_loss" else 0
            return replace(usual, traces=trace, branches=valued * value, trained=trained)
        half = recipe.sampling.rollouts_per_problem / 2
        # A prefix is half of a trace on average, and so is the text that a rollout adds to it.
        traces = half * (trace / 2 + branch_tokens(recipe.prover, recipe))
        branches = half * value if self.bonus == "next_episode" else 0.0
        return replace(usual, traces=traces, branches=branches, trained=trained)

    def check(self, recipe: Recipe) -> None:
        """Refuse settings that contradict the two halves of a group, or the prover that forces one half."""
        if recipe.prover is not None:
            _check_prover(self, recipe, recipe.prover)
        rollouts = recipe.sampling.rollouts_per_problem
        if rollouts % 2 or rollouts < 4:
            raise misfit(
                "sampling.rollouts_per_problem",
                "even and at least 4: half of the rollouts continue from the prefix, half are forced to answer, and "
                "each half is compared within itself",
            )
        if recipe.schedule.length_curriculum:
            raise misfit(
                "schedule.length_curriculum",
                "empty with algorithm mrt: the prefixes of stale traces have the length that sampling.max_tokens "
                "allows",
            )
        if self.baseline == "prefix" and self.normalise != "none":
            raise misfit("algorithm.normalise", "none with baseline: prefix, which does not divide")
        if self.baseline == "prefix" and (self.alpha != 1.0 or self.bonus != "end_of_trace"):
            raise misfit(
                "algorithm.baseline",
                "leave_one_out where alpha or bonus are set, as baseline prefix uses neither of them",
            )


def _check_prover(algorithm: Mrt, recipe: Recipe, prover: ProverSettings) -> None:
    thought_end = recipe.prompt.thought_end
    if algorithm.train_terminated and not thought_end:
        raise misfit(
            "algorithm.train_terminated",
            "false where prompt.thought_end is empty: the choice to stop is learnt at the closing tag, and this model "
            "writes none",
        )
    if not prover.answers_freely:
        raise misfit(
            "prover.type",
            f"forced_answer, not {prover.type}: with algorithm mrt the prefix's value comes from the rollouts that are "
            "forced to answer",
        )
    if prover.model is not None:
        raise misfit("prover.model", "null with algorithm mrt: the forced half are rollouts of the policy itself")
    if thought_end not in prover.forced_text:
        raise misfit(
            "prover.forced_text",
            f"a text with {thought_end!r} in it, as algorithm mrt needs: a rollout that is forced to answer has to "
            "stop thinking first",
        )
    if algorithm.train_terminated and not prover.forced_text.startswith(thought_end):
        raise misfit(
            "prover.forced_text",
            f"a text that begins with {thought_end!r}, as train_terminated needs: the choice to stop at a prefix is "
            "learnt at the closing tag that follows it",
        )
    if algorithm.train_terminated:
        check_one_temperature(recipe, "train_terminated")


def first_new_boundary(trace: SampledTrace) -> Sequence[int]:
    """Of a continued rollout; empty where it stopped at once or was forced to."""
    return range(1, min(2, len(trace.boundaries)))


def draw_boundary(episodes: int, run_seed: int, problem_id: str, iteration: int) -> int:
    """Draw j uniformly from 0 (an empty prefix) to k - 1, so that a rollout always has an episode to add. Another
    ``iteration`` gives another prefix.

    Source: paper, Section 6, Figure 6 (right).
    """
    return derive_seed(run_seed, "boundary", iteration, problem_id) % max(1, episodes)


@dataclass(frozen=True)
class StalePrefixes:
    """Half of the rollouts from the prefix c_j continue, the others are forced to answer."""

    context: StartContext
    before_loss: bool
    """c_j ends before the first episode that loses value, where one does."""

    @property
    def group_size(self) -> int:
        """n, both halves together."""
        return self.context.recipe.sampling.rollouts_per_problem

    def group(self, problem: Problem) -> PromptedGroup:
        collected = self.context.stale_group(problem)
        stale = collected.rollouts[0]
        prefix = stale.prefix(self._boundary(collected, stale))
        before, text = [*stale.prompt_ids, *prefix], b"".join(self.context.tokens.pieces(prefix))
        half = self.group_size // 2
        going_on = Start(before, half, self._continuation_settings(len(prefix)), text)
        return PromptedGroup(problem, stale.prompt_ids, (going_on, self._forced_start(before, half, text)))

    def _boundary(self, group: "Group", stale: Rollout) -> int:
        loss = mrt.boundary_before_loss(values_of(group, stale)) if self.before_loss else None
        if loss is not None:
            return loss
        episodes = len(stale.boundaries) - 1
        return draw_boundary(episodes, self.context.recipe.seed, stale.problem_id, self.context.iteration)

    def _continuation_settings(self, prefix_tokens: int) -> SamplingSettings:
        settings = trace_settings(self.context.recipe, self.context.prompter, self.context.iteration)
        return SamplingSettings(
            max(1, settings.max_tokens - prefix_tokens), settings.temperature, stop_token_ids=settings.stop_token_ids
        )

    def _forced_start(self, before: list[int], samples: int, text: bytes) -> Start:
        """Of the rollouts that are forced to answer."""
        prover, prompter = self.context.recipe.prover, self.context.prompter
        assert prover is not None  # the check of the recipe ensures it
        forced, thought_end = prompter.ids(prover.question), self.context.recipe.prompt.thought_end
        return Start(
            [*before, *forced],
            samples,
            SamplingSettings(prover.max_tokens, prover.temperature, stop_token_ids=prompter.stop_token_ids),
            text + prover.question.encode(),
            len(forced),
            answer_start(prover.question, thought_end),
        )


def _group_sequences(members: list[tuple[Rollout, dict[int, float]]], algorithm: Mrt) -> list[TrainingSequence]:
    continued = [(r, values) for r, values in members if not r.forced]
    terminated = [r for r, _ in members if r.forced]
    if not continued or not terminated:  # none of one half could be judged
        return []
    group = _prefix_group(continued, terminated, algorithm)
    advantages = mrt.continued_advantages(
        group,
        alpha=algorithm.alpha,
        bonus=mrt.Bonus(algorithm.bonus),
        baseline=Baseline(algorithm.baseline),
        normalise=Normalise(algorithm.normalise),
    )
    sequences = [
        sampled_sequence(r, r.prompt_ids, np.full(len(r.token_ids), a))
        for (r, _), a in zip(continued, advantages, strict=True)
    ]
    if algorithm.train_terminated:
        stops, answers = mrt.stop_advantages(group), mrt.answer_advantages(group)
        sequences += [_forced_sequence(r, s, a) for r, s, a in zip(terminated, stops, answers, strict=True)]
    return sequences


def _prefix_group(
    continued: list[tuple[Rollout, dict[int, float]]], terminated: list[Rollout], algorithm: Mrt
) -> mrt.PrefixGroup:
    stopped = np.array([r.reward for r in terminated])
    reached = None
    if mrt.Bonus(algorithm.bonus) is mrt.Bonus.NEXT_EPISODE:
        # Boundary 1 ends the first new episode; a rollout that closed the thought at once has none, and keeps the
        # value of the prefix.
        reached = np.array([values.get(1, float(stopped.mean())) for _, values in continued])
    return mrt.PrefixGroup(np.array([r.reward for r, _ in continued]), stopped, reached)


def _forced_sequence(rollout: Rollout, stop: float, answer: float) -> TrainingSequence:
    """The choice to stop, at the first token of the forced text's closing tag, and the answer are learnt.

    The behaviour log-probability of that token is 0: its importance weight is the policy's probability of stopping.
    """
    forced = rollout.prompt_ids[len(rollout.prompt_ids) - rollout.forced :]
    sampled = len(rollout.token_ids)
    advantages = np.concatenate([np.full(rollout.forced, stop), np.full(sampled, answer)])
    mask = np.ones(rollout.forced + sampled, dtype=bool)
    mask[1 : rollout.forced] = False
    return TrainingSequence(
        prompt_ids=rollout.prompt_ids[: len(rollout.prompt_ids) - rollout.forced],
        token_ids=[*forced, *rollout.token_ids],
        advantages=advantages.astype(np.float32),
        behaviour_logprobs=np.asarray([*[0.0] * rollout.forced, *rollout.logprobs], dtype=np.float32),
        mask=mask,
        group=rollout.problem_id,
    )
