"""Data of sampling before grading: groups to sample, traces with their episodes, branches, known answers.

A group is the rollouts of one problem. They start in one place (the prompt) or in several (the prefix of a stale trace,
continued or forced to answer); the sampler does not depend on where these come from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.inference.protocol import SamplingSettings
from mrt_hpc.run.records import AnswerProbability, Branch, PrefixValue, Problem, Rollout

if TYPE_CHECKING:
    from mrt_hpc.inference.client import Completion
    from mrt_hpc.mrt.values import Estimate


@dataclass(frozen=True)
class Start:
    """A place where rollouts of a group start."""

    context_ids: list[int]
    """The token ids after which its rollouts are sampled: the prompt, then any prefix and forced text."""
    samples: int
    """The number of rollouts that start here."""
    settings: SamplingSettings
    prefix: bytes = b""
    """The text of the context after the prompt, the beginning of the trace, which is not sampled."""
    forced: int = 0
    """The number of tokens of the prover's text at the end of the context; 0 where the thought continues."""
    answer_start: str = ""
    """The part of the prover's text that belongs to the answer."""


@dataclass(frozen=True)
class PromptedGroup:
    """A problem with its prompt and the starts of its rollouts."""

    problem: Problem
    prompt_ids: list[int]
    starts: tuple[Start, ...]

    def samples_before(self, start: int) -> int:
        """Return the number of rollouts of the starts before this one: samples are numbered through the whole group."""
        return sum(s.samples for s in self.starts[:start])


@dataclass(frozen=True)
class CandidateLook:
    """The possible outcomes of a branch at one of its tokens: candidates for its answer, and the one that it took."""

    step: int
    """The index of the token."""
    open: dict[str, float]
    """The answers after each likely token that leaves the box open, with its probability."""
    closed: dict[str, float]
    """The answers that a likely token would end, with its probability."""
    taken: tuple[str, bool] | None
    """The candidate that the branch's own token led to, and whether it ended there; None for an unlikely token."""

    @property
    def index_of_taken(self) -> int | None:
        """The index of the taken candidate among the open candidates followed by the closed ones."""
        if self.taken is None:
            return None
        answer, ended = self.taken
        return len(self.open) + list(self.closed).index(answer) if ended else list(self.open).index(answer)


@dataclass(frozen=True)
class Trust:
    """How often branches that would be right if their box closed after a token ended right, by token index."""

    kept: Mapping[int, float]
    """The number of these branches that ended right."""
    promised: Mapping[int, float]
    """The number of these branches."""

    def at(self, step: int) -> float:
        """Return the smoothed share of such branches that end right, which is 1 before any was observed."""
        return (self.kept.get(step, 0.0) + 1.0) / (self.promised.get(step, 0.0) + 1.0)


@dataclass(frozen=True)
class ScoringCost:
    """The cost of other requests than the branches' own: probability look-ups and continuations after inner braces."""

    tokens: int = 0
    """The number of sampled tokens, one per look-up."""
    prompt_tokens: int = 0
    """The number of prompt tokens of these requests."""
    cached_tokens: int = 0
    """The number of these prompt tokens that the server had in its prefix cache."""

    def __add__(self, other: "ScoringCost") -> "ScoringCost":
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
    """The forced answer start followed by the text sampled from mu."""
    completion: "Completion"
    known: bool = False
    """Whether it is among the answers whose probability is known exactly."""
    looks: tuple[CandidateLook, ...] = ()
    """The candidates at each of its tokens, where the prover looks ahead."""
    follow_up: ScoringCost = ScoringCost()
    """The cost of the requests that continued after an inner brace."""


@dataclass(frozen=True)
class ScoredAnswer:
    """An answer known before the branches, with its exact probability at a boundary."""

    boundary: int
    answer: str
    probability: float
    """The probability of the answer followed by the end of its box, over all tokens that may write it; see ``scoring``
    for what is left out at most.
    """


@dataclass(frozen=True)
class BoundaryPlan:
    """The plan by which the value of one boundary is estimated."""

    boundary: int
    branches: int
    """The number of branches drawn."""
    baseline: float
    """b, the expected reward of an answer that is not known beforehand."""


@dataclass(frozen=True)
class Valuation:
    """The answers of the prover about one trace."""

    plans: list[BoundaryPlan] = field(default_factory=list)
    branches: list[SampledBranch] = field(default_factory=list)
    answers: list[ScoredAnswer] = field(default_factory=list)
    scoring: ScoringCost = ScoringCost()
    """The cost of probability look-ups."""
    trust: Trust = Trust({}, {})
    """The trust in the candidates, fixed before the branches were drawn."""

    @property
    def all_answers(self) -> set[str]:
        """Return every answer whose reward the estimates need, besides those of the branches themselves."""
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
    """The index of the trace within the group."""
    text: str
    """The whole text, prefix and forced text included, without the stop token."""
    answer_text: str
    """What follows the thought; the whole where no thought was closed, or where without tags no box was."""
    boundaries: list[int]
    """[k + 1] token offsets within what was sampled."""
    completion: "Completion"
    inserted: list[list[int]] = field(default_factory=list)
    """The stretches of tokens that were not sampled, see :class:`mrt_hpc.run.records.Rollout`."""
    stage: int = 0
    """The number of this trace among those of its sample."""
    stages: int = 1
    """The number of traces of its sample; the last one is the result of the sample."""
    valuation: Valuation = field(default_factory=Valuation)
    """The answers of the prover, once it was asked."""

    @property
    def counts(self) -> bool:
        """Whether this trace is the result of its sample."""
        return self.stage == self.stages - 1

    def context(self, boundary: int) -> list[int]:
        """Return the token ids up to a boundary, the prompt included."""
        return [*self.start.context_ids, *self.completion.token_ids[: self.boundaries[boundary]]]

    @property
    def _place(self) -> tuple[int, str, int]:
        """The first fields of all its records."""
        return self.iteration, self.group.problem.id, self.sample

    def graded(self, answer: str | None, reward: float) -> Rollout:
        """Return the record, with the result of the grader."""
        c = self.completion
        return Rollout(
            *self._place,
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
            inserted=self.inserted,
            stage=self.stage,
            stages=self.stages,
            later_weights=c.later_weights,
        )

    def branch(self, branch: SampledBranch, answer: str | None, reward: float, look_ahead: float = 0.0) -> Branch:
        """Return the record of one of its branches, with the result of the grader."""
        c = branch.completion
        return Branch(
            *self._place,
            boundary=branch.boundary,
            branch=branch.branch,
            seed=c.seed,
            weights_version=c.weights_version,
            token_ids=c.token_ids,
            logprobs=c.logprobs,
            finish_reason=c.finish_reason,
            text=branch.text,
            answer=answer,
            reward=reward,
            known=branch.known,
            look_ahead=look_ahead,
            prompt_tokens=c.prompt_tokens,
            cached_tokens=c.cached_tokens,
            later_weights=c.later_weights,
        )

    def known_answer(self, scored: ScoredAnswer, reward: float) -> AnswerProbability:
        """Return the record of an answer known beforehand, with the result of the grader."""
        return AnswerProbability(*self._place, scored.boundary, scored.answer, scored.probability, reward)

    def value(self, plan: BoundaryPlan, estimate: "Estimate", progress_variance: float) -> PrefixValue:
        """Return the record of the value of one of its prefixes."""
        return PrefixValue(
            *self._place,
            boundary=plan.boundary,
            value=estimate.value,
            variance=estimate.variance,
            progress_variance=progress_variance,
            branches=plan.branches,
            baseline=plan.baseline,
        )
