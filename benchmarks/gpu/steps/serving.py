"""A server of vLLM with random weights: start, reloads under CUDA graphs, swaps in flight, sleep, and a second start.

Log-probabilities of samples are compared with those of the trainer's policy, in the rows and kernels of the recipes.
"""

import asyncio
import importlib.util
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from paper_sequences import config_of

from mrt_hpc.inference.client import Completion, GenerationClient, SamplingSettings, connect
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_start import ServerSettings
from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.recipe.sections import WeightSwap
from mrt_hpc.roles.training.sampler_agreement import Agreement
from mrt_hpc.run.access import CACHES
from mrt_hpc.training.accelerator import device
from mrt_hpc.training.losses import k3
from mrt_hpc.training.micro_batch import lay_out
from mrt_hpc.training.policy import Kernels, Policy, load_policy, logit_chunks
from mrt_hpc.training.settings import TrainingSequence
from steps.engines import model, timed
from steps.parking import held_gib
from steps.record import NotHere, Record

LOG_TAIL = 6000  # the characters at the end of the server's log that are printed
RELOADS = 3
SEEDS = list(range(16))
KERNELS = Kernels(Batching.PACKED, fused=True, entropy=False)
WAVES = 4  # how many times as many samples as the server computes at once are there when its weights are swapped
BEGUN_TOKENS = 20  # the tokens that each running sample has on average before its weights are swapped
BEGIN_LIMIT_S = 60.0


def run(record: Record) -> None:
    if importlib.util.find_spec("vllm") is None:
        raise NotHere("vLLM is not installed in this Python; its wheels are too large to be brought along")
    record.needs_gpu_unless_tiny()
    for name, folder in CACHES.items():  # the first start finds nothing compiled, the second what the first compiled
        os.environ[name] = str(record.folder / "caches" / folder)
    versions = [model(record, seed) for seed in range(RELOADS + 1)]
    served = Served(record, versions)
    try:
        ask_everything(record, served)
    finally:
        print(served.server.log.read_text(errors="replace")[-LOG_TAIL:])


def ask_everything(record: Record, served: "Served") -> None:
    """Measure each part, with one server and then with another that finds what the first has compiled."""
    with served.started("start with nothing compiled"):
        record.part("first weights", served.agreement, 0)
        for version in range(1, RELOADS + 1):
            record.part(f"reload {version}", served.reload, version)
        for swap in (WeightSwap.KEEP, WeightSwap.RECOMPUTE):
            record.part(f"swap in flight, {swap.value}", served.swap, swap)
        record.part("sleep and wake", served.sleep)
    with served.started("second start with what the first compiled"):
        record.part("first weights again", served.agreement, 0)


