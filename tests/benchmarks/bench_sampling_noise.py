"""What reproducible samples cost on CPU: the server with noise keyed by seed and place, the same server with vLLM's own
generator for each request, and vLLM's offline ``LLM.generate`` without any seeds, which is the least that can be had.

All three stay loaded and take turns, in an order that is reversed every other turn. A turn's wall time is that of the
whole load; its CPU time is that of all the server's or the offline engine's processes, without the client's.

    python tests/benchmarks/bench_sampling_noise.py --out tests/benchmarks/results/sampling-noise
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from bench_rollout_throughput import Load, Pipeline, make_model

from mrt_hpc.inference.server import ServerSettings, VllmServer, cpu_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LENGTH = 512
TEMPERATURE = 0.9


class WithGenerators(VllmServer):
    """The server with vLLM's own sampler, which asks the generator of each request for its noise."""

    def _arguments(self) -> list[str]:
        arguments = super()._arguments()
        place = arguments.index("--worker-cls")
        return arguments[:place] + arguments[place + 2 :]


@dataclass(frozen=True)
class Turn:
    """One generation of the whole load."""

    turn: int
    variant: str
    wall_s: float
    cpu_s: float


def main() -> None:
    arguments = parse_arguments()
    load = Load(arguments.prompts, 8, 32, arguments.tokens, TEMPERATURE, arguments.max_num_seqs)
    if arguments.offline_worker:
        offline_worker(arguments.offline_worker, load)
        return
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        model = make_model(Path(scratch) / "model", "small")
        turns = measure(variants(model, load, Path(scratch), stack), arguments.turns)
    write(turns, load, arguments.out)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--offline-worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def variants(model: Path, load: Load, scratch: Path, stack: ExitStack) -> dict[str, tuple[int, Callable[[], object]]]:
    """The process and the generation of each variant, by its name."""
    settings = ServerSettings(model, LENGTH, dtype="float32", kv_cache_gib=1.0, max_num_seqs=load.max_num_seqs)
    counted = stack.enter_context(VllmServer(settings, scratch / "counted.log"))
    generators = stack.enter_context(WithGenerators(settings, scratch / "generators.log"))
    assert counted.pid and generators.pid
    return {
        "generators": (generators.pid, Pipeline(generators, load)),
        "counted": (counted.pid, Pipeline(counted, load)),
        "offline, no seeds": stack.enter_context(offline_engine(model, scratch / "offline.log")),
    }


def measure(of: dict[str, tuple[int, Callable[[], object]]], turns: int) -> list[Turn]:
    for _, generate in of.values():
        generate()  # warm up
    found = []
    for turn in range(turns):
        for name, (pid, generate) in list(of.items())[:: -1 if turn % 2 else 1]:
            before, start = cpu_s(pid), time.perf_counter()
            generate()
            found.append(Turn(turn, name, round(time.perf_counter() - start, 2), round(cpu_s(pid) - before, 2)))
            print(found[-1], flush=True)
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all below it until now."""
    process = psutil.Process(pid)
    times = [p.cpu_times() for p in (process, *process.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def write(turns: list[Turn], load: Load, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "turns.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, list(asdict(turns[0])))
        rows.writeheader()
        rows.writerows(map(asdict, turns))
    lines = ["| variant | wall s, best | wall s, median | CPU s, best | CPU s, median |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(t.variant for t in turns):
        of = [t for t in turns if t.variant == name]
        values = [f(getattr(t, what) for t in of) for what in ("wall_s", "cpu_s") for f in (min, statistics.median)]
        lines.append(f"| {name} | " + " | ".join(f"{value:.2f}" for value in values) + " |")
    head = f"{load.prompts} prompts x {load.group} samples x {load.tokens} tokens and a quarter of them before, "
    head += f"at most {load.max_num_seqs} at once; {os.cpu_count()} cores, fp32, {turns[-1].turn + 1} turns"
    (out / "table.md").write_text("\n".join([head, "", *lines, ""]))
    print((out / "table.md").read_text())


@contextmanager
def offline_engine(model: Path, log: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """A process with ``LLM`` loaded, and a function that generates the whole load."""
    command = [sys.executable, __file__, *sys.argv[1:], "--offline-worker", str(model)]
    environment = os.environ | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"} | cpu_environment(None)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        log.open("w") as errors,
        subprocess.Popen(command, env=environment, text=True, stderr=errors, **pipes) as process,
    ):
        assert process.stdin and process.stdout
        asked, answers = process.stdin, process.stdout

        def generate() -> None:
            print("generate", file=asked, flush=True)
            if not any(line == "generated\n" for line in answers):
                raise RuntimeError(f"the offline engine ended with status {process.wait()}:\n{log.read_text()[-3000:]}")

        yield process.pid, generate
        asked.close()


def offline_worker(model: Path, load: Load) -> None:
    """Body of the offline process: one generation for each line read."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(model),
        dtype="float32",
        max_model_len=LENGTH,
        max_num_seqs=load.max_num_seqs,
        kv_cache_memory_bytes=2**30,
        block_size=32,
        enforce_eager=True,
        enable_chunked_prefill=False,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        disable_log_stats=True,
    )
    params = SamplingParams(
        n=load.group, max_tokens=load.tokens, temperature=TEMPERATURE, logprobs=0, ignore_eos=True, detokenize=False
    )
    prompts: list[Any] = [{"prompt_token_ids": load.prompt(i)} for i in range(load.prompts)]
    for _ in sys.stdin:
        llm.generate(prompts[: load.warm_up.prompts], params, use_tqdm=False)
        llm.reset_prefix_cache()
        llm.generate(prompts, params, use_tqdm=False)
        print("generated", flush=True)


if __name__ == "__main__":
    main()
