"""What provers learn in a run: answers, their openness, and how far forecasts may be trusted."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.inference.traces import Trust
from mrt_hpc.mrt.planner import draw_counts, expected_branches
from mrt_hpc.run.records import Gold, golds_of


@dataclass
class AnswerHistory:
    """Answers seen so far by problem, and rewards of unknown ones.

    It grows with graded traces. A prover takes what it needs before a trace's first branch: an estimate must not know
    what was drawn for it.
    """

    limit: int
    """Answers a problem, gold included; gold answers are all taken."""
    _seen: dict[str, Counter[str]] = field(default_factory=dict, init=False)
    _right: float = field(default=0.0, init=False)
    _outside: float = field(default=0.0, init=False)
    _kept: dict[int, float] = field(default_factory=dict, init=False)
    _promised: dict[int, float] = field(default_factory=dict, init=False)
    _planner: "Planner | None" = field(default=None, init=False)

    def answers(self, problem_id: str, gold: Gold) -> list[str]:
        """Gold answers, then those seen most."""
        seen, golds = self._seen.get(problem_id, Counter()), golds_of(gold)
        others = [answer for answer, _ in seen.most_common() if answer not in golds]
        return [*golds, *others[: max(0, self.limit - len(golds))]]

    def see(self, problem_id: str, answer: str | None) -> None:
        """Record an answer of a trace or branch."""
        if answer is not None:
            self._seen.setdefault(problem_id, Counter())[answer] += 1

    def learn_unknown(self, reward: float) -> None:
        """Record a branch with an answer not known beforehand."""
        self._right += reward
        self._outside += 1

    def learn_step(self, step: int, reward: float) -> None:
        """Record a branch that a box closed after this token would have made right."""
        self._kept[step] = self._kept.get(step, 0.0) + reward
        self._promised[step] = self._promised.get(step, 0.0) + 1.0

    def planner(self, extra: float) -> "Planner":
        """The run's planner, made at the first call, which learns how open answers are.

        Args:
            extra: mean branches a boundary beside the first.
        """
        if self._planner is None:
            self._planner = Planner(extra)
        return self._planner

    @property
    def trust(self) -> Trust:
        """How far to trust forecasts of candidates, by the answers so far."""
        return Trust(dict(self._kept), dict(self._promised))

    @property
    def baseline(self) -> float:
        """b: the share of right ones among unknown answers, with a prior of half a success in one draw."""
        return (self._right + 0.5) / (self._outside + 1.0)


@dataclass
class Planner:
    """Decides how many more branches each boundary gets after its first, by how open the likely tokens leave the
    answer.

    First-token probabilities do not depend on the branch, and usual openness is taken before the trace's first branch:
    the mean of all branches stays unbiased.
    """

    extra: float
    """Mean extra branches a boundary, before the limit ``most``."""
    most: float = 8.0
    """At one boundary."""
    least_spread: float = 0.25
    """Least spread as a share of the usual: with a sure first token, a later one may decide."""
    memory: float = 2000.0
    """Boundaries after which one counts half: answers become surer as the policy learns."""
    _spread: float = field(default=0.0, init=False)
    _boundaries: float = field(default=0.0, init=False)

    @property
    def usual(self) -> float | None:
        """Mean spread of recent boundaries."""
        return self._spread / self._boundaries if self._boundaries else None

    def counts(
        self, spreads: NDArray[np.float64], uniforms: NDArray[np.float64], usual: float | None
    ) -> NDArray[np.int64]:
        """Further branches at each boundary of a trace.

        Args:
            spreads: [J] standard deviation of the first token, see :func:`openness`.
            uniforms: [J] random numbers.
            usual: before the first branches; None for the first trace, its own measure.
        """
        mean = float(spreads.mean()) if usual is None and len(spreads) else usual or 0.0
        spreads = np.maximum(spreads, self.least_spread * mean)
        kept = 0.5 ** (len(spreads) / self.memory)
        self._spread = kept * self._spread + float(spreads.sum())
        self._boundaries = kept * self._boundaries + len(spreads)
        return draw_counts(expected_branches(spreads, budget=self.extra, mean_spread=mean, most=self.most), uniforms)
