"""What provers learn during a run: answers, how open they are, and how far forecasts may be trusted."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.inference.traces import Trust
from mrt_hpc.mrt.planner import draw_counts, expected_branches
from mrt_hpc.run.records import Gold, golds_of


@dataclass
class AnswerHistory:
    """The answers seen in the run so far, by problem, and the rewards of answers that were not known beforehand.

    Grows as traces are graded. A prover takes what it needs of it before the first branch of a trace: an estimate must
    not know what was drawn for it.
    """

    limit: int
    """The maximum number of answers a problem, the gold answer among them; several gold answers are all taken."""
    _seen: dict[str, Counter[str]] = field(default_factory=dict, init=False)
    _right: float = field(default=0.0, init=False)
    _outside: float = field(default=0.0, init=False)
    _kept: dict[int, float] = field(default_factory=dict, init=False)
    _promised: dict[int, float] = field(default_factory=dict, init=False)
    _planner: "Planner | None" = field(default=None, init=False)

    def answers(self, problem_id: str, gold: Gold) -> list[str]:
        """The gold answers, then those seen most often."""
        seen, golds = self._seen.get(problem_id, Counter()), golds_of(gold)
        others = [answer for answer, _ in seen.most_common() if answer not in golds]
        return [*golds, *others[: max(0, self.limit - len(golds))]]

    def see(self, problem_id: str, answer: str | None) -> None:
        """Record an answer of a trace or a branch."""
        if answer is not None:
            self._seen.setdefault(problem_id, Counter())[answer] += 1

    def learn_unknown(self, reward: float) -> None:
        """Record the reward of a branch whose answer was not known beforehand."""
        self._right += reward
        self._outside += 1

    def learn_step(self, step: int, reward: float) -> None:
        """Record the reward of a branch that would have been right if its box had closed after this token."""
        self._kept[step] = self._kept.get(step, 0.0) + reward
        self._promised[step] = self._promised.get(step, 0.0) + 1.0

    def planner(self, extra: float) -> "Planner":
        """The run's planner of branches, made with the first call: it learns how open answers are in general.

        Args:
            extra: branches a boundary beside the first, on average.
        """
        if self._planner is None:
            self._planner = Planner(extra)
        return self._planner

    @property
    def trust(self) -> Trust:
        """How reliable the forecasts of candidates are, by the answers seen so far."""
        return Trust(dict(self._kept), dict(self._promised))

    @property
    def baseline(self) -> float:
        """b: the share of right ones among answers that were not known beforehand, one half of one draw assumed."""
        return (self._right + 0.5) / (self._outside + 1.0)


@dataclass
class Planner:
    """Decides how many branches each boundary gets beside its first, whose likely tokens show how open the answer is.

    What it looks at, the probabilities of the first token, is the same whichever branch was drawn, and how open answers
    are in general it takes from before the trace's first branch: the mean of all branches stays unbiased.
    """

    extra: float
    """The mean number of branches a boundary beside the first, before ``most`` limits them."""
    most: float = 8.0
    """The maximum number of branches at a boundary."""
    least_spread: float = 0.25
    """The smallest spread, as a share of the usual one: where the first token is certain, the answer may depend on a
    later one.
    """
    memory: float = 2000.0
    """The number of boundaries after which one counts half: answers become more certain while the policy learns."""
    _spread: float = field(default=0.0, init=False)
    _boundaries: float = field(default=0.0, init=False)

    @property
    def usual(self) -> float | None:
        """The mean spread of recent boundaries."""
        return self._spread / self._boundaries if self._boundaries else None

    def counts(
        self, spreads: NDArray[np.float64], uniforms: NDArray[np.float64], usual: float | None
    ) -> NDArray[np.int64]:
        """The number of further branches at each boundary of a trace.

        Args:
            spreads: [J] standard deviation of the first token, see :func:`openness`.
            uniforms: [J] random numbers.
            usual: ``usual``, as it was before the first branches; None for the first trace, which is its own measure.
        """
        mean = float(spreads.mean()) if usual is None and len(spreads) else usual or 0.0
        spreads = np.maximum(spreads, self.least_spread * mean)
        kept = 0.5 ** (len(spreads) / self.memory)
        self._spread = kept * self._spread + float(spreads.sum())
        self._boundaries = kept * self._boundaries + len(spreads)
        return draw_counts(expected_branches(spreads, budget=self.extra, mean_spread=mean, most=self.most), uniforms)
