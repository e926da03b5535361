"""Grades answers in processes that are killed when an answer hangs.

Owns the limits, and what an answer is worth that hangs, crashes its process or cannot be read: 0, and a line in the
log. Pairs whose verdict is certain (numbers) never reach a process. No answer waits for a slow one: an answer that
looks slow goes to a process for slow ones, and any other is tried again there after a short first attempt.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, Self

from pebble import ProcessExpired

from mrt_hpc.domains.lane import Lane
from mrt_hpc.errors import UserError
from mrt_hpc.run.records import Gold, golds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.domains.base import Judgement, Verifier

logger = logging.getLogger(__name__)

Pair = tuple[str | None, Gold]
"""An answer (None when the text had none) and the gold answer, or several, any of which is right."""

FIRST_LIMIT_S = 0.5
"""An answer slower than this, in processor seconds, is stopped, and tried again among the slow ones for its full time
limit. math-verify takes 0.4 to 60 ms for an answer that is meant as one, and more in a fresh process; a lower limit
ends processes that were only cold.
"""
SLOW_PROCESSES = 1
"""The number of processes for slower answers; they start with the first such answer."""
SLOW_NICENESS = 5
"""Gives the slow ones a quarter of the processor time of the others, where there are fewer cores than processes."""
LOGGED_CHARS = 80


class VerdictStatus(StrEnum):
    """How a verdict came about."""

    GRADED = "graded"
    """The verifier compared the answer with the gold answer."""
    NO_ANSWER = "no_answer"
    """There was no answer to grade."""
    TIMED_OUT = "timed_out"
    """The answer hung: its process was killed at the time limit."""
    MALFORMED = "malformed"
    """No expression could be read, or reading it raised an error, exhausted the memory or crashed the process."""


@dataclass(frozen=True)
class Verdict:
    """The grading of one pair."""

    reward: float
    """1.0 or 0.0."""
    status: VerdictStatus
    seconds: float
    """Processor time that a grader process spent on it."""
    error: str | None = None
    """What the verifier raised, in a line; None where it raised nothing."""


NO_ANSWER = Verdict(0.0, VerdictStatus.NO_ANSWER, 0.0)


class GradingLane(Protocol):
    """Grader processes with a queue of pairs: a :class:`Lane`, or one on several nodes."""

    async def judge(self, answer: str, gold: str, limit_s: float) -> tuple[Judgement, float]:
        """See :meth:`Lane.judge`."""
        ...

    def started(self) -> object:
        """The processes; started where they are not."""
        ...

    def stop(self) -> None:
        """End the processes and their current work."""
        ...


class LaneMaker(Protocol):
    """The class of a lane; see :class:`Lane` for the arguments."""

    def __call__(
        self, verifier: Verifier, processes: int, memory_limit_bytes: int, niceness: int = 0
    ) -> GradingLane: ...


class GraderPool:
    """Grader processes, to be used as a context manager; one event loop or one thread at a time.

    Args:
        verifier: decides which answers are right.
        processes: how many answers are graded at a time; slow ones have one process more.
        time_limit_s: processor seconds for one answer; a slower one is killed and scores 0.
        memory_limit_gib: what one process may allocate beyond its libraries, GiB.
        cache_size: verdicts remembered; the oldest are forgotten first.
        lane: where the processes run; by default on this node.
    """

    def __init__(
        self,
        verifier: Verifier,
        processes: int = 1,
        time_limit_s: float = 2.0,
        *,
        memory_limit_gib: float = 2.0,
        cache_size: int = 65536,
        lane: LaneMaker = Lane,
    ) -> None:
        self.verifier = verifier
        self.time_limit_s = time_limit_s
        memory_limit_bytes = int(memory_limit_gib * 2**30)
        self.fast = lane(verifier, processes, memory_limit_bytes)
        self.slow = lane(verifier, SLOW_PROCESSES, memory_limit_bytes, niceness=SLOW_NICENESS)
        self._cache: OrderedDict[tuple[str, Gold], Verdict] = OrderedDict()
        self._cache_size = cache_size

    def __enter__(self) -> Self:
        self.fast.started()
        return self

    def __exit__(self, *_: object) -> None:
        self.fast.stop()
        self.slow.stop()

    async def grade(self, pairs: Sequence[Pair], *, tell: bool = True) -> list[Verdict]:
        """The verdict on each pair, in order; equal pairs are graded once.

        Of several gold answers the verifier is asked about each, until one takes the answer. Never raises for what an
        answer contains.

        Args:
            pairs: answer and gold answer each.
            tell: whether answers that hang or cannot be read are logged; candidates that no trace gave need not be.

        Raises:
            UserError: the grader processes cannot be started (again).
        """
        unique = list(dict.fromkeys(pairs))
        verdicts = dict(
            zip(unique, await asyncio.gather(*(self._verdict(*pair, tell) for pair in unique)), strict=True)
        )
        return [verdicts[pair] for pair in pairs]

    def readable_all(self, golds: Sequence[str]) -> list[bool]:
        """Whether the verifier reads each gold answer, within the limits on an answer.

        Raises:
            UserError: a verifier of the user's own raises an error for a gold answer, and would for other answers.
        """
        return asyncio.run(self._readable_all(golds))

    async def _readable_all(self, golds: Sequence[str]) -> list[bool]:
        return await asyncio.gather(*map(self._readable, golds))

    async def _readable(self, gold: str) -> bool:
        judged = await self._judged(gold, gold)
        if isinstance(judged, VerdictStatus):
            return False
        if judged[0].error is not None and ":" in self.verifier.type:
            raise UserError(
                f"verifier {self.verifier.type} raised an error when it compared a gold answer with itself",
                value=gold[:LOGGED_CHARS],
                where=judged[0].error,
                expected="true or false, or a Judgement, for every answer",
                advice="correct the verifier, and type the same command again",
            )
        return judged[0].readable

    async def _verdict(self, answer: str | None, gold: Gold, tell: bool) -> Verdict:
        if answer is None or not answer.strip():
            return NO_ANSWER
        certain = {one: self.verifier.certain(answer, one) for one in golds_of(gold)}
        unknown = [one for one, verdict in certain.items() if verdict is None]
        if any(certain.values()) or not unknown:
            return Verdict(float(any(certain.values())), VerdictStatus.GRADED, 0.0)
        if (cached := self._cache.get((answer, gold))) is not None:
            return cached
        verdict = await self._by_any(answer, unknown)
        if tell and verdict.status in (VerdictStatus.TIMED_OUT, VerdictStatus.MALFORMED):
            why = verdict.status if verdict.error is None else f"{verdict.status}, {verdict.error},"
            logger.warning("answer scores 0, %s after %.2f s: %r", why, verdict.seconds, answer[:LOGGED_CHARS])
        self._remember(answer, gold, verdict)
        return verdict

    async def _by_any(self, answer: str, golds: Sequence[str]) -> Verdict:
        """The verdict of the first gold answer that takes the answer. Where none does, that of the first comparison
        that hung or could not be made, as it may have hidden a right answer.
        """
        found: list[Verdict] = []
        for gold in golds:
            found.append(await self._grade_in_process(answer, gold))
            if found[-1].reward == 1.0:
                break
        chosen = max(found, key=lambda v: (v.reward, v.status is not VerdictStatus.GRADED))
        return replace(chosen, seconds=sum(v.seconds for v in found))

    async def _grade_in_process(self, answer: str, gold: str) -> Verdict:
        judged = await self._judged(answer, gold)
        if isinstance(judged, VerdictStatus):
            return Verdict(0.0, judged, self.time_limit_s)
        judgement, seconds = judged
        readable = judgement.correct or judgement.readable
        status = VerdictStatus.GRADED if readable else VerdictStatus.MALFORMED
        return Verdict(float(judgement.correct), status, seconds, judgement.error)

    async def _judged(self, answer: str, gold: str) -> tuple[Judgement, float] | VerdictStatus:
        """The judgement and its processor seconds, or why there is none: a second attempt follows a short first one,
        and one whose process was lost.
        """
        failure = VerdictStatus.TIMED_OUT
        for lane, limit_s in self._attempts(answer):
            try:
                return await lane.judge(answer, gold, limit_s)
            except TimeoutError:
                failure = VerdictStatus.TIMED_OUT
            except ProcessExpired as end:
                past_limit = end.exitcode == -signal.SIGPROF
                failure = VerdictStatus.TIMED_OUT if past_limit else VerdictStatus.MALFORMED
            if failure is VerdictStatus.TIMED_OUT and limit_s == self.time_limit_s:
                break
        return failure

    def _attempts(self, answer: str) -> tuple[tuple[GradingLane, float], ...]:
        """Where an answer is graded, one attempt after the other, and for how many processor seconds."""
        second = (self.slow, self.time_limit_s)
        first_limit_s = min(FIRST_LIMIT_S, self.time_limit_s)
        return (second if self.verifier.may_take_long(answer) else (self.fast, first_limit_s)), second

    def _remember(self, answer: str, gold: Gold, verdict: Verdict) -> None:
        self._cache[answer, gold] = verdict
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
