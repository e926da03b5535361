"""A queue of pairs with grader processes of its own.

A task is one pair, so that a hang spoils no neighbour: pebble's pool takes 0.04 ms a pair, math-verify 0.4 to 60 ms.
"""

import asyncio
import logging
import multiprocessing
import os
import resource
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Self

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from mrt_hpc.domains.base import VERDICTS, Judgement, NoVerdictError, Solution, Verifier, reward_of
from mrt_hpc.errors import ExitCode, UserError, error_line
from mrt_hpc.mrt.rewards import is_right
from mrt_hpc.run.process import die_with_pool_owner
from mrt_hpc.run.records import Gold, golds_of

# -- worker ------------------------------------------------------------------------------------------------------------
# The code of a grader process: its limits, its end with the pool's owner, and the judgement of one pair.
#
# The fork server imports what the verifier wants once, so that a worker that replaces a killed one is there within
# milliseconds.


def initialise(memory_limit_bytes: int, niceness: int) -> None:
    """Called in a fresh worker process, before its first pair."""
    os.nice(niceness)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a Python handler would never run inside a long multiplication
    die_with_pool_owner()
    limit_memory(memory_limit_bytes)


def limit_memory(limit_bytes: int) -> None:
    """Beyond what this process has mapped now; more raises MemoryError."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = mapped + limit_bytes
    resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def judge_timed(verifier: Verifier, solution: Solution, limit_s: float) -> tuple[Judgement, float]:
    """The judgement of one pair and its processor seconds; an error of the verifier makes the answer unreadable.

    Processor time, so that a busy machine makes no right answer wrong. Past ``limit_s`` the kernel ends the process by
    SIGPROF without a handler: one in Python would wait for the end of a long multiplication.
    """
    started = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        judgement = verifier.judge_trace(solution)
        if not isinstance(judgement, Judgement):
            raise NoVerdictError(f"{verifier.type} returned {judgement!r:.80}, which is no Judgement of {VERDICTS}")
        judgement = replace(judgement, correct=reward_of(judgement.correct, verifier.type))
    except UserError:
        raise
    except BaseException as error:  # whatever a hostile answer causes, MemoryError and SystemExit too, scores 0
        judgement = Judgement(correct=False, readable=False, error=error_line(error))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    return judgement, time.process_time() - started


logger = logging.getLogger(__name__)

START_LIMIT_S = 120.0
"""For the fork server to import sympy from a cold shared filesystem."""
TASKS_PER_PROCESS = 5000
"""Then a process is replaced, so that sympy's caches never add up to the memory limit."""
REPLACEMENTS = 3
"""Of a broken pool for one pair: whatever kills idle processes may do so again."""
WALL_FACTOR, LEAST_WALL_S = 10.0, 10.0
"""Clock seconds per processor second, and for a pair at least: a pair that waits without computing ends as well, and a
busy machine ends none that computes.
"""


class VerdictStatus(StrEnum):
    GRADED = "graded"
    NO_ANSWER = "no_answer"
    TIMED_OUT = "timed_out"
    MALFORMED = "malformed"
    """No expression could be read, or reading it raised an error, exhausted the memory or crashed the process."""
    UNJUDGED = "unjudged"


