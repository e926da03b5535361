"""What vLLM does in another way on CPU: its scheduler passes the tokens of a sample on several at a time, the noise of
a step is drawn for the whole batch, and the engine is a fork of its server.

The scheduler is there because vLLM's engine sends every token to its server in a message object of its own, with three
arrays for its log-probability. On a small model, writing and reading these objects takes a fifth of all processor time
of a server that computes with one thread. A client of this server gets a sample when it is finished, so its tokens can
wait in the engine. They do not wait for long: the server counts tokens when they arrive, and a server whose counters
stand still counts as hung.
"""

import signal
import time
from collections.abc import Sequence
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.worker.cpu_worker import CPUWorker

from mrt_hpc.run.process import die_with_parent

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
        updated: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        for outputs in updated.values():
            outputs.outputs = [self._with_held(output) for output in outputs.outputs if not self._holds(output)]
        if self._is_paused or time.monotonic() - self._passed_on > LONGEST_S:
            self._pass_all_on(updated)
        return updated

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

    def _pass_all_on(self, updated: dict[int, EngineCoreOutputs]) -> None:
        """Add everything that is held to what is passed on."""
        for name, held in self._held.items():
            updated.setdefault(self.requests[name].client_index, EngineCoreOutputs()).outputs.append(joined(held))
        self._held, self._passed_on = {}, time.monotonic()


def joined(outputs: Sequence[EngineCoreOutput]) -> EngineCoreOutput:
    """The last of several outputs of one sample, with the tokens and log-probabilities of all.

    A step gives all its samples as many log-probabilities as one of them asks for, so that steps may have more than
    this sample asked for: these are left out where not all steps have them.
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


# -- noise: one draw for the whole batch, keyed by seed and place -----------------------------------------------------
# vLLM's kernel for CPUs takes one key for each sequence, and hashes key and token id to the Gumbel noise of each token.
# vLLM itself draws the key of a step from a generator that every request owns, one after the other in Python, which
# costs 1.5 ms of CPU time a step of 256 sequences. Here the key is a hash of the request's seed and the number of
# tokens that it has generated: one operation for the whole batch. The key is the same whatever else is in the batch,
# however long the prompt is, and after vLLM has removed the request from the batch and computed it again.


Words = NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
_FIRST_SHIFT, _SECOND_SHIFT, _LAST_SHIFT = np.uint64(30), np.uint64(27), np.uint64(31)


def step_keys(seeds: Words, positions: NDArray[np.integer]) -> Words:
    """The keys of one step: number ``position`` of the SplitMix64 sequence that begins at the hash of the seed.

    The seed is hashed first, because seeds that follow one another would share parts of their sequences.

    Args:
        seeds: of each sequence, shape (sequences,).
        positions: the number of tokens that each has generated, shape (sequences,).

    Returns:
        One key for each sequence, shape (sequences,).
    """
    counted = positions.astype(np.uint64) + np.uint64(1)
    return _mixed(_mixed(seeds + _STEP) + counted * _STEP)


def _mixed(words: Words) -> Words:
    """SplitMix64's function from 64 bits to 64 bits; it is invertible, so that different words stay different."""
    words = (words ^ (words >> _FIRST_SHIFT)) * _FIRST_FACTOR
    words = (words ^ (words >> _SECOND_SHIFT)) * _SECOND_FACTOR
    return words ^ (words >> _LAST_SHIFT)


class CountingWorker(CPUWorker):
    """vLLM's worker, which draws the noise of a seeded request by its seed and the number of its tokens.

    Named to vLLM by ``--worker-cls``. On GPU vLLM's own runners draw their noise without a loop in Python.
    """

    def init_device(self) -> None:
        """Make the model runner, and give it the sampler.

        Raises:
            RuntimeError: vLLM chose settings with which the number of a request's tokens is not known when it samples.
        """
        super().init_device()
        runner = self.model_runner
        if self.use_v2_model_runner or runner.use_async_scheduling or runner.speculative_config:
            raise RuntimeError("noise by seed and place needs vLLM's first model runner, and one token a step")
        runner.sampler.topk_topp_sampler = CountingSampler(runner)


class CountingSampler(torch.nn.Module):
    """Takes the place of vLLM's ``TopKTopPSampler`` in its sampler; returns ``processed_logprobs``."""

    def __init__(self, runner: Any) -> None:
        super().__init__()
        self._runner = runner

    def forward(
        self,
        logits: torch.Tensor,
        generators: dict[int, torch.Generator],
        k: torch.Tensor | None,
        p: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw one token for each row.

        Args:
            logits: after temperature, shape (rows, vocabulary); may be changed in place.
            generators: of the rows whose requests have seeds. Only their seeds are read.
            k: of top-k by row, shape (rows,); None without.
            p: of top-p by row, shape (rows,); None without.

        Returns:
            The token ids, shape (rows,), and the log-probabilities that they were drawn with, shape (rows, vocabulary).
        """
        logits = apply_top_k_top_p(logits, k, p).float()
        keys = torch.randint(2**62, (logits.shape[0],))  # of requests without a seed
        if generators:
            rows = np.fromiter(generators, np.int64, len(generators))
            seeds = np.fromiter((g.initial_seed() for g in generators.values()), np.uint64, len(generators))
            keys.numpy()[rows] = step_keys(seeds, self._generated(rows)).view(np.int64)
        return torch.ops._C.fused_gumbel_argmax(logits, keys), logits.log_softmax(dim=-1)

    def _generated(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The number of tokens that the requests of some rows have generated."""
        batch = self._runner.input_batch  # vLLM replaces it when it has made its cache
        generated: np.ndarray[Any, Any] = batch.num_tokens_no_spec[rows] - batch.num_prompt_tokens[rows]
        return generated


# -- engine process: what it and its server import is imported once ---------------------------------------------------
# vLLM's CPU platform asks for ``spawn``, with which the engine's process imports everything again. A fork is sound as
# long as the thread that forks has never computed with several threads: the OpenMP of the child would wait for threads
# that only the parent has. So the API server computes with one thread, and the engine takes the full number.
#
# On GPU the engine is spawned: a process that has initialised CUDA cannot be forked, and forks have not
# been tested there.


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
    from vllm.v1.engine import utils  # imports Ray, which reads its variables then

    EngineProcess.threads = torch.get_num_threads()
    torch.set_num_threads(1)
    context = EngineContext()
    utils.get_mp_context = lambda: context
