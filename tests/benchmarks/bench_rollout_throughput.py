"""Generated tokens per second of the rollout pipeline against vLLM's own offline ``LLM.generate``, on this machine,
side by side.

Both get the same model, prompts, number of samples a prompt, seeds, engine settings and sampling parameters
(log-probabilities of the sampled tokens, no text). Both engines stay loaded; the repeats alternate between them, so
that what else the machine does meets both. The pipeline's time runs from the first request to the last trace cut into
episodes.

    python tests/benchmarks/bench_rollout_throughput.py --model small
    python tests/benchmarks/bench_rollout_throughput.py --model 100m --prompts 16 --tokens 64
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from mrt_hpc.domains.small_world.model import ModelSize, build_tokenizer, fresh_model
from mrt_hpc.inference.client import connect
from mrt_hpc.inference.protocol import SamplingSettings
from mrt_hpc.inference.sampler import RolloutPlan, RolloutSampler
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_start import ServerSettings, on_cpu
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.inference.traces import PromptedGroup, Start
from mrt_hpc.run.records import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TARGETS = {"small": 0.75, "100m": 0.95}


@dataclass(frozen=True)
class Load:
    """What is sampled."""

    prompts: int
    group: int
    prompt_tokens: int
    tokens: int
    temperature: float
    max_num_seqs: int

    def prompt(self, i: int) -> list[int]:
        """Distinct prompts: a shared one would measure the prefix cache."""
        generator = torch.Generator().manual_seed(i)
        return torch.randint(0, 250, (self.prompt_tokens,), generator=generator).tolist()

    @property
    def warm_up(self) -> Load:
        """Sampled before each timed run: the engine has been idle while the other was measured."""
        return replace(self, prompts=max(1, self.prompts // 4))

    @property
    def generated(self) -> int:
        return self.prompts * self.group * self.tokens


def engine_options(model: Path, load: Load) -> dict[str, Any]:
    """Engine settings common to both sides, by their names in ``LLM``."""
    return {
        "model": str(model),
        "dtype": "bfloat16",
        "max_model_len": 512,
        "max_num_seqs": load.max_num_seqs,
        "gpu_memory_utilization": 0.4,
        **(
            {
                "kv_cache_memory_bytes": 2 * 2**30,
                "block_size": 32,
                "enforce_eager": True,
                "enable_chunked_prefill": False,
            }
            if on_cpu()
            else {}
        ),
    }


def main() -> None:
    arguments = parse_arguments()
    load = Load(
        arguments.prompts, arguments.group, arguments.prompt_tokens, arguments.tokens, 0.9, arguments.max_num_seqs
    )
    if arguments.offline_worker:
        offline_worker(arguments.offline_worker, load)
        return
    with tempfile.TemporaryDirectory() as scratch:
        model = make_model(Path(scratch) / "model", arguments.model)
        ratios = compare(model, load, arguments.repeats, Path(scratch))
    target = TARGETS[arguments.model]
    middle = statistics.median(ratios)
    print(f"median ratio {middle:.3f} (target {target}): {'reached' if middle >= target else 'MISSED'}")
    sys.exit(middle < target)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=TARGETS, default="small")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--offline-worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def make_model(directory: Path, name: str) -> Path:
    """A model with random weights: the small world's, or one of 104 M parameters."""
    tokenizer = build_tokenizer()
    if name == "small":
        model = fresh_model(ModelSize(), tokenizer, seed=0)
    else:
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=16000, hidden_size=768, intermediate_size=2304, num_hidden_layers=13, num_attention_heads=12,
            num_key_value_heads=6, head_dim=64, max_position_embeddings=1024, tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
        )  # fmt: skip
        model = Qwen3ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    print(f"{name}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    return directory


def compare(model: Path, load: Load, repeats: int, scratch: Path) -> list[float]:
    """Print a line a repeat; return the ratios."""
    options = engine_options(model, load)
    settings = ServerSettings(
        model,
        max_model_len=options["max_model_len"],
        dtype=options["dtype"],
        max_num_seqs=load.max_num_seqs,
        gpu_memory_utilization=options["gpu_memory_utilization"],
        kv_cache_gib=2.0,
    )
    ratios = []
    with (
        offline_engine(model, scratch / "offline.log") as offline,
        VllmServer(settings, scratch / "server.log") as server,
    ):
        pipeline = Pipeline(server, load)
        offline(), pipeline()  # warm up
        print(
            f"{load.prompts} prompts x {load.group} samples x {load.tokens} tokens, at most {load.max_num_seqs} at once"
        )
        print(f"{'repeat':>6} {'offline tok/s':>14} {'pipeline tok/s':>15} {'ratio':>6}")
        for repeat in range(repeats):
            if repeat % 2:
                online_s, offline_s = pipeline(), offline()
            else:
                offline_s, online_s = offline(), pipeline()
            ratios.append(offline_s / online_s)
            print(
                f"{repeat:6d} {load.generated / offline_s:14.0f} {load.generated / online_s:15.0f} {ratios[-1]:6.3f}",
                flush=True,
            )
    return ratios


@dataclass
class Pipeline:
    """The rollout role's sampling, called for its seconds."""

    server: VllmServer
    load: Load

    def __call__(self) -> float:
        asyncio.run(self._sample(self.load.warm_up))
        self.server.reset_prefix_cache()
        return asyncio.run(self._sample(self.load))

    async def _sample(self, load: Load) -> float:
        settings = SamplingSettings(load.tokens, load.temperature, ignore_stop=True)
        plan = RolloutPlan(run_seed=0, iteration=0, group_size=load.group)
        groups = [
            PromptedGroup(Problem(str(i), "", ""), load.prompt(i), (Start(load.prompt(i), load.group, settings),))
            for i in range(load.prompts)
        ]
        tokens = TokenBytes(build_tokenizer())
        async with connect(self.server.control.address, self.server.key) as client:
            sampler = RolloutSampler(client, tokens, plan, room=asyncio.Semaphore(2 * load.max_num_seqs))
            start = time.perf_counter()
            generated = sum([len(trace.completion.token_ids) async for trace in sampler.sample(groups)])
            seconds = time.perf_counter() - start
        assert generated == load.generated
        return seconds


@contextmanager
def offline_engine(model: Path, log: Path) -> Iterator[Callable[[], float]]:
    """A process with ``LLM`` loaded, as a function that generates the whole load and returns its seconds."""
    command = [sys.executable, __file__, "--offline-worker", str(model), *(a for a in sys.argv[1:])]
    environment = os.environ | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    if on_cpu():
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": cores}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        log.open("w") as errors,
        subprocess.Popen(command, env=environment, text=True, stderr=errors, **pipes) as process,
    ):

        def generate() -> float:
            process.stdin.write("generate\n")
            process.stdin.flush()
            for line in process.stdout:
                if line.startswith('{"seconds"'):
                    return float(json.loads(line)["seconds"])
            raise RuntimeError(f"the offline engine ended with status {process.wait()}:\n{log.read_text()[-3000:]}")

        yield generate
        process.stdin.close()


def offline_worker(model: Path, load: Load) -> None:
    """Body of the offline process: one generation for each line read."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        **engine_options(model, load),
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        disable_log_stats=True,
    )
    params = SamplingParams(
        n=load.group,
        max_tokens=load.tokens,
        temperature=load.temperature,
        seed=0,
        logprobs=0,
        ignore_eos=True,
        detokenize=False,
    )
    prompts = [{"prompt_token_ids": load.prompt(i)} for i in range(load.prompts)]
    for _ in sys.stdin:
        llm.generate(prompts[: load.warm_up.prompts], params, use_tqdm=False)
        llm.reset_prefix_cache()
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        assert sum(len(o.token_ids) for r in outputs for o in r.outputs) == load.generated
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
