"""Spreads the requests of a task over its servers: those of one problem go to the same server, because its prefix cache
holds their common beginning; a new problem goes to the server that has the fewest samples to finish.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mrt_hpc.inference.client import Completion
    from mrt_hpc.inference.protocol import Request
    from mrt_hpc.inference.sampler import Generator

MOST_FAMILIES = 1024
"""The number of problems whose server is remembered, the latest ones: more than are sampled at a time."""


def spread_over(generators: Sequence[Generator]) -> Generator:
    """Return one generator for several; a single one is returned as it is."""
    return generators[0] if len(generators) == 1 else SpreadGenerator(tuple(generators))


@dataclass
class SpreadGenerator:
    """Samples through several servers of the same weights."""

    generators: tuple[Generator, ...]
    """The client of each server."""
    unfinished: list[int] = field(init=False)
    """The number of samples that each server has yet to finish."""
    _server_of: OrderedDict[str, int] = field(default_factory=OrderedDict, init=False)
    """The server of each problem, the latest problem last."""

    def __post_init__(self) -> None:
        self.unfinished = [0] * len(self.generators)

    async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        """Yield the samples of all requests, each as soon as it is finished, from the server of the first request's
        problem: the requests of one call belong to one problem.

        Raises:
            UserError: the server refused a request, or remained unreachable.
        """
        if not requests:
            return
        server, left = self._server(requests[0].family), sum(len(request.seeds) for request in requests)
        self.unfinished[server] += left
        try:
            async for completion in self.generators[server].stream(requests):
                left -= 1
                self.unfinished[server] -= 1
                yield completion
        finally:
            self.unfinished[server] -= left

    def _server(self, family: str) -> int:
        """The server that a problem was sent to before; else the one with the least to do, which is remembered."""
        server = self._server_of.pop(family, None)
        if server is None:
            server = self.unfinished.index(min(self.unfinished))
        self._server_of[family] = server
        if len(self._server_of) > MOST_FAMILIES:
            self._server_of.popitem(last=False)
        return server
