"""vLLM's worker for CPUs, with noise that is drawn for the whole batch at once: see `mrt_hpc.inference.sampling_noise`.

Named to vLLM by ``--worker-cls``. On GPU vLLM's own runners draw their noise without a loop in Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.worker.cpu_worker import CPUWorker

from mrt_hpc.inference.sampling_noise import step_keys


class CountingWorker(CPUWorker):
    """vLLM's worker, which draws the noise of a seeded request by its seed and the number of its tokens."""

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
