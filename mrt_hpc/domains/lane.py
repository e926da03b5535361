"""A queue of pairs with grader processes of its own.

A task is one pair, so that a hang spoils no neighbour: the way through pebble's pool takes 0.04 ms a pair, math-verify
0.4 to 60 ms.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pebble import ProcessFuture, ProcessPool

from mrt_hpc.domains import worker
from mrt_hpc.errors import ExitCode, UserError

if TYPE_CHECKING:
    from mrt_hpc.domains.base import Judgement, Verifier

logger = logging.getLogger(__name__)

START_LIMIT_S = 120.0
"""The limit for the fork server to import sympy from a cold shared filesystem, seconds."""
TASKS_PER_PROCESS = 5000
"""Then a process is replaced, so that what sympy's caches hold never adds up to the memory limit."""
REPLACEMENTS = 3
"""The number of times that a broken pool is replaced for one pair. Whatever kills idle processes, for example the
kernel for lack of memory, may do so again.
"""
WALL_FACTOR, LEAST_WALL_S = 10.0, 10.0
"""Seconds on the clock for one second of the processor, at most, and for a pair, at least: what waits without computing
comes to an end as well, and a busy machine ends nothing that computes.
"""


@dataclass
class Lane:
    """Grader processes, started when they are first needed, and again when they break."""

    verifier: Verifier
    processes: int
    memory_limit_bytes: int
    """The memory of one process, bytes, in addition to its libraries."""
    niceness: int = 0
    """The niceness that is added to that of the caller."""
    pool: ProcessPool | None = field(default=None, init=False)
    unfinished: set[ProcessFuture[tuple[Judgement, float]]] = field(default_factory=set, init=False)

    async def judge(self, answer: str, gold: str, limit_s: float) -> tuple[Judgement, float]:
        """The judgement of one pair, and the processor seconds that it took.

        A pool breaks when its fork server is killed, or a process without a task; it is then replaced.

        Raises:
            TimeoutError: it took too long on the clock.
            ProcessExpired: its process was ended at the limit of processor seconds, or otherwise.
            UserError: the processes cannot be started, or are killed again and again.
        """
        for _ in range(REPLACEMENTS + 1):
            pool = self.started()
            try:
                return await asyncio.wrap_future(self._schedule(pool, answer, gold, limit_s))
            except BrokenProcessPool as error:
                self._replace(pool, error)
        raise UserError(
            "the grader processes are killed as soon as they start",
            value=f"{REPLACEMENTS + 1} times in a row",
            advice="raise resources.*.memory_gib of this role, or lower grading.processes",
            exit_code=ExitCode.RETRYABLE,
        )

    def _replace(self, pool: ProcessPool, error: BrokenProcessPool) -> None:
        """End a broken pool, so that the next pair starts another; a second pair may have done this already."""
        if self.pool is pool:
            logger.warning("the grader pool broke (%s) and is started again", error)
            self.stop()

    def started(self) -> ProcessPool:
        """The processes; started where they are not.

        Raises:
            UserError: they do not start, or the verifier cannot judge on this machine.
        """
        if self.pool is None:
            self.pool = self._new()
        return self.pool

    def stop(self) -> None:
        """End the processes and their current work."""
        pool, self.pool = self.pool, None
        for future in tuple(self.unfinished):
            future.cancel()
        if pool is not None:
            pool.stop()
            pool.join()

    def _schedule(
        self, pool: ProcessPool, answer: str, gold: str, limit_s: float
    ) -> ProcessFuture[tuple[Judgement, float]]:
        try:
            wall_s = max(WALL_FACTOR * limit_s, LEAST_WALL_S)
            future = pool.schedule(worker.judge_timed, args=(self.verifier, answer, gold, limit_s), timeout=wall_s)
        except RuntimeError as error:  # how pebble refuses tasks for a pool that has broken
            raise BrokenProcessPool(str(error)) from error
        self.unfinished.add(future)
        future.add_done_callback(self.unfinished.discard)
        return future

    def _new(self) -> ProcessPool:
        if (refusal := self.verifier.refusal()) is not None:
            raise refusal
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", worker.__name__, *self.verifier.preload])
        pool = ProcessPool(
            max_workers=self.processes,
            max_tasks=TASKS_PER_PROCESS,
            initializer=worker.initialise,
            initargs=(self.memory_limit_bytes, self.niceness),
            context=context,
        )
        try:
            pool.schedule(os.getpid).result(timeout=START_LIMIT_S)
        except (TimeoutError, BrokenProcessPool, RuntimeError) as error:
            pool.stop()
            pool.join()
            raise UserError(
                f"the grader processes do not start: {error}",
                expected=f"a first process within {START_LIMIT_S:.0f} s",
                advice="raise grading.memory_limit_gib, or lower grading.processes",
                exit_code=ExitCode.RETRYABLE,
            ) from error
        return pool
