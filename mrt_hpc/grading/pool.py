"""Grades answers in processes that are killed when an answer hangs.

Owns the processes, their limits, and what an answer is worth that hangs, crashes its process or cannot be read: 0, and
a line in the log. A task is one pair, so that a hang spoils no neighbour: the way through pebble's pool takes 0.04 ms a
pair, math-verify 0.4 to 7 ms. Pairs whose verdict is certain (numbers) never reach a process.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
from collections import OrderedDict
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from mrt_hpc.grading import worker
from mrt_hpc.grading.equivalence import Judgement, certain_verdict
from mrt_hpc.recipe.errors import ExitCode, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)

Pair = tuple[str | None, str]
"""An answer (None when the text had none) and the gold answer."""

FIRST_LIMIT_S = 0.5
"""An answer slower than this is stopped and stands in line again behind all others, for its full time limit;
processor seconds.
"""
START_LIMIT_S = 120.0
"""For the fork server to import sympy from a cold shared filesystem."""
TASKS_PER_PROCESS = 5000
"""Then a process is replaced, so that what sympy's caches hold never adds up to the memory limit."""
LOGGED_CHARS = 80
WALL_FACTOR = 10.0
"""Seconds on the clock for one second of the processor, at most: also what waits without computing comes to an end."""


class VerdictStatus(StrEnum):
    """How a verdict came about."""

    GRADED = "graded"
    """math-verify compared the answer with the gold answer."""
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


NO_ANSWER = Verdict(0.0, VerdictStatus.NO_ANSWER, 0.0)


