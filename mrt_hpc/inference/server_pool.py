"""Several vLLM servers of one model in one task, each on GPUs of its own, with the same weights. A server that dies or
hangs is restarted alone. All requests of a problem go to one server.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.protocol import Request
from mrt_hpc.inference.sampler import Generator
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.recipe.sections import WeightSwap

T = TypeVar("T")

_LOOK_EVERY_S = 0.2
"""A signal that arrives during a wait is heeded within this time."""


@dataclass(frozen=True)
class ServerPool:
    each: tuple[VllmServer, ...]
    """One server or more; none of them runs yet."""

    def __enter__(self) -> Self:
        self._run_parallel([partial(server.start, server.while_starting) for server in self.each], until_failure=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load_weights(self, directory: Path, version: int, swap: WeightSwap = WeightSwap.DRAIN) -> dict[str, Any]:
        """Load new weights into all servers at once; return the report of the slowest. Where a server fails, the others
        have ended their load, and hold one version each.
        """
        reports = self._run_parallel([partial(server.load_weights, directory, version, swap) for server in self.each])
        return max(reports, key=lambda report: float(report["seconds"]))

    def close(self) -> None:
        """End all servers at once; afterwards no thread restarts one of them."""
        with ThreadPoolExecutor(len(self.each)) as threads:
            list(threads.map(lambda server: server.close(), self.each))

    def _run_parallel(self, work: Sequence[Callable[[], T]], *, until_failure: bool = False) -> list[T]:
        """Do one piece of work for each server, each in its own thread; return the results in order, or raise the first
        failure. A signal that ends the task ends all servers; so does the first failure with ``until_failure``.
        """
        with ThreadPoolExecutor(len(work), thread_name_prefix="server") as threads:
            left = set(running := [threads.submit(call) for call in work])
            try:
                while left:  # signals are heeded between two waits
                    done, left = wait(left, _LOOK_EVERY_S, FIRST_EXCEPTION)
                    for call in done if until_failure else ():
                        call.result()
            except BaseException:
                self.close()
                raise
        return [call.result() for call in running]


Servers = VllmServer | ServerPool
"""The servers of one model that a task samples with: one, or several side by side."""


# Spreads the requests of a task over its servers: those of one problem go to the same server, because its prefix cache
# holds their common beginning; a new problem goes to the server that has the fewest samples to finish.


MOST_FAMILIES = 1024
"""Problems whose server is remembered, the latest ones: more than are sampled at a time."""


def spread_over(generators: Sequence[Generator]) -> Generator:
    """A single generator is returned as it is."""
    return generators[0] if len(generators) == 1 else SpreadGenerator(tuple(generators))


@dataclass
class SpreadGenerator:
    generators: tuple[Generator, ...]
    unfinished: list[int] = field(init=False)
    _server_of: OrderedDict[str, int] = field(default_factory=OrderedDict, init=False)
    """Servers by problem, the latest last."""

    def __post_init__(self) -> None:
        self.unfinished = [0] * len(self.generators)

    async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        """The server is that of the first request's problem: the requests of one call belong to one problem."""
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
        """The problem's earlier server; else the one with the least to do, which is remembered."""
        server = self._server_of.pop(family, None)
        if server is None:
            server = self.unfinished.index(min(self.unfinished))
        self._server_of[family] = server
        if len(self._server_of) > MOST_FAMILIES:
            self._server_of.popitem(last=False)
        return server