@dataclass
class Served:
    record: Record
    versions: list[Path]

    def __post_init__(self) -> None:
        tiny = self.record.tiny
        self.tokens = 24 if tiny else 256
        """Of a sample."""
        self.prompt = np.random.default_rng(0).integers(2, config_of(self.record.shape).vocab_size, 70).tolist()
        settings = ServerSettings(
            self.versions[0],
            max_model_len=512 if tiny else 8192,
            dtype="bfloat16",
            max_num_seqs=8 if tiny else 64,
            gpu_memory_utilization=0.5,
            kv_cache_gib=0.25,
            sleeps=True,
        )
        self.server = VllmServer(settings, self.record.folder / "server.log")

    @contextmanager
    def started(self, name: str) -> Iterator[None]:
        """Start a server as a part of the step, and end it after the block."""
        self.server = VllmServer(self.server.settings, self.server.log)
        try:
            self.record.part(name, lambda: {"start_s": timed(self.server.start)[1], "held": held_gib()})
            if "error" in self.record.parts[name]:
                raise RuntimeError(f"{name}: the server did not start")
            yield
        finally:
            self.server.close()

    def ask(self, question: Callable[[GenerationClient], Awaitable[list[Completion]]]) -> list[Completion]:
        async def connected() -> list[Completion]:
            async with connect(self.server.socket, self.server.key) as client:
                return await question(client)

        return asyncio.run(connected())

    def samples(self, temperature: float = 1.0) -> list[Completion]:
        settings = SamplingSettings(self.tokens, temperature, ignore_stop=True)
        return self.ask(lambda client: client.complete(self.prompt, SEEDS, settings))

    def agreement(self, version: int) -> dict[str, Any]:
        """How far samples are from the trainer's policy with the weights of a version, and with others."""
        samples, sample_s = timed(self.samples)
        other = self.versions[(version + 1) % len(self.versions)]
        return {
            "sample_s": sample_s,
            "agrees": compared(samples, scores(self.versions[version], self.prompt, samples)),
            "with_other_weights": compared(samples, scores(other, self.prompt, samples)),
            "versions": sorted({s.weights_version for s in samples}),
        }

    def reload(self, version: int) -> dict[str, Any]:
        report, load_s = timed(lambda: self.server.load_weights(self.versions[version], version))
        return {"load_s": load_s, "report": report, **self.agreement(version)}

    def swap(self, swap: WeightSwap) -> dict[str, Any]:
        """Load other weights while samples run: the old ones have sampled their first tokens, the new ones the rest."""
        old, new = self.versions[0], self.versions[1]
        number = self.server.weights_version
        self.server.load_weights(old, number + 1)
        before, took = self.server.control.tokens_done() or 0, list[float]()
        at_once = self.server.settings.max_num_seqs
        settings = SamplingSettings(400, ignore_stop=True)

        async def swapped(client: GenerationClient) -> list[Completion]:
            running = asyncio.create_task(client.complete(self.prompt, list(range(WAVES * at_once)), settings))
            async with asyncio.timeout(BEGIN_LIMIT_S):
                while (self.server.control.tokens_done() or 0) < before + at_once * (len(self.prompt) + BEGUN_TOKENS):
                    await asyncio.sleep(0.01)
            load = asyncio.to_thread(timed, lambda: self.server.load_weights(new, number + 2, swap))
            took.append((await load)[1])
            return await running

        both = [s for s in self.ask(swapped) if s.later_weights]
        if not both:
            raise RuntimeError("no sample was running when the weights were swapped")
        starts = [s.later_weights[0][0] for s in both]
        by_old, by_new = (scores(directory, self.prompt, both) for directory in (old, new))
        return {
            "load_s": took[0],
            "swapped_samples": len(both),
            "first_tokens_by_old": compared(both, by_old, ends=starts),
            "rest_by_new": compared(both, by_new, starts=starts),
            "rest_by_old": compared(both, by_old, starts=starts),
        }

    def sleep(self) -> dict[str, Any]:
        if device().type != "cuda":
            raise NotHere("it needs a GPU: without one a server has nothing to free")
        before, held = self.samples(0.0), held_gib()
        _, sleep_s = timed(self.server.sleep)
        asleep = held_gib()
        _, wake_s = timed(self.server.wake_up)
        after = self.samples(0.0)
        same = [s.token_ids for s in before] == [s.token_ids for s in after]
        return {"sleep_s": sleep_s, "wake_s": wake_s, "held": held, "asleep": asleep, "same_tokens": same}


def scores(directory: Path, prompt: list[int], samples: Sequence[Completion]) -> list[np.ndarray]:
    policy: Policy = load_policy(directory, 1.0, Precision.BF16, kernels=KERNELS).to(device())
    laid = lay_out(KERNELS.batching, [_sequence(prompt, s) for s in samples]).to(device())
    with torch.no_grad():
        logprobs, _ = policy(laid, logit_chunks(laid.trained_tokens, policy.vocabulary))
    return [part.double().cpu().numpy() for part in logprobs.split([len(s.token_ids) for s in samples])]


def _sequence(prompt: list[int], sample: Completion) -> TrainingSequence:
    count = len(sample.token_ids)
    zeros = np.zeros(count, np.float32)
    return TrainingSequence(prompt, sample.token_ids, zeros, zeros, np.ones(count, bool))


def compared(
    samples: Sequence[Completion], ours: Sequence[np.ndarray], *, starts: Sequence[int] = (), ends: Sequence[int] = ()
) -> dict[str, Any]:
    """How far the trainer's log-probabilities are from the server's, at the tokens from ``starts`` up to ``ends``."""
    firsts, lasts = starts or [0] * len(ours), ends or [len(one) for one in ours]
    places = [slice(first, last) for first, last in zip(firsts, lasts, strict=True)]
    mine = torch.from_numpy(np.concatenate([o[place] for o, place in zip(ours, places, strict=True)]))
    its = torch.tensor([x for s, place in zip(samples, places, strict=True) for x in s.logprobs[place]]).double()
    gaps = (mine - its).abs()
    found = Agreement(float(gaps.mean()), float(k3(its, mine).mean()), float(-its.mean()), len(gaps))
    return {
        "disagreement": found.disagreement,
        "nats_mean": found.difference,
        "nats_max": float(gaps.max()),
        "kl": found.divergence,
        "tokens": found.tokens,
    }
