"""Draws the noise of a step of vLLM on CPU for the whole batch at once, keyed by seed and place.

vLLM draws each request's key from a generator of its own, in a loop of Python. Here the key is a hash of the request's
seed and its number of generated tokens: the same whatever else is in the batch, and after vLLM has computed the request
again.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.worker.cpu_worker import CPUWorker

Words = NDArray[np.uint64]
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
_FIRST_SHIFT, _SECOND_SHIFT, _LAST_SHIFT = np.uint64(30), np.uint64(27), np.uint64(31)


def step_keys(seeds: Words, positions: NDArray[np.integer]) -> Words:
    """One key per sequence: number ``position`` of the SplitMix64 sequence from the seed's hash, so that neighbouring
    seeds share no parts. All shapes (sequences,).
    """
    counted = positions.astype(np.uint64) + np.uint64(1)
    return _mix_words(_mix_words(seeds + _STEP) + counted * _STEP)


def _mix_words(words: Words) -> Words:
    """SplitMix64's invertible function of 64 bits: different words stay different."""
    words = (words ^ (words >> _FIRST_SHIFT)) * _FIRST_FACTOR
    words = (words ^ (words >> _SECOND_SHIFT)) * _SECOND_FACTOR
    return words ^ (words >> _LAST_SHIFT)


class CountingWorker(CPUWorker):
    """Named to vLLM by ``--worker-cls``; vLLM's GPU runners draw without a loop in Python."""

    def init_device(self) -> None:
        """Refuses settings with which the number of a request's tokens is not known when it samples."""
        super().init_device()
        runner = self.model_runner
        if self.use_v2_model_runner or runner.use_async_scheduling or runner.speculative_config:
            raise RuntimeError("noise by seed and place needs vLLM's first model runner, and one token a step")
        runner.sampler.topk_topp_sampler = CountingSampler(runner)


class CountingSampler(torch.nn.Module):
    """Replaces vLLM's ``TopKTopPSampler``; returns ``processed_logprobs``."""

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
            generators: only their seeds are read.
            k: of top-k, shape (rows,).
            p: of top-p, shape (rows,).

        Returns:
            Token ids (rows,), and log-probabilities (rows, vocabulary).
        """
        logits = apply_top_k_top_p(logits, k, p).float()
        keys = torch.randint(2**62, (logits.shape[0],))  # of requests without a seed
        if generators:
            rows = np.fromiter(generators, np.int64, len(generators))
            seeds = np.fromiter((g.initial_seed() for g in generators.values()), np.uint64, len(generators))
            keys.numpy()[rows] = step_keys(seeds, self._generated_counts(rows)).view(np.int64)
        return torch.ops._C.fused_gumbel_argmax(logits, keys), logits.log_softmax(dim=-1)

    def _generated_counts(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        batch = self._runner.input_batch  # vLLM replaces it when it has made its cache
        generated: np.ndarray[Any, Any] = batch.num_tokens_no_spec[rows] - batch.num_prompt_tokens[rows]
        return generated
