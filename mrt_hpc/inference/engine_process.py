"""The engine of a vLLM server on CPU is a fork of its API server: what both import is imported once.

vLLM's CPU platform asks for ``spawn``, with which the engine's process imports everything again. A fork is sound as
long as the thread that forks has never computed with several threads: the OpenMP of the child would wait for threads
that only the parent has. So the API server computes with one thread, and the engine takes the full number.

On GPU the engine is spawned: a process that has initialised CUDA cannot be forked, and forks have not
been tested there.
"""

from __future__ import annotations

import signal
from multiprocessing.context import ForkContext, ForkProcess
from typing import ClassVar

import torch
from vllm.v1.engine import utils

from mrt_hpc.run.process import die_with_parent


class EngineProcess(ForkProcess):
    """A process that ends with the one that it was forked from."""

    threads: ClassVar[int] = 1
    """The number of threads to compute with."""

    def run(self) -> None:
        """Run vLLM's engine."""
        die_with_parent()
        signal.set_wakeup_fd(-1)  # otherwise the signals of this process would wake up the event loop of its server
        torch.set_num_threads(self.threads)
        super().run()


class EngineContext(ForkContext):
    """Stands where vLLM takes the means to start its engine from; the engine starts its workers with ``spawn``."""

    Process = EngineProcess


def fork_engines() -> None:
    """Have vLLM fork its engine; to be called by the main thread when vLLM is imported and before it is used."""
    EngineProcess.threads = torch.get_num_threads()
    torch.set_num_threads(1)
    context = EngineContext()
    utils.get_mp_context = lambda: context
