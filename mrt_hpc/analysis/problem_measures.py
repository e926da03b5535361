"""Measures with one number for each problem: pass@k, maj@k, regret and tokens; and the values of traces by token, from
which regret and efficiency are computed.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mrt_hpc.analysis.intervals import FloatArray, IntervalEstimate, mean_interval, mean_of_shares, pass_at_1, pass_at_k
from mrt_hpc.analysis.model_samples import Counted, EvaluatedBoundary, EvaluatedTrace, ModelSamples, evaluated_problems
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.mrt.regret import TraceCurve, area_under_values
from mrt_hpc.mrt.rewards import is_right
from mrt_hpc.mrt.votes import AnswerCounts, Representative, cleaned_answer, majority_at_k
from mrt_hpc.recipe.choices import Boundaries

if TYPE_CHECKING:
    from mrt_hpc.run.groups import Sampled


def tokens_at(boundary: EvaluatedBoundary, counted: Counted, answers: int) -> float:
    """The tokens of a trace that is stopped at a boundary and answers there: the one definition of all analyses.

    Regret counts no answer by ``sampled`` and one by ``all``, token efficiency one, a vote as many as vote.

    Args:
        counted: ``sampled`` adds the sampled tokens of the trace, ``all`` those of prompt, prefix and the prover's
            text.
        answers: how many, each with the mean length of those that the prover drew.

    Raises:
        ValueError: the prover drew no answer there, and it or its prompt is counted.

    Source: the authors' code for ``all`` with one answer.
    """
    if not boundary.forced and (answers or counted == "all"):
        raise ValueError("a boundary has no branch, so there is no answer whose tokens can be counted")
    before = boundary.tokens if counted == "sampled" else float(np.mean([f.asked for f in boundary.forced]))
    return before + answers * float(np.mean([f.tokens for f in boundary.forced])) if answers else float(before)


def curve_of(trace: EvaluatedTrace, counted: Counted = "sampled", answers: int | None = None) -> TraceCurve:
    """The values of one trace by token. A boundary with shorter answers than the one before it counts no fewer tokens,
    so that an area has a base. None for ``answers`` takes the number that regret counts.
    """
    if answers is None:
        answers = 1 if counted == "all" else 0
    values = [boundary.value for boundary in trace.boundaries if boundary.value is not None]
    if len(values) < len(trace.boundaries):
        raise ValueError(f"{len(values)} values do not match {len(trace.boundaries)} boundaries")
    tokens = np.array([tokens_at(boundary, counted, answers) for boundary in trace.boundaries])
    return TraceCurve(np.maximum.accumulate(tokens), np.array(values))


def curves_of(model: ModelSamples) -> dict[str, list[TraceCurve]]:
    """Traces have values at the ends of episodes, and forced answers where their tokens are counted."""
    model.require_boundaries(Boundaries.EPISODES)
    model.require_values()
    if model.counted == "all" and model.fewest_forced == 0:
        raise UserError(
            f"{model.name}: no answers were forced at its prefixes, so their tokens cannot be counted",
            where=model.source,
            expected="regret_tokens: sampled, or a prover that draws branches",
            advice="mrt-hpc fields evaluation.regret_tokens",
        )
    return {problem: [curve_of(trace, model.counted) for trace in traces] for problem, traces in model.problems.items()}


def valued_traces(parts: "Iterable[Sampled]", counted: Counted = "sampled") -> dict[str, list[TraceCurve]]:
    """The curves by problem, from the shards of one version and benchmark; traces without values are left out."""
    valued = {
        problem: [curve_of(trace, counted) for trace in traces if any(b.value is not None for b in trace.boundaries)]
        for problem, traces in evaluated_problems(parts).items()
    }
    return {problem: curves for problem, curves in valued.items() if curves}


EXPECTED = "pass@K, maj@K, regret@TOKENS or tokens, for instance pass@1"


class Measure(ABC):
    """A number for each problem; the result is the mean over problems."""

    more_is_better: ClassVar[bool] = True
    is_share: ClassVar[bool] = True
    """Whether each number lies in [0, 1]."""
    is_graded: ClassVar[bool] = True
    """Whether it depends on the verdicts of the grader."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name as the user types it."""

    @abstractmethod
    def values(self, model: ModelSamples) -> dict[str, float]:
        """The number of each problem. It refuses samples that are too few, or lack what is measured."""

    def terms(self, model: ModelSamples) -> dict[str, FloatArray] | None:  # noqa: ARG002
        """[n] the numbers whose mean is that of a problem; None for a measure that is no mean over samples."""
        return None

    def interval(self, model: ModelSamples) -> IntervalEstimate:
        return mean_of_shares(self.values(model))


class MeanMeasure(Measure):
    @abstractmethod
    def terms(self, model: ModelSamples) -> dict[str, FloatArray]:
        """[n] the number of each sample, by problem."""

    def values(self, model: ModelSamples) -> dict[str, float]:
        return {problem: float(terms.mean()) for problem, terms in self.terms(model).items()}