class GraderPool:
    """Grader processes, to be used as a context manager; one event loop or one thread at a time.

    Args:
        processes: how many answers are graded at a time.
        time_limit_s: processor seconds for one answer; a slower one is killed and scores 0.
        memory_limit_gib: what one process may allocate beyond its libraries, GiB.
        cache_size: verdicts remembered; the oldest are forgotten first.
        strict: whether an answer to a gold number must be evaluated (``equivalence.certain_verdict``).
    """

    def __init__(
        self,
        processes: int = 1,
        time_limit_s: float = 2.0,
        *,
        memory_limit_gib: float = 2.0,
        cache_size: int = 65536,
        strict: bool = False,
    ) -> None:
        self.processes = processes
        self.strict = strict
        self.time_limit_s = time_limit_s
        self.memory_limit_bytes = int(memory_limit_gib * 2**30)
        self._cache: OrderedDict[tuple[str, str], Verdict] = OrderedDict()
        self._cache_size = cache_size
        self._pool: ProcessPool | None = None
        self._underway: set[ProcessFuture[tuple[Judgement, float]]] = set()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def grade_all(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """``grade`` for callers without an event loop."""
        return asyncio.run(self.grade(pairs))

    async def grade(self, pairs: Sequence[Pair], *, tell: bool = True) -> list[Verdict]:
        """The verdict on each pair, in order; equal pairs are graded once.

        Never raises for what an answer contains.

        Args:
            pairs: answer and gold answer each.
            tell: whether answers that hang or cannot be read are logged; those that nobody gave need not be.

        Raises:
            UserError: the grader processes cannot be started (again).
        """
        unique = list(dict.fromkeys(pairs))
        verdicts = dict(
            zip(unique, await asyncio.gather(*(self._verdict(*pair, tell) for pair in unique)), strict=True)
        )
        return [verdicts[pair] for pair in pairs]

    def readable_all(self, golds: Sequence[str]) -> list[bool]:
        """Whether math-verify reads each gold answer as an expression, within the limits on an answer."""
        return asyncio.run(self._readable_all(golds))

    async def _readable_all(self, golds: Sequence[str]) -> list[bool]:
        return await asyncio.gather(*map(self._readable, golds))

    async def _readable(self, gold: str) -> bool:
        try:
            judgement, _ = await self._attempt(gold, gold, self.time_limit_s)
        except (TimeoutError, ProcessExpired):
            return False
        return judgement.readable

    async def _verdict(self, answer: str | None, gold: str, tell: bool) -> Verdict:
        if answer is None or not answer.strip():
            return NO_ANSWER
        if (certain := certain_verdict(answer, gold, strict=self.strict)) is not None:
            return Verdict(float(certain), VerdictStatus.GRADED, 0.0)
        if (cached := self._cache.get((answer, gold))) is not None:
            return cached
        verdict = await self._grade_in_process(answer, gold)
        if tell and verdict.status in (VerdictStatus.TIMED_OUT, VerdictStatus.MALFORMED):
            logger.warning(
                "answer scores 0, %s after %.2f s: %r", verdict.status, verdict.seconds, answer[:LOGGED_CHARS]
            )
        self._remember(answer, gold, verdict)
        return verdict

    async def _grade_in_process(self, answer: str, gold: str) -> Verdict:
        """Two attempts: a short one, and one of the full time for what was slow or lost its process."""
        failure = VerdictStatus.TIMED_OUT
        for limit_s in (min(FIRST_LIMIT_S, self.time_limit_s), self.time_limit_s):
            try:
                judgement, seconds = await self._attempt(answer, gold, limit_s)
            except TimeoutError:
                failure = VerdictStatus.TIMED_OUT
            except ProcessExpired as end:
                past_limit = end.exitcode == -signal.SIGPROF
                failure = VerdictStatus.TIMED_OUT if past_limit else VerdictStatus.MALFORMED
            else:
                readable = judgement.correct or judgement.readable
                status = VerdictStatus.GRADED if readable else VerdictStatus.MALFORMED
                return Verdict(float(judgement.correct), status, seconds)
        return Verdict(0.0, failure, self.time_limit_s)

    async def _attempt(self, answer: str, gold: str, limit_s: float) -> tuple[Judgement, float]:
        """One task of the pool; a pool that broke (its fork server or an idle process was killed) is replaced once."""
        pool = self._pool
        try:
            return await asyncio.wrap_future(self._schedule(answer, gold, limit_s))
        except BrokenProcessPool as error:
            if self._pool is pool:  # else another pair has replaced it already
                logger.warning("the grader pool broke (%s) and is started again", error)
                self._stop()
                self._start()
            return await asyncio.wrap_future(self._schedule(answer, gold, limit_s))

    def _schedule(self, answer: str, gold: str, limit_s: float) -> ProcessFuture[tuple[Judgement, float]]:
        if self._pool is None:
            raise RuntimeError("GraderPool is used outside of its with block")
        try:
            future = self._pool.schedule(
                worker.judge_timed, args=(answer, gold, limit_s), timeout=WALL_FACTOR * limit_s
            )
        except RuntimeError as error:  # how pebble refuses tasks for a pool that has broken
            raise BrokenProcessPool(str(error)) from error
        self._underway.add(future)
        future.add_done_callback(self._underway.discard)
        return future

    def _remember(self, answer: str, gold: str, verdict: Verdict) -> None:
        self._cache[answer, gold] = verdict
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(worker.PRELOAD)
        self._pool = ProcessPool(
            max_workers=self.processes,
            max_tasks=TASKS_PER_PROCESS,
            initializer=worker.initialise,
            initargs=(self.memory_limit_bytes,),
            context=context,
        )
        try:
            self._pool.schedule(os.getpid).result(timeout=START_LIMIT_S)
        except (TimeoutError, BrokenProcessPool, RuntimeError) as error:
            self._stop()
            raise UserError(
                f"the grader processes do not start: {error}",
                expected=f"a first process within {START_LIMIT_S:.0f} s",
                advice="raise grading.memory_limit_gib, or lower grading.processes",
                exit_code=ExitCode.RETRYABLE,
            ) from error

    def _stop(self) -> None:
        pool, self._pool = self._pool, None
        for future in tuple(self._underway):
            future.cancel()
        if pool is not None:
            pool.stop()
            pool.join()
