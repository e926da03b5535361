"""The start of a vLLM server that compiles its model, with and without the code that an earlier server has compiled.

Each start has a folder for temporary files of its own, as the jobs of most clusters have, and its weights have another
path than those of the start before. The starts of each kind are measured in turn. Without a GPU vLLM compiles with
Inductor for the CPU, where the product itself never compiles.

    python tests/benchmarks/bench_compile_cache.py --repeats 3 --output tests/benchmarks/results/compile-cache
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from benchmarking import options, random_qwen3, table, written

from mrt_hpc.domains.small_world.model import build_tokenizer
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_start import ServerSettings, on_cpu
from mrt_hpc.run.access import CACHES, cache_variables

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = {
    "eager": ("--enforce-eager", False),
    "compiles": ("--no-enforce-eager", False),
    "takes the kept code": ("--no-enforce-eager", True),
}


def main() -> None:
    given = options(__doc__, repeats=3, layers=4, output=Path)
    with tempfile.TemporaryDirectory() as folder:
        written(report(*measured(Path(folder), given.repeats, given.layers)), given.output)


def measured(folder: Path, repeats: int, layers: int) -> tuple[float, int, dict[str, list[float]]]:
    """Seconds of the start that compiles and keeps its code, the bytes of the archive, and seconds of later starts."""
    kept = folder / "compiled_code"
    first = start(folder, model(folder / "v0", layers), "--no-enforce-eager", kept)
    (archive,) = kept.iterdir()
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for repeat in range(repeats):
        weights = model(folder / f"v{repeat + 1}", layers)
        for kind, (flag, keeps) in KINDS.items():
            found[kind].append(start(folder, weights, flag, kept if keeps else None))
    return first, archive.stat().st_size, found


def model(path: Path, layers: int) -> Path:
    tokenizer = build_tokenizer()
    made = random_qwen3(256, layers, 4, len(tokenizer), tokenizer)
    made.to(torch.bfloat16).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def start(folder: Path, weights: Path, flag: str, kept: Path | None) -> float:
    """Seconds until a server answers, in a job of its own."""
    settings = ServerSettings(
        weights, max_model_len=512, kv_cache_gib=0.5, max_num_seqs=32, compiled_code=kept, extra_args=(flag,)
    )
    log = Path(tempfile.mkdtemp(dir=folder)) / "log"
    with as_in_a_job(log.parent):
        began = time.monotonic()
        with VllmServer(settings, log):
            took = time.monotonic() - began
    print(f"{took:6.1f} s  {flag} {'kept' if kept else ''}", flush=True)
    return took


@contextmanager
def as_in_a_job(folder: Path) -> Iterator[None]:
    """Temporary files and caches below a folder that no other job has."""
    before = dict(os.environ), tempfile.tempdir
    for name in CACHES:
        os.environ.pop(name, None)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    os.environ.update(cache_variables())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before[0])
        tempfile.tempdir = before[1]


def report(first: float, size: int, found: dict[str, list[float]]) -> str:
    rows = [
        (kind, f"{statistics.median(each):.1f}", f"{min(each):.1f} to {max(each):.1f}") for kind, each in found.items()
    ]
    pairs = zip(found["compiles"], found["takes the kept code"], strict=True)
    saved = statistics.median(one - other for one, other in pairs)
    device = "CPU" if on_cpu() else torch.cuda.get_device_name()
    lines = [
        f"Seconds from a server's start to its answer on {device}, {len(found['eager'])} starts of each kind.", "",
        *table(("server", "median", "range"), rows), "",
        f"The first server compiled, and wrote an archive of {size / 2**20:.1f} MiB: {first:.1f} s. In the median pair "
        f"the kept code saves {saved:.1f} s of each later start.",
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
