"""What is sampled before it is graded: groups to sample, traces with their episodes, branches, known answers.

A group is the rollouts of one problem. They start in one place (the prompt) or in several (the prefix of a stale trace,
going on or forced to answer); the sampler does not care where these come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.run.records import AnswerProbability, Branch, FinishReason, PrefixValue, Rollout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mrt_hpc.inference.client import Completion
    from mrt_hpc.inference.protocol import SamplingSettings
    from mrt_hpc.mrt.values import Estimate
    from mrt_hpc.run.records import Problem


@dataclass(frozen=True)
class Start:
    """A place where rollouts of a group start."""

    context_ids: list[int]
    """What they are sampled after: the prompt, then a prefix and forced text where there are any."""
    samples: int
    """Rollouts that start here."""
    settings: SamplingSettings
    prefix: bytes = b""
    """The text of the context behind the prompt: the trace's beginning, which is not sampled."""
    forced: int = 0
    """How many tokens at the end of the context the prover's text put there; 0 where the thought goes on."""
    answer_start: str = ""
    """What of the prover's text belongs to the answer."""


@dataclass(frozen=True)
class PromptedGroup:
    """A problem with its prompt, and where its rollouts start."""

    problem: Problem
    prompt_ids: list[int]
    starts: tuple[Start, ...]

    def samples_before(self, start: int) -> int:
        """Rollouts of the starts before this one: samples are numbered through the whole group."""
        return sum(s.samples for s in self.starts[:start])


@dataclass(frozen=True)
class CandidateLook:
    """What a branch could have become at one of its tokens: candidates for its answer, and the one it took."""

    step: int
    """Index of the token."""
    open: dict[str, float]
    """Answers as they would stand after each likely token that leaves the box open, with its probability."""
    closed: dict[str, float]
    """Answers that a likely token would end, with its probability."""
    taken: tuple[str, bool] | None
    """The one that the branch's own token led to, and whether it ended there; None where that was not a likely one."""

    @property
    def index_of_taken(self) -> int | None:
        """Its place among the open candidates followed by the closed ones."""
        if self.taken is None:
            return None
        answer, ended = self.taken
        return len(self.open) + list(self.closed).index(answer) if ended else list(self.open).index(answer)


@dataclass(frozen=True)
class Trust:
    """How branches ended that would have been right, had their box closed after a token, by the token's place."""

    kept: Mapping[int, float]
    """How many ended right."""
    promised: Mapping[int, float]
    """How many there were."""

    def at(self, step: int) -> float:
        """How often such a branch does end right; at first, always."""
        return (self.kept.get(step, 0.0) + 1.0) / (self.promised.get(step, 0.0) + 1.0)


@dataclass(frozen=True)
class ScoringCost:
    """What requests cost besides the branches' own: looking up probabilities, going on behind an inner brace."""

    tokens: int = 0
    """Sampled, one a look."""
    prompt_tokens: int = 0
    """Of the prompts of these requests."""
    cached_tokens: int = 0
    """How many of those the server had in its prefix cache."""

    def __add__(self, other: ScoringCost) -> ScoringCost:
        return ScoringCost(
            self.tokens + other.tokens,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True)
class SampledBranch:
    """A branch before it is graded."""

    boundary: int
    branch: int
    text: str
    """The forced answer start with what mu sampled after it."""
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    seed: int
    weights_version: int
    known: bool
    """Whether it is among the answers whose probability is known exactly."""
    prompt_tokens: int
    cached_tokens: int | None
    looks: tuple[CandidateLook, ...] = ()
    """At each of its tokens, where the prover looks ahead."""
    follow_up: ScoringCost = ScoringCost()
    """Prompts of the requests that went on behind an inner brace."""


@dataclass(frozen=True)
class ScoredAnswer:
    """An answer known before the branches, with its exact probability at a boundary."""

    boundary: int
    answer: str
    probability: float
    """Of the answer followed by the end of its box, over all tokens that may write it; see ``scoring`` for what is left
    out at most."""


