"""Export of weights for serving, from any ZeRO stage to a Hugging Face directory with the model's other files."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from mrt_hpc.errors import UserError
from mrt_hpc.run.atomic import CHECKSUMS_AT_ONCE
from mrt_hpc.run.manifest import MANIFEST
from mrt_hpc.run.safetensors_file import is_finite, not_finite
from mrt_hpc.training.accelerator import deepspeed
from mrt_hpc.training.engine import TrainerEngine
from mrt_hpc.training.host_memory import copy_to_host
from mrt_hpc.training.rank_messages import run_on_rank_zero

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NAMES = {
    torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
COMPANIONS = {".json", ".jinja", ".txt", ".model", ".py"}
"""Suffixes of tokenizer, chat template, generation defaults, own code."""
SHARD_SIZE = "1GB"
"""Checksums of several files are computed in parallel."""


@dataclass(frozen=True)
class GatheredWeights:
    """A trainer's weights on rank 0, in the published number format; empty elsewhere."""

    trainer: TrainerEngine
    dtype: str
    tensors: dict[str, torch.Tensor]

    def write(self, directory: Path) -> None:
        self.trainer.policy.model.save_pretrained(directory, state_dict=self.tensors, max_shard_size=SHARD_SIZE)
        source = self.trainer.source_dir
        for file in source.iterdir():
            names_weights = file.name.endswith(".index.json") or file.name == MANIFEST
            if file.is_file() and file.suffix in COMPANIONS and not names_weights:
                shutil.copy(file, directory / file.name)
        config = json.loads((source / "config.json").read_bytes())
        for field in {"dtype", "torch_dtype"} & config.keys() or {"dtype"}:
            config[field] = self.dtype
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    def refuse_not_finite(self) -> None:
        """Weights with a NaN or an infinity are published in no form."""
        with ThreadPoolExecutor(CHECKSUMS_AT_ONCE) as pool:
            finite = list(pool.map(_is_finite, self.tensors.values()))
        if bad := [name for name, good in zip(self.tensors, finite, strict=True) if not good]:
            raise UserError(
                f"the trained weights are not finite, and are not published: {not_finite(bad)}",
                value=self.dtype,
                where="training.weights_dtype",
                expected="finite numbers in this number format; float16 has none above 65504, bfloat16 does",
                advice="mrt-hpc submit RUN continues from the last checkpoint; if it ends here again: "
                "mrt-hpc fork RUN --at last --set training.learning_rate=RATE, a lower one",
            )


def _is_finite(tensor: torch.Tensor) -> bool:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return is_finite(NAMES.get(tensor.dtype, str(tensor.dtype)), data)


def gather_weights(trainer: TrainerEngine, dtype: str) -> GatheredWeights:
    """The trainer's weights, all finite, as float32, bfloat16 or float16; collective."""
    weights = GatheredWeights(trainer, dtype, gather(trainer, DTYPES[dtype]))
    run_on_rank_zero(weights.refuse_not_finite)
    return weights


def gather(trainer: TrainerEngine, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """All weights by name on the CPU of rank 0; one parameter at a time is whole on a device. Buffers keep their number
    format: router biases that differ by less than bfloat16 resolves would send tokens to other experts.
    """
    model = trainer.policy.model
    partitioned = trainer.engine.zero_optimization_partition_weights()
    saved_buffers = model.state_dict().keys() & dict(model.named_buffers()).keys()
    tensors = [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if n in saved_buffers)]
    weights = {}
    for name, tensor in tensors:
        with deepspeed.zero.GatheredParameters([tensor], enabled=partitioned and hasattr(tensor, "ds_id")):
            if trainer.ranks.rank == 0:
                is_weight = isinstance(tensor, torch.nn.Parameter) and tensor.is_floating_point()
                weights[name] = copy_to_host(tensor, dtype if is_weight else tensor.dtype)
    return weights
