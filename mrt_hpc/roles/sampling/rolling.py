"""Sampling that never drains the server: rounds overlap, and newer weights are loaded while traces are sampled.

The next round begins when the last group of the one before has a place, so the long traces of one iteration are sampled
beside the first ones of the next. How far ahead that goes is decided by the weights version that the server holds: a
group is claimed only while that version is new enough for its iteration, and newer weights that are loaded later only
make it newer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.roles.task.context import LONGEST_LOOK_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.roles.sampling.round_sampler import RoundSampler
    from mrt_hpc.roles.sampling.rounds import Place, Round


@dataclass(frozen=True)
class RollingSampler:
    """Samples one round after the other without waiting for the end of any."""

    sampler: RoundSampler
    following: Callable[[frozenset[Place]], Round | None]
    """Looks for a round that can be sampled now beside those groups that are being sampled; reads the run directory."""
    swap: Callable[[], bool]
    """Loads newer weights, if there are verified ones; returns whether it has loaded some."""

    async def sample(self, first: Round, loading_s: float = 0.0) -> None:
        """Sample a round, and all that follow while some are sampled. Ends when nothing is being sampled and no round
        can be sampled at this moment.

        Raises:
            UserError: sampling, or the loading of weights, failed. The first failure cancels all else.
        """
        over, swapped = asyncio.Event(), asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._swap_until(over, swapped))
                await self._sample_rounds(first, loading_s, swapped, tasks)
                over.set()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def _sample_rounds(
        self, first: Round, loading_s: float, swapped: asyncio.Event, tasks: asyncio.TaskGroup
    ) -> None:
        work: Round | None = first
        running: set[asyncio.Task[None]] = set()
        while work is not None or running:
            if work is not None:
                all_claimed = asyncio.Event()
                running.add(tasks.create_task(self.sampler.sample(work, loading_s, all_claimed)))
                await all_claimed.wait()
            else:
                await _set_within(swapped, LONGEST_LOOK_S)  # other tasks may be lost, and leave groups, at any time
            swapped.clear()
            running = {task for task in running if not task.done()}
            sampling = frozenset(self.sampler.sampling)  # taken here: the event loop changes it
            work, loading_s = await asyncio.to_thread(self.following, sampling), 0.0

    async def _swap_until(self, over: asyncio.Event, swapped: asyncio.Event) -> None:
        """Look for newer weights at intervals, until the sampling is over."""
        while not over.is_set():
            if await asyncio.to_thread(self.swap):
                swapped.set()
            await _set_within(over, LONGEST_LOOK_S)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, but not longer than some seconds."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
