"""Mixed into vLLM's worker class by ``--worker-extension-cls``, loads new weights in place and verifies them; called
through ``/collective_rpc``.

On CPU, vLLM multiplies by a packed copy of a weight. Its own reload does not renew the copy of the output head of a
model with tied embeddings, which then silently keeps the old weights.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.platforms import current_platform

from mrt_hpc.run.retries import list_directory

_PROBE_ROWS = 4


class ReloadExtension:
    """``self.model_runner`` is the worker's."""

    model_runner: Any

    def reload_and_verify(self, directory: str) -> dict[str, Any]:
        """Load a Hugging Face directory into the running model. A RuntimeError if it does not compute with these
        weights afterwards.
        """
        start = time.monotonic()
        self.model_runner.reload_weights(weights_path=directory)
        model = self.model_runner.get_model()
        _refuse_not_finite(model)
        embeddings = [m for m in model.modules() if isinstance(m, VocabParallelEmbedding)]
        for embedding in embeddings:
            if current_platform.is_cpu() and hasattr(embedding, "cpu_linear"):
                dispatch_cpu_unquantized_gemm(embedding, remove_weight=False)
            _verify_product(embedding)
        inputs = [m for m in embeddings if not isinstance(m, ParallelLMHead)]
        for embedding in inputs[:1]:  # a later stage of a model whose layers are divided has none
            _verify_rows(embedding, Path(directory))
        return {"seconds": time.monotonic() - start, "directory": directory}


def _refuse_not_finite(model: torch.nn.Module) -> None:
    """The extremes of a tensor are NaN where it holds one."""
    for name, weights in model.named_parameters():
        if weights.is_floating_point() and weights.numel():
            extremes = torch.stack(weights.float().aminmax() if weights.itemsize == 1 else weights.aminmax())
            if not extremes.isfinite().all():
                raise RuntimeError(f"after the reload {name} holds a NaN or an infinity")


def _verify_product(embedding: VocabParallelEmbedding) -> None:
    """Check that the product the model computes is the product with its visible weights."""
    weight = embedding.weight
    probe = torch.linspace(-1, 1, _PROBE_ROWS * weight.shape[1], device=weight.device, dtype=weight.dtype).view(
        _PROBE_ROWS, -1
    )
    computed = embedding.quant_method.apply(embedding, probe).float()
    expected = probe.float() @ weight.float().T
    error = ((computed - expected).norm() / expected.norm().clamp_min(1e-12)).item()
    if not error <= (1e-4 if weight.dtype == torch.float32 else 2e-2):  # a NaN is neither above nor below
        raise RuntimeError(
            f"after the reload an output head does not compute with its visible weights: relative error {error:.3g}"
        )


def _verify_rows(embedding: VocabParallelEmbedding, directory: Path) -> None:
    """Check that this worker's rows of the embedding are the directory's. Models name it differently: it is a tensor of
    their shape that holds these rows.
    """
    shape = [embedding.org_vocab_size, embedding.embedding_dim]
    first, end = embedding.shard_indices.org_vocab_start_index, embedding.shard_indices.org_vocab_end_index
    in_memory = embedding.weight[: end - first].cpu()
    if not any(
        all(_begins(in_memory, tensor[first:last]) for last in (min(end, first + _PROBE_ROWS), end))
        for tensor in _tensors(directory)
        if tensor.get_shape() == shape
    ):
        raise RuntimeError(f"after the reload the embedding is that of no tensor in {directory}")


def _begins(in_memory: torch.Tensor, rows: torch.Tensor) -> bool:
    return torch.equal(rows.to(in_memory.dtype), in_memory[: rows.shape[0]])


def _tensors(directory: Path) -> Iterator[Any]:
    """Slices of each tensor can be read while its file is open."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        files = sorted({directory / name for name in json.loads(index.read_bytes())["weight_map"].values()})
    else:
        files = list_directory(directory, "*.safetensors")
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - the file is not a dict
                yield file.get_slice(name)