@dataclass(frozen=True)
class Accuracy(MeanMeasure):
    """pass@1."""

    name: ClassVar[str] = "pass@1"

    def terms(self, model: ModelSamples) -> dict[str, FloatArray]:
        return {problem: np.array([s.reward for s in samples]) for problem, samples in model.problems.items()}

    def interval(self, model: ModelSamples) -> IntervalEstimate:
        """The interval is that of summaries and the report."""
        return pass_at_1([[s.reward for s in samples] for samples in model.problems.values()])


@dataclass(frozen=True)
class PassAtK(Measure):
    k: int

    @property
    def name(self) -> str:
        return f"pass@{self.k}"

    def values(self, model: ModelSamples) -> dict[str, float]:
        """The estimate is unbiased."""
        require_samples(model, self.k, self.name)
        return {
            problem: pass_at_k(len(samples), sum(is_right(s.reward) for s in samples), self.k)
            for problem, samples in model.problems.items()
        }


@dataclass(frozen=True)
class MajorityAtK(Measure):
    """maj@k, see ``mrt.votes``."""

    k: int
    representative: Representative = cleaned_answer
    """Gives for a wrong answer the one that stands for its class, by default its text after a cleanup."""

    @property
    def name(self) -> str:
        return f"maj@{self.k}"

    def values(self, model: ModelSamples) -> dict[str, float]:
        """The estimate is unbiased for these classes."""
        require_samples(model, self.k, self.name)
        return {
            problem: self._of([(s.answer, s.reward) for s in samples]) for problem, samples in model.problems.items()
        }

    def _of(self, samples: list[tuple[str | None, float]]) -> float:
        return majority_at_k(AnswerCounts.of(samples, self.representative), self.k)


@dataclass(frozen=True)
class Regret(MeanMeasure):
    """Normalised regret at a budget of tokens."""

    more_is_better: ClassVar[bool] = False
    budget: int

    @property
    def name(self) -> str:
        return f"regret@{self.budget}"

    def terms(self, model: ModelSamples) -> dict[str, FloatArray]:
        """[traces] 1 less the area of each trace."""
        require_budget(model, self.budget)
        return {
            problem: np.array([1.0 - area_under_values(c.tokens, c.values, self.budget) for c in curves])
            for problem, curves in curves_of(model).items()
        }


@dataclass(frozen=True)
class Tokens(MeanMeasure):
    """Tokens of a completion; neither more nor fewer are better."""

    is_share: ClassVar[bool] = False
    is_graded: ClassVar[bool] = False
    name: ClassVar[str] = "tokens"

    def terms(self, model: ModelSamples) -> dict[str, FloatArray]:
        return {problem: np.array([float(s.tokens) for s in samples]) for problem, samples in model.problems.items()}

    def interval(self, model: ModelSamples) -> IntervalEstimate:
        """A single problem shows nothing of others."""
        values = np.array(list(self.values(model).values()))
        return mean_interval(values) if len(values) > 1 else IntervalEstimate(float(values[0]), 0.0, float("inf"))


def require_samples(model: ModelSamples, k: int, name: str) -> None:
    if model.fewest < k:
        raise UserError(
            f"{name} needs {k} samples of each problem, and {model.name} has {model.fewest} on {model.benchmark}",
            expected=f"a k of at most {model.fewest}",
            advice=Advice(
                "mrt-hpc eval {source} --suite SUITE, with a suite that has more samples", source=model.source
            ),
        )


BY_MEASURE = Advice("--measure regret@")
"""The option that names a budget of regret, up to its number."""


def require_budget(model: ModelSamples, budget: int, option: Advice = BY_MEASURE) -> None:
    """Refuse a budget that no trace could reach: a trace that was cut would count as one that ended."""
    if model.limit is not None and budget > model.limit:
        raise UserError(
            f"regret up to {budget} tokens needs traces of so many, and those of {model.name} on {model.benchmark} "
            f"end at {model.limit}",
            where=option.partition(" ")[0],
            expected=f"a budget of at most {model.limit}",
            advice=Advice("{option}{limit}", option=option, limit=model.limit),
        )


def measure_of(text: str) -> Measure:
    kind, _, number = text.partition("@")
    if text in BY_NAME:
        return BY_NAME[text]
    if kind in BY_NUMBER and re.fullmatch(r"[1-9]\d*", number):
        return BY_NUMBER[kind](int(number))
    raise UserError(
        "there is no such measure", value=text, where="--measure", expected=EXPECTED, advice="--measure pass@1"
    )


BY_NAME: Mapping[str, Measure] = {"pass@1": Accuracy(), "tokens": Tokens()}
BY_NUMBER: Mapping[str, type[PassAtK | MajorityAtK | Regret]] = {"pass": PassAtK, "maj": MajorityAtK, "regret": Regret}
