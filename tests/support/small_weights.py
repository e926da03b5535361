"""Weights versions of a few small tensors."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from warm_start import build_tokenizer

from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.weights import publish

Tensors = dict[str, "np.ndarray[Any, Any]"]
FILES = {"model-1.safetensors": ("bias", "embedding"), "model-2.safetensors": ("head", "steps")}
"""The tensors of each file."""
FILE = "model-2.safetensors"


def tensors(version: int, share: float = 0.01) -> Tensors:
    draw = np.random.default_rng(0)
    embedding, head = (draw.integers(0, 2**16, size, np.uint16) for size in ((200, 40), (3, 50)))
    for number in range(1, version + 1):
        step = np.random.default_rng(number)
        for matrix in (embedding, head):
            matrix += (step.random(matrix.shape) < share).astype(np.uint16)
    bias = np.arange(7, dtype=np.float32)
    return {"embedding": embedding, "head": head, "bias": bias, "steps": np.array([version], np.int64)}


def write_model(directory: Path, values: Tensors) -> None:
    """Fill a directory with a whole model in two files."""
    (directory / "config.json").write_text("{}")
    for file, names in FILES.items():
        save_file({name: values[name] for name in names}, directory / file, {"format": "pt"})


def read_model(directory: Path) -> Tensors:
    return {name: value for file in FILES for name, value in load_file(directory / file).items()}


def publish_whole(layout: RunLayout, version: int, values: int | None = None) -> None:
    """Publish a version, with the ``values`` of another one if given."""
    held = tensors(version if values is None else values)
    assert publish(layout, version, lambda to: write_model(to, held))


CONFIG = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 100_000}


def publish_models(layout: RunLayout, *versions: int) -> list[str]:
    def write(version: int, directory: Path) -> None:
        (directory / "config.json").write_text(json.dumps({**CONFIG, "version": version}))
        build_tokenizer().save_pretrained(directory)
        save_file({"weight": np.full((2, 2), version, dtype=np.float32)}, directory / "model.safetensors")

    for version in versions:
        publish(layout, version, partial(write, version))
    return [read_manifest(layout.weights_version(version)).digest for version in versions]
