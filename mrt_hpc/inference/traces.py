"""Data of sampling before grading: groups to sample, traces with their episodes, branches, known answers. A group is
the rollouts of one problem, which start at the prompt or at prefixes of a stale trace.
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
    context_ids: list[int]
    """The prompt, then any prefix and forced text."""
    samples: int
    settings: SamplingSettings
    prefix: bytes = b""
    """The beginning of the trace, which is not sampled."""
    forced: int = 0
    """Tokens of the prover's text at the end of the context; 0 where the thought continues."""
    answer_start: str = ""
    """The part of the prover's text in the answer."""


@dataclass(frozen=True)
class PromptedGroup:
    problem: Problem
    prompt_ids: list[int]
    starts: tuple[Start, ...]

    def samples_before(self, start: int) -> int:
        """Rollouts of earlier starts: samples are numbered through the whole group."""
        return sum(s.samples for s in self.starts[:start])


@dataclass(frozen=True)
class CandidateLook:
    """The possible answers of a branch at one of its tokens."""

    step: int
    open: dict[str, float]
    """Probability of answers after likely tokens that leave the box open."""
    closed: dict[str, float]
    """Probability of answers that likely tokens would end."""
    taken: tuple[str, bool] | None
    """The candidate of the branch's own token, and whether it ended there; None for an unlikely token."""

    @property
    def index_of_taken(self) -> int | None:
        """Among the open candidates followed by the closed ones."""
        if self.taken is None:
            return None
        answer, ended = self.taken
        return len(self.open) + list(self.closed).index(answer) if ended else list(self.open).index(answer)


@dataclass(frozen=True)
class Trust:
    """How often branches ended right that would be right if their box closed after a token, by token index."""

    kept: Mapping[int, float]
    promised: Mapping[int, float]

    def share_at(self, step: int) -> float:
        """The smoothed share that ends right; 1 before any was observed."""
        return (self.kept.get(step, 0.0) + 1.0) / (self.promised.get(step, 0.0) + 1.0)


@dataclass(frozen=True)
class ScoringCost:
    """The cost of probability look-ups and of continuations after inner braces."""

    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the server had cached."""

    def __add__(self, other: "ScoringCost") -> "ScoringCost":
        return ScoringCost(
            self.tokens + other.tokens,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True)
class SampledBranch:
    boundary: int
    branch: int
    text: str
    """The forced answer start, and the text sampled from mu."""
    completion: "Completion"
    known: bool = False
    looks: tuple[CandidateLook, ...] = ()
    """The looks at each of its tokens, where the prover looks ahead."""
    follow_up: ScoringCost = ScoringCost()
    is_shared: bool = False
    """Whether another trace with the same prefix has drawn it, so that it costs nothing here."""


@dataclass(frozen=True)
class ScoredAnswer:
    """An answer known before the branches, at a boundary."""

    boundary: int
    answer: str
    probability: float
    """Over all tokens that may write the answer and the end of its box; ``scoring`` bounds what is left out."""


@dataclass(frozen=True)
class BoundaryPlan:
    """How the value of one boundary is estimated."""

    boundary: int
    branches: int
    baseline: float
    """b, the expected reward of an answer that is not known beforehand."""


@dataclass(frozen=True)
class Valuation:
    """The answers of the prover about one trace."""

    plans: list[BoundaryPlan] = field(default_factory=list)
    branches: list[SampledBranch] = field(default_factory=list)
    answers: list[ScoredAnswer] = field(default_factory=list)
    scoring: ScoringCost = ScoringCost()
    trust: Trust = Trust({}, {})

    @property
    def all_answers(self) -> set[str]:
        looks = [look for branch in self.branches for look in branch.looks]
        ahead = {answer for look in looks for answer in (*look.open, *look.closed)}
        return ahead | {a.answer for a in self.answers}


@dataclass(frozen=True)
class SampledTrace:
    iteration: int
    group: PromptedGroup
    start: Start
    sample: int
    text: str
    """Prefix and forced text included, without the stop token."""
    answer_text: str
    """The text after the thought; the whole where no thought was closed, or where without tags no box was."""
    boundaries: list[int]
    """[k + 1] token offsets within the sampled part."""
    completion: "Completion"
    inserted: list[list[int]] = field(default_factory=list)
    """Token spans that were not sampled, see :class:`mrt_hpc.run.records.Rollout`."""
    stage: int = 0
    """Index of this trace within its sample."""
    stages: int = 1
    """Traces of its sample; the last one is the result."""
    valuation: Valuation = field(default_factory=Valuation)
    credit_bounds: list[int] = field(default_factory=list)
    """[k + 1] token offsets within the sampled part, see :class:`mrt_hpc.run.records.Rollout`."""

    @property
    def counts(self) -> bool:
        return self.stage == self.stages - 1

    def context(self, boundary: int) -> list[int]:
        """The token ids up to a boundary, prompt included."""
        return [*self.start.context_ids, *self.completion.token_ids[: self.boundaries[boundary]]]

    @property
    def _place(self) -> tuple[int, str, int]:
        return self.iteration, self.group.problem.id, self.sample

    def graded_rollout(self, answer: str | None, reward: float) -> Rollout:
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
            credit_bounds=self.credit_bounds,
        )

    def branch(self, branch: SampledBranch, answer: str | None, reward: float, look_ahead: float = 0.0) -> Branch:
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
        return AnswerProbability(*self._place, scored.boundary, scored.answer, scored.probability, reward)

    def value(self, plan: BoundaryPlan, estimate: "Estimate", progress_variance: float) -> PrefixValue:
        return PrefixValue(
            *self._place,
            boundary=plan.boundary,
            value=estimate.value,
            variance=estimate.variance,
            progress_variance=progress_variance,
            branches=plan.branches,
            baseline=plan.baseline,
        )