@dataclass(frozen=True)
class BoundaryPlan:
    """How the value of one boundary is looked for."""

    boundary: int
    branches: int
    """How many were drawn."""
    baseline: float
    """b, the reward expected of an answer that is not known beforehand."""


@dataclass(frozen=True)
class Valuation:
    """What was asked of the prover about one trace."""

    plans: list[BoundaryPlan] = field(default_factory=list)
    branches: list[SampledBranch] = field(default_factory=list)
    answers: list[ScoredAnswer] = field(default_factory=list)
    scoring: ScoringCost = ScoringCost()
    """Of looking up probabilities."""
    trust: Trust = Trust({}, {})
    """In what candidates promise, fixed before the branches were drawn."""

    @property
    def all_answers(self) -> set[str]:
        """Every answer whose reward the estimates need, beside those of the branches themselves."""
        looks = [look for branch in self.branches for look in branch.looks]
        ahead = {answer for look in looks for answer in (*look.open, *look.closed)}
        return ahead | {a.answer for a in self.answers}


@dataclass(frozen=True)
class SampledTrace:
    """A trace with its episodes, before it is graded."""

    iteration: int
    group: PromptedGroup
    start: Start
    sample: int
    """Its number within the group."""
    text: str
    """The whole of it, prefix and forced text included, without the stop token."""
    answer_text: str
    """What follows the thought; the whole where no thought was closed, or where without tags no box was."""
    boundaries: list[int]
    """[k + 1] token offsets within what was sampled."""
    completion: Completion

    def context(self, boundary: int) -> list[int]:
        """Token ids up to a boundary, the prompt included."""
        return [*self.start.context_ids, *self.completion.token_ids[: self.boundaries[boundary]]]

    def graded(self, answer: str | None, reward: float) -> Rollout:
        """The record, with what the grader found."""
        c = self.completion
        return Rollout(
            iteration=self.iteration,
            problem_id=self.group.problem.id,
            sample=self.sample,
            seed=c.seed,
            weights_version=c.weights_version,
            prompt_ids=self.start.context_ids,
            forced=self.start.forced,
            token_ids=c.token_ids,
            logprobs=c.logprobs,
            finish_reason=c.finish_reason,
            text=self.text,
            answer=answer,
            reward=reward,
            boundaries=self.boundaries,
            started=c.started,
            seconds=c.seconds,
        )

    def branch(self, branch: SampledBranch, answer: str | None, reward: float, look_ahead: float = 0.0) -> Branch:
        """The record of one of its branches, with what the grader found."""
        return Branch(
            iteration=self.iteration,
            problem_id=self.group.problem.id,
            sample=self.sample,
            boundary=branch.boundary,
            branch=branch.branch,
            seed=branch.seed,
            weights_version=branch.weights_version,
            token_ids=branch.token_ids,
            logprobs=branch.logprobs,
            finish_reason=branch.finish_reason,
            text=branch.text,
            answer=answer,
            reward=reward,
            known=branch.known,
            look_ahead=look_ahead,
            prompt_tokens=branch.prompt_tokens,
            cached_tokens=branch.cached_tokens,
        )

    def known_answer(self, scored: ScoredAnswer, reward: float) -> AnswerProbability:
        """The record of an answer known beforehand, with what the grader found."""
        return AnswerProbability(
            iteration=self.iteration,
            problem_id=self.group.problem.id,
            sample=self.sample,
            boundary=scored.boundary,
            answer=scored.answer,
            probability=scored.probability,
            reward=reward,
        )

    def value(self, plan: BoundaryPlan, estimate: Estimate, progress_variance: float) -> PrefixValue:
        """The record of the value of one of its prefixes."""
        return PrefixValue(
            iteration=self.iteration,
            problem_id=self.group.problem.id,
            sample=self.sample,
            boundary=plan.boundary,
            value=estimate.value,
            variance=estimate.variance,
            progress_variance=progress_variance,
            branches=plan.branches,
            baseline=plan.baseline,
        )
