"""The start of a vLLM server that compiles its model, with and without the code that an earlier server has compiled.
Each start has a folder for temporary files and weights of its own, as the jobs of most clusters have. Without a GPU
vLLM compiles with Inductor for the CPU, where the product itself never compiles.

    python benchmarks/bench_compile_cache.py --repeats 3 --output benchmarks/results/compile-cache
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch
from benchmarking import options, random_qwen3, spread, table, turns, written
from warm_start import build_tokenizer

from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_start import ServerSettings, is_on_cpu
from mrt_hpc.run.access import CACHES, cache_variables

if TYPE_CHECKING:
    from collections.abc import Iterator


def main() -> None:
    given = options(__doc__, repeats=3, layers=4, output=Path)
    with tempfile.TemporaryDirectory() as folder:
        written(report(*measured(Path(folder), given.repeats, given.layers)), given.output)


def measured(folder: Path, repeats: int, layers: int) -> tuple[float, int, dict[str, list[float]]]:
    """Seconds of the start that compiles and keeps its code, the bytes of the archive, and seconds of later starts."""
    kept = folder / "compiled_code"
    first = start(folder, layers, "--no-enforce-eager", kept)
    (archive,) = kept.iterdir()
    found = turns(
        {
            "eager": lambda: start(folder, layers, "--enforce-eager", None),
            "compiles": lambda: start(folder, layers, "--no-enforce-eager", None),
            "takes the kept code": lambda: start(folder, layers, "--no-enforce-eager", kept),
        },
        repeats,
    )
    return first, archive.stat().st_size, found


def model(path: Path, layers: int) -> Path:
    tokenizer = build_tokenizer()
    made = random_qwen3(256, layers, 4, len(tokenizer), tokenizer)
    made.to(torch.bfloat16).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def start(folder: Path, layers: int, flag: str, kept: Path | None) -> float:
    """Seconds until a server of new weights answers, in a job of its own."""
    place = Path(tempfile.mkdtemp(dir=folder))
    weights, log = model(place / "weights", layers), place / "log"
    settings = ServerSettings(
        weights, max_model_len=512, kv_cache_gib=0.5, max_num_seqs=32, compiled_code=kept, extra_args=(flag,)
    )
    with as_in_a_job(place):
        began = time.monotonic()
        with VllmServer(settings, log):
            return time.monotonic() - began


@contextmanager
def as_in_a_job(folder: Path) -> Iterator[None]:
    """Temporary files and caches below a folder that no other job has."""
    with patch.dict(os.environ, TMPDIR=str(folder)), patch.object(tempfile, "tempdir", str(folder)):
        for name in CACHES:
            os.environ.pop(name, None)
        os.environ.update(cache_variables())
        yield


def report(first: float, size: int, found: dict[str, list[float]]) -> str:
    rows = [(kind, spread(each, 1)) for kind, each in found.items()]
    pairs = zip(found["compiles"], found["takes the kept code"], strict=True)
    saved = statistics.median(one - other for one, other in pairs)
    device = "CPU" if is_on_cpu() else torch.cuda.get_device_name()
    lines = [
        f"Seconds from a server's start to its answer on {device}, {len(found['eager'])} starts of each kind.", "",
        *table(("server", "median (range)"), rows), "",
        f"The first server compiled, and wrote an archive of {size / 2**20:.1f} MiB: {first:.1f} s. In the median pair "
        f"the kept code saves {saved:.1f} s of each later start.",
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