@dataclass
class Lane:
    """Starts grader processes when first needed, and again when they break."""

    verifier: Verifier
    processes: int
    memory_limit_bytes: int
    """Of one process, beyond its libraries."""
    niceness: int = 0
    """Added to that of the caller."""
    pool: ProcessPool | None = field(default=None, init=False)
    unfinished: set[ProcessFuture[tuple[Judgement, float]]] = field(default_factory=set, init=False)
    _starts: threading.Lock = field(default_factory=threading.Lock, init=False)

    async def judge(self, solution: Solution, limit_s: float) -> tuple[Judgement, float] | VerdictStatus:
        """The judgement of one pair and its processor seconds, or why there is none.

        A pool breaks when its fork server is killed, or a process without a task; it is then replaced.

        Raises:
            UserError: the processes cannot be started, or are killed again and again.
        """
        for _ in range(REPLACEMENTS + 1):
            pool = self.pool or await asyncio.to_thread(self.start)  # it takes seconds, in which others go on
            judged: asyncio.Future[tuple[Judgement, float]] | None = None
            try:
                return await (judged := asyncio.wrap_future(self._schedule(pool, solution, limit_s)))
            except TimeoutError:
                return VerdictStatus.TIMED_OUT
            except ProcessExpired as end:
                return VerdictStatus.TIMED_OUT if end.exitcode == -signal.SIGPROF else VerdictStatus.MALFORMED
            except BrokenProcessPool as error:
                self._replace(pool, error)
            except UserError:
                raise
            except BaseException as error:  # one of this process, such as Ctrl-C, is not that of the judgement
                if judged is None or not judged.done() or judged.cancelled() or judged.exception() is not error:
                    raise
                return Judgement(correct=False, readable=False, error=f"{type(error).__name__} in its process"), 0.0
        raise UserError(
            "the grader processes are killed as soon as they start",
            value=f"{REPLACEMENTS + 1} times in a row",
            advice="raise resources.*.memory_gib of this role, or lower grading.processes",
            exit_code=ExitCode.RETRYABLE,
        )

    def _replace(self, pool: ProcessPool, error: BrokenProcessPool) -> None:
        """A second pair may have done this already. All pairs of a broken pool get the same error, and with it another
        attempt.
        """
        if self.pool is not pool:
            return
        logger.warning("the grader pool broke (%s) and is started again", error)
        self.pool = None
        _end(pool)
        for future in tuple(self.unfinished):
            future.set_exception(error)

    def start(self) -> ProcessPool:
        with self._starts:
            self.pool = self.pool or self._new_pool()
            return self.pool

    def stop(self) -> None:
        pool, self.pool = self.pool, None
        for future in tuple(self.unfinished):
            future.cancel()
        if pool is not None:
            _end(pool)

    def _schedule(
        self, pool: ProcessPool, solution: Solution, limit_s: float
    ) -> ProcessFuture[tuple[Judgement, float]]:
        try:
            wall_s = max(WALL_FACTOR * limit_s, LEAST_WALL_S, self.verifier.longest_wall_s)
            future = pool.schedule(judge_timed, args=(self.verifier, solution, limit_s), timeout=wall_s)
        except RuntimeError as error:  # how pebble refuses tasks for a pool that has broken
            raise BrokenProcessPool(str(error)) from error
        self.unfinished.add(future)
        future.add_done_callback(self.unfinished.discard)
        return future

    def _new_pool(self) -> ProcessPool:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", __name__, *self.verifier.preload])
        pool = ProcessPool(
            max_workers=self.processes,
            max_tasks=TASKS_PER_PROCESS,
            initializer=initialise,
            initargs=(self.memory_limit_bytes, self.niceness),
            context=context,
        )
        try:
            pool.schedule(os.getpid).result(timeout=START_LIMIT_S)
        except (TimeoutError, BrokenProcessPool, RuntimeError) as error:
            _end(pool)
            raise UserError(
                f"the grader processes do not start: {error}",
                expected=f"a first process within {START_LIMIT_S:.0f} s",
                advice="raise grading.memory_limit_gib, or lower grading.processes",
                exit_code=ExitCode.RETRYABLE,
            ) from error
        return pool


def _end(pool: ProcessPool) -> None:
    """End a pool's processes and threads; none of its futures gets a result."""
    pool.stop()
    pool.join()


# -- pool --------------------------------------------------------------------------------------------------------------
# Grades answers in processes that are killed when an answer hangs.
#
# Owns the limits, and what an answer is worth that hangs, crashes its process or cannot be read: 0, and a line in the
# log. Pairs whose verdict is certain (numbers) never reach a process. No answer waits for a slow one: an answer that
# looks slow goes to a process for slow ones, and any other is tried again there after a short first attempt.


Pair = tuple[str | None, Gold]
"""An answer (None when the text had none) and the gold answer, or several, any of which is right."""
Seen = tuple[str, str]
"""The problem, and the whole trace of an answer."""

