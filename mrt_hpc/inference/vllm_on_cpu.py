"""The engine of vLLM on CPU: its scheduler passes on several tokens of a sample at a time, and its process is a fork of
its server.

A message for each token is a fifth of the processor time of a small model. Tokens wait for half a second at most: a
server whose token counters stand still counts as hung.

vLLM's CPU platform asks for ``spawn``, which imports everything again. A fork is sound as long as the thread that forks
has never computed with several threads, so the API server computes with one.
"""

import signal
import time
from collections.abc import Sequence
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any, ClassVar

import numpy as np
import torch
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

from mrt_hpc.run.process import die_with_parent

LONGEST_S = 0.5


class HoldingScheduler(Scheduler):
    """Holds the tokens of running samples back. The first token goes on at once, with what vLLM knows of the prompt;
    the last one takes the held ones along. All go on before a pause: vLLM records the weights of a token's arrival.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._held: dict[str, list[EngineCoreOutput]] = {}
        self._passed_on = time.monotonic()

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        updated: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        for outputs in updated.values():
            outputs.outputs = [self._prepend_held(output) for output in outputs.outputs if not self._holds(output)]
        if self._is_paused or time.monotonic() - self._passed_on > LONGEST_S:
            self._pass_all_on(updated)
        return updated

    def has_finished_requests(self) -> bool:
        """A pause needs another step although nothing is sampled."""
        return super().has_finished_requests() or (self._is_paused and bool(self._held))

    def finish_requests(self, *arguments: Any, **named: Any) -> list[Any]:
        """Held tokens are dropped."""
        finished: list[Any] = super().finish_requests(*arguments, **named)
        for request in finished:
            self._held.pop(request.request_id, None)
        return finished

    @property
    def _is_paused(self) -> bool:
        return self.pause_state is PauseState.PAUSED_ALL

    def _holds(self, output: EngineCoreOutput) -> bool:
        if output.finish_reason is not None or output.prefill_stats is not None or output.events is not None:
            return False
        self._held.setdefault(output.request_id, []).append(output)
        return True

    def _prepend_held(self, output: EngineCoreOutput) -> EngineCoreOutput:
        held = self._held.pop(output.request_id, None)
        return output if held is None else join_outputs([*held, output])

    def _pass_all_on(self, updated: dict[int, EngineCoreOutputs]) -> None:
        for name, held in self._held.items():
            updated.setdefault(self.requests[name].client_index, EngineCoreOutputs()).outputs.append(join_outputs(held))
        self._held, self._passed_on = {}, time.monotonic()


def join_outputs(outputs: Sequence[EngineCoreOutput]) -> EngineCoreOutput:
    """One output with all tokens and log-probabilities of a sample. Log-probabilities that
    another sample of a step asked for are left out where not all steps have them.
    """
    last = outputs[-1]
    last.new_token_ids = [token for output in outputs for token in output.new_token_ids]
    given = [output.new_logprobs for output in outputs if output.new_logprobs is not None]
    if given:
        columns = min(part.logprobs.shape[1] for part in given)
        last.new_logprobs = LogprobsLists(
            np.concatenate([part.logprob_token_ids[:, :columns] for part in given]),
            np.concatenate([part.logprobs[:, :columns] for part in given]),
            np.concatenate([part.sampled_token_ranks for part in given]),
        )
    return last


class EngineProcess(ForkProcess):
    """Ends with the process that it was forked from."""

    threads: ClassVar[int] = 1

    def run(self) -> None:
        die_with_parent()
        signal.set_wakeup_fd(-1)  # otherwise the signals of this process would wake up the event loop of its server
        torch.set_num_threads(self.threads)
        super().run()


class EngineContext(ForkContext):
    """vLLM starts its engine by it; the engine spawns its workers."""

    Process = EngineProcess


def fork_engines() -> None:
    """Have vLLM fork its engine; the main thread calls it after importing vLLM and before using it."""
    from vllm.v1.engine import utils  # imports Ray, which reads its variables then

    EngineProcess.threads = torch.get_num_threads()
    torch.set_num_threads(1)
    utils.get_mp_context = EngineContext


def inspect_models_here() -> None:
    """Have vLLM look at a model's class in this process: another one, which CUDA needs, would import vLLM again."""
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda look: look()
