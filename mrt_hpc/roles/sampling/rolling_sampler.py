"""Sampling that never drains the server: rounds overlap, and newer weights are loaded while traces are sampled.

The next round begins when the last group of the one before has a place. A group is claimed only while the server's
weights are new enough for its iteration.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from mrt_hpc.roles.sampling.round_sampler import GroupPlace, Round, RoundSampler
from mrt_hpc.roles.task.context import LONGEST_LOOK_S


@dataclass(frozen=True)
class RollingSampler:
    """Samples rounds one after another without waiting for the end of any."""

    sampler: RoundSampler
    following: Callable[[frozenset[GroupPlace]], Round | None]
    """Finds a round that can be sampled beside these groups; reads the run directory."""
    swap: Callable[[], bool]
    """Loads newer verified weights if there are any; returns whether it did."""

    async def sample(self, first: Round, loading_s: float = 0.0) -> None:
        """Sample until no round is available. The first failure cancels all."""
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
                await _set_or_late(swapped)  # other tasks may be lost, and leave groups, at any time
            swapped.clear()
            running = {task for task in running if not task.done()}
            sampling = frozenset(self.sampler.sampling)  # taken here: the event loop changes it
            work, loading_s = await asyncio.to_thread(self.following, sampling), 0.0

    async def _swap_until(self, over: asyncio.Event, swapped: asyncio.Event) -> None:
        while not over.is_set():
            if await asyncio.to_thread(self.swap):
                swapped.set()
            await _set_or_late(over)


async def _set_or_late(event: asyncio.Event) -> None:
    """Wait for an event, at most until the next look."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), LONGEST_LOOK_S)
