"""The engine process of vLLM on CPU, which is a fork of its server.

vLLM's CPU platform asks for ``spawn``, which imports everything again. A fork is sound as long as the thread that forks
has never computed with several threads: the OpenMP of the child would wait for threads that only the parent has. So the
API server computes with one thread.
"""

import signal
from multiprocessing.context import ForkContext, ForkProcess
from typing import ClassVar

import torch

from mrt_hpc.run.process import die_with_parent


class EngineProcess(ForkProcess):
    """Ends with the process that it was forked from."""

    threads: ClassVar[int] = 1

    def run(self) -> None:
        die_with_parent()
        signal.set_wakeup_fd(-1)  # otherwise the signals of this process would wake up the event loop of its server
        torch.set_num_threads(self.threads)
        super().run()


class EngineContext(ForkContext):
    """vLLM starts its engine by it; the engine starts its workers with ``spawn``."""

    Process = EngineProcess


def fork_engines() -> None:
    """Have vLLM fork its engine; the main thread calls it after importing vLLM and before using it."""
    from vllm.v1.engine import utils  # imports Ray, which reads its variables then

    EngineProcess.threads = torch.get_num_threads()
    torch.set_num_threads(1)
    context = EngineContext()
    utils.get_mp_context = lambda: context
