"""vLLM's scheduler, which passes the tokens of a sample on several at a time.

vLLM's engine sends every token to its server in a message object of its own, with three arrays for its log-probability.
On a small model, writing and reading these objects takes as much processor time as a third of the model. A client of
this server gets a sample when it is finished, so its tokens can wait in the engine. They do not wait for long: the
server counts tokens when they arrive, and a server whose counters stand still counts as hung.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput

LONGEST_S = 0.5
"""The longest time that a token waits."""


class HoldingScheduler(Scheduler):
    """Holds the tokens of running samples back. The first token of a sample is passed on at once, as vLLM sends with it
    what it knows of the prompt; the last one takes those that were held with it. When sampling is paused, all are
    passed on before the pause begins: afterwards the weights may be others, and vLLM records which weights the server
    had when a token arrived.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._held: dict[str, list[EngineCoreOutput]] = {}
        self._passed_on = time.monotonic()

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take what the model has sampled in a step.

        Returns:
            What is to be passed on now, by client.
        """
        found: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        for outputs in found.values():
            outputs.outputs = [self._with_held(one) for one in outputs.outputs if not self._holds(one)]
        if self._is_paused or time.monotonic() - self._passed_on > LONGEST_S:
            self._pass_all_on(found)
        return found

    def has_finished_requests(self) -> bool:
        """Whether another step is needed although nothing is sampled: a pause begins when none is."""
        return super().has_finished_requests() or (self._is_paused and bool(self._held))

    def finish_requests(self, *arguments: Any, **named: Any) -> list[Any]:
        """End samples that are not wanted any more; what was held of them is dropped."""
        finished: list[Any] = super().finish_requests(*arguments, **named)
        for request in finished:
            self._held.pop(request.request_id, None)
        return finished

    @property
    def _is_paused(self) -> bool:
        return self.pause_state is PauseState.PAUSED_ALL

    def _holds(self, output: EngineCoreOutput) -> bool:
        """Hold an output back, if it has nothing but tokens and their log-probabilities."""
        if output.finish_reason is not None or output.prefill_stats is not None or output.events is not None:
            return False
        self._held.setdefault(output.request_id, []).append(output)
        return True

    def _with_held(self, output: EngineCoreOutput) -> EngineCoreOutput:
        """An output with the tokens before it that were held."""
        held = self._held.pop(output.request_id, None)
        return output if held is None else joined([*held, output])

    def _pass_all_on(self, found: dict[int, EngineCoreOutputs]) -> None:
        """Add everything that is held to what is passed on."""
        for name, held in self._held.items():
            found.setdefault(self.requests[name].client_index, EngineCoreOutputs()).outputs.append(joined(held))
        self._held, self._passed_on = {}, time.monotonic()


def joined(outputs: Sequence[EngineCoreOutput]) -> EngineCoreOutput:
    """The last of several outputs of one sample, with the tokens and log-probabilities of all.

    A step gives all its samples as many log-probabilities as one of them asks for, so that steps may have more than
    this sample asked for: these are left out where not all steps have them.
    """
    last = outputs[-1]
    last.new_token_ids = [token for output in outputs for token in output.new_token_ids]
    told = [output.new_logprobs for output in outputs if output.new_logprobs is not None]
    if told:
        columns = min(one.logprobs.shape[1] for one in told)
        last.new_logprobs = LogprobsLists(
            np.concatenate([one.logprob_token_ids[:, :columns] for one in told]),
            np.concatenate([one.logprobs[:, :columns] for one in told]),
            np.concatenate([one.sampled_token_ranks for one in told]),
        )
    return last