FIRST_LIMIT_S = 0.5
"""A slower answer (processor seconds) is tried again among the slow ones for its full limit. math-verify takes 0.4 to
60 ms, and more in a fresh process: a lower limit ends cold processes.
"""
SLOW_PROCESSES = 1
"""For slower answers."""
SLOW_NICENESS = 5
"""Gives the slow ones a quarter of the others' processor time, where there are fewer cores than processes."""
LOGGED_CHARS = 80


@dataclass(frozen=True)
class Verdict:
    reward: float
    """In [0, 1]; 0 for what cannot be judged."""
    status: VerdictStatus
    seconds: float
    """Processor time of a grader process."""
    error: str | None = None
    parts: tuple[float, ...] = ()
    """See :class:`Judgement`."""

    @property
    def judged(self) -> bool:
        return self.status is not VerdictStatus.UNJUDGED


NO_ANSWER = Verdict(0.0, VerdictStatus.NO_ANSWER, 0.0)


class _Asked(NamedTuple):
    answer: str | None
    gold: Gold
    problem: str
    trace: str


class GraderPool:
    """Grader processes, as a context manager; one event loop or one thread at a time. They start with the first answer
    whose verdict is not certain.

    Args:
        processes: answers graded at a time; slow ones have one process more.
        time_limit_s: processor seconds for one answer; a slower one is killed and scores 0.
        memory_limit_gib: what one process may allocate beyond its libraries, GiB.
        cache_size: verdicts remembered; the oldest are forgotten first.
    """

    def __init__(
        self,
        verifier: Verifier,
        processes: int = 1,
        time_limit_s: float = 2.0,
        *,
        memory_limit_gib: float = 2.0,
        cache_size: int = 65536,
    ) -> None:
        self.verifier = verifier
        self.time_limit_s = time_limit_s
        memory_limit_bytes = int(memory_limit_gib * 2**30)
        self.fast = Lane(verifier, processes, memory_limit_bytes)
        self.slow = Lane(verifier, SLOW_PROCESSES, memory_limit_bytes, niceness=SLOW_NICENESS)
        self._cache: OrderedDict[_Asked, Verdict] = OrderedDict()
        self._cache_size = cache_size

    def __enter__(self) -> Self:
        if (refusal := self.verifier.refusal()) is not None:
            raise refusal
        return self

    def __exit__(self, *_: object) -> None:
        self.fast.stop()
        self.slow.stop()

    async def grade(
        self, pairs: Sequence[Pair], seen: Sequence[Seen] = (), *, log_failures: bool = True
    ) -> list[Verdict]:
        """In order; equal pairs are graded once, and each gold answer is tried until one takes the answer. Never raises
        for what an answer contains.

        Args:
            seen: of each pair.
            log_failures: not needed for candidates of no trace.

        Raises:
            UserError: the grader processes cannot be started (again).
        """
        texts = seen if self.verifier.sees_trace and seen else [("", answer or "") for answer, _ in pairs]
        asked = [_Asked(*pair, *text) for pair, text in zip(pairs, texts, strict=True)]
        unique = list(dict.fromkeys(asked))
        verdicts = dict(
            zip(unique, await asyncio.gather(*(self._verdict(one, log_failures) for one in unique)), strict=True)
        )
        return [verdicts[one] for one in asked]

    def readable_all(self, golds: Sequence[str]) -> list[bool]:
        """Within the limits on an answer.

        Raises:
            UserError: a verifier of the user's own raises an error for a gold answer, and would for other answers.
        """
        return asyncio.run(self._readable_all(golds))

    async def _readable_all(self, golds: Sequence[str]) -> list[bool]:
        return await asyncio.gather(*map(self._readable, golds))

    async def _readable(self, gold: str) -> bool:
        return await self._is_readable(
            Solution(gold, gold, "", gold), "raised an error when it compared a gold answer with itself"
        )

    def try_on(self, solutions: Sequence[Solution]) -> None:
        """Raises UserError as :meth:`readable_all` does."""
        asyncio.run(self._try_on(solutions))

    async def _try_on(self, solutions: Sequence[Solution]) -> None:
        await asyncio.gather(*(self._is_readable(one, "raised an error when it judged a sample") for one in solutions))

    async def _is_readable(self, solution: Solution, what: str) -> bool:
        judged = await self._judgement(solution)
        if isinstance(judged, VerdictStatus):
            return False
        if judged[0].error is not None and any(":" in one.type for one in self.verifier.members):
            raise UserError(
                f"verifier {self.verifier.type} {what}",
                value=f"{solution.answer!r:.{LOGGED_CHARS}}, gold answer {solution.gold!r:.{LOGGED_CHARS}}",
                where=judged[0].error,
                expected=f"{VERDICTS}; or a Judgement of it, for every answer",
                advice="correct the verifier, and type the same command again",
            )
        return judged[0].readable

    async def _verdict(self, asked: "_Asked", log_failures: bool) -> Verdict:
        if not self.verifier.sees_trace:
            if asked.answer is None or not asked.answer.strip():
                return NO_ANSWER
            certain = {text: self.verifier.certain(asked.answer, text) for text in golds_of(asked.gold)}
            unknown = [text for text, verdict in certain.items() if verdict is None]
            if any(certain.values()) or not unknown:
                return Verdict(float(any(certain.values())), VerdictStatus.GRADED, 0.0)
        else:
            unknown = [*golds_of(asked.gold)]
        if (cached := self._cache.get(asked)) is not None:
            return cached
        verdict = await self._verdict_of_any(asked, unknown)
        if log_failures and verdict.status in (VerdictStatus.TIMED_OUT, VerdictStatus.MALFORMED):
            why = verdict.status if verdict.error is None else f"{verdict.status}, {verdict.error},"
            shown = asked.answer and asked.answer[:LOGGED_CHARS]
            logger.warning("answer scores 0, %s after %.2f s: %r", why, verdict.seconds, shown)
        self._remember(asked, verdict)
        return verdict

    async def _verdict_of_any(self, asked: "_Asked", golds: Sequence[str]) -> Verdict:
        """Of the gold answer with the highest reward; of equal ones a comparison that failed, as it may have hidden a
        right answer.
        """
        verdicts: list[Verdict] = []
        for gold in golds:
            verdicts.append(await self._grade_in_process(Solution(asked.answer, gold, asked.problem, asked.trace)))
            if is_right(verdicts[-1].reward):
                break
        chosen = max(verdicts, key=lambda v: (v.reward, v.status is not VerdictStatus.GRADED))
        return replace(chosen, seconds=sum(v.seconds for v in verdicts))

    async def _grade_in_process(self, solution: Solution) -> Verdict:
        judged = await self._judgement(solution)
        if isinstance(judged, VerdictStatus):
            return Verdict(0.0, judged, self.time_limit_s)
        judgement, seconds = judged
        if judgement.correct is None:
            return Verdict(0.0, VerdictStatus.UNJUDGED, seconds)
        readable = judgement.correct or judgement.readable
        status = VerdictStatus.GRADED if readable else VerdictStatus.MALFORMED
        return Verdict(float(judgement.correct), status, seconds, judgement.error, judgement.parts)

    async def _judgement(self, solution: Solution) -> tuple[Judgement, float] | VerdictStatus:
        """A second attempt follows a short first one, and one whose process was lost."""
        judged: tuple[Judgement, float] | VerdictStatus = VerdictStatus.TIMED_OUT
        for lane, limit_s in self._attempts(solution.answer or ""):
            judged = await lane.judge(solution, limit_s)
            hung = judged is VerdictStatus.TIMED_OUT
            if not isinstance(judged, VerdictStatus) or (hung and limit_s == self.time_limit_s):
                break
        return judged

    def _attempts(self, answer: str) -> tuple[tuple[Lane, float], ...]:
        second = (self.slow, self.time_limit_s)
        first_limit_s = min(FIRST_LIMIT_S, self.time_limit_s)
        return (second if self.verifier.may_take_long(answer) else (self.fast, first_limit_s)), second

    def _remember(self, asked: "_Asked", verdict: Verdict) -> None:
        if not verdict.judged or self.verifier.sees_trace:  # it may be judged later; traces hardly repeat
            return
        self._cache[asked] = verdict
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
