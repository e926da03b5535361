"""What the trainer's integration tests share: a tiny model, batches, a plain trainer to compare with, ranks."""

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from mrt_hpc.recipe.choices import Precision
from mrt_hpc.recipe.sections import Training
from mrt_hpc.run.process import die_with_parent, pause_collector
from mrt_hpc.training.accelerator import choose_kernels
from mrt_hpc.training.rendezvous import Ranks, join, leave
from mrt_hpc.training.settings import Objective, TrainerSettings, TrainingSequence

VOCABULARY = 48


def tiny_model(directory: Path, seed: int = 0, tied: bool = True, hidden: int = 32) -> Path:
    """Write a Qwen3 model of two small layers with weights large enough to give uneven distributions.

    With an odd ``hidden`` two ranks cannot divide its norms evenly.
    """
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, tie_word_embeddings=tied,
        initializer_range=0.2, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(seed)
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


def random_batch(seed: int = 0, sequences: int = 13, behaviour_noise: float = 0.4) -> list[TrainingSequence]:
    """Sequences of uneven lengths and masks; one in four has no advantage; behaviour log-probabilities are guesses."""
    rng = np.random.default_rng(seed)
    batch = []
    for index in range(sequences):
        count = int(rng.integers(1, 30))
        advantages = rng.normal(size=count) if index % 4 else np.zeros(count)
        batch.append(TrainingSequence(
            prompt_ids=rng.integers(2, VOCABULARY, int(rng.integers(1, 12))).tolist(),
            token_ids=rng.integers(2, VOCABULARY, count).tolist(), advantages=advantages.astype(np.float32),
            behaviour_logprobs=(-4.0 + behaviour_noise * rng.normal(size=count)).astype(np.float32),
            mask=rng.random(count) < 0.8, group=str(index // 3),
        ))  # fmt: skip
    return batch


def infinite_loss(batch: list[TrainingSequence]) -> list[TrainingSequence]:
    """The batch, in which one sequence has advantages so large that its loss is infinite."""
    longest = max(batch, key=lambda s: s.trained_tokens)
    advantages = np.full(len(longest.token_ids), 3e38, dtype=np.float32)
    return [replace(s, advantages=advantages, group="the infinite one") if s is longest else s for s in batch]


def branched(batch: list[TrainingSequence]) -> list[TrainingSequence]:
    """The same sequences with other contexts: in turn one keeps its own, one continues the sequence before it from its
    middle, as a branch of a branch may, and one begins as that one and has other tokens trained.
    """
    found: list[TrainingSequence] = []
    for index, s in enumerate(batch):
        before = found[-1] if found else s
        ids = [*before.prompt_ids, *before.token_ids]
        if index % 4 == 1 or index % 4 == 2:
            s = replace(s, prompt_ids=ids[: 1 + len(ids) // 2])
        elif index % 4 == 3:
            s = replace(before, advantages=-before.advantages, mask=~before.mask, group=s.group)
        found.append(s)
    return found


def update_batches() -> list[list[TrainingSequence]]:
    return [random_batch(1), random_batch(2), random_batch(3, sequences=2)]


def settings(objective: Objective = Objective.POLICY_GRADIENT, **changes: object) -> TrainerSettings:
    """Settings of the tests, with changes of the recipe's section: 32 bits, a rate that moves the weights, clips that
    bite.
    """
    defaults: dict[str, object] = {
        "learning_rate": 1e-2, "warmup_ratio": 0.0, "gradient_clip": 0.5, "importance_cap": 1.5, "zero_stage": 0,
        "precision": Precision.FP32, "max_tokens_per_micro_batch": 128, "gradient_checkpointing": False,
    }  # fmt: skip
    return TrainerSettings(Training(**(defaults | changes)), total_steps=10, temperature=0.8, objective=objective)  # type: ignore[arg-type]


def plain_logprobs(model: torch.nn.Module, s: TrainingSequence, temperature: float) -> torch.Tensor:
    ids = torch.tensor([[*s.prompt_ids, *s.token_ids]])
    logits = model(input_ids=ids).logits[0, len(s.prompt_ids) - 1 : -1] / temperature
    return logits.log_softmax(-1)[torch.arange(len(s.token_ids)), torch.tensor(s.token_ids)]


def plain_loss(
    model: torch.nn.Module, batch: list[TrainingSequence], old: list[torch.Tensor], chosen: TrainerSettings
) -> torch.Tensor:
    total, tokens = torch.zeros(()), 0
    for s, old_logprobs in zip(batch, old, strict=True):
        logprobs = plain_logprobs(model, s, chosen.temperature)
        for t in np.flatnonzero(s.mask):
            advantage = float(s.advantages[t])
            mismatch = float((old_logprobs[t] - float(s.behaviour_logprobs[t])).exp())
            weight = min(mismatch, chosen.training.importance_cap)
            ratio = (logprobs[t] - old_logprobs[t]).exp()
            clipped = ratio.clamp(1 - chosen.training.clip_low, 1 + chosen.training.clip_high)
            total = total - weight * torch.minimum(ratio * advantage, clipped * advantage)
            tokens += 1
    return total / tokens


class PlainTrainer:
    """One process, no DeepSpeed: one sequence after the other, torch's own optimiser."""

    def __init__(self, directory: Path, chosen: TrainerSettings) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.settings = chosen
        decays = {True: chosen.training.weight_decay, False: 0.0}
        ofs = {is_matrix: [p for p in self.model.parameters() if (p.ndim > 1) is is_matrix] for is_matrix in decays}
        groups = [{"params": ofs[is_matrix], "weight_decay": decay} for is_matrix, decay in decays.items()]
        self.optimizer = torch.optim.AdamW(groups)

    def old_logprobs(self, batch: list[TrainingSequence]) -> list[torch.Tensor]:
        with torch.no_grad():
            return [plain_logprobs(self.model, s, self.settings.temperature) for s in batch]

    def gradients(
        self, batch: list[TrainingSequence], old: list[torch.Tensor]
    ) -> tuple[float, dict[str, torch.Tensor]]:
        self.optimizer.zero_grad()
        loss = plain_loss(self.model, batch, old, self.settings)
        loss.backward()
        return loss.item(), {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}

    def apply(self, rate: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.training.gradient_clip)
        self.optimizer.step()
        return float(norm)


def end_at_once() -> None:
    """End a rank whose work is done, without Python's own way out: now and then a thread of its libraries aborts the
    process there, which says nothing of the work. (What the job script makes of such an end: ``tests/slurm``.)
    """
    leave()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_ranks(script: str, arguments: list[str], world_size: int, directory: Path, timeout_s: float = 800) -> None:
    """Run ``script`` of this folder on so many ranks; its first arguments are rank, world size and the address file."""
    here = Path(__file__).parent
    address = directory / f"address-{uuid.uuid4().hex[:8]}.json"
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(directory),  # ranks that end at once leave the folder in which they met
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    logs = [directory / f"{address.stem}-rank{rank}.log" for rank in range(world_size)]
    processes = []
    for rank, log in enumerate(logs):
        command = [sys.executable, str(here / script), str(rank), str(world_size), str(address), *arguments]
        with log.open("wb") as stream:
            processes.append(subprocess.Popen(command, env=environment, stdout=stream, stderr=subprocess.STDOUT))
    try:
        codes = [p.wait(timeout_s) for p in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert codes == [0] * world_size, endings(logs)


def endings(logs: list[Path]) -> str:
    return "\n".join(f"{log.name}:\n{log.read_text()[-4000:]}" for log in logs)


ENDED = "exit statuses of the ranks:"  # begins the line for which the caller waits: libraries print others


def in_ranks(work: Callable[..., Any], arguments: list[Any], world_size: int, directory: Path) -> list[Any]:
    """What ``work(ranks, *arguments)`` returns in each of so many ranks that have joined, each a process of its own. It
    is a function of a module, and what it is given and returns can be written as JSON.

    Raises:
        AssertionError: a rank failed; with the end of its output.
    """
    address = directory / f"address-{uuid.uuid4().hex[:8]}.json"
    logs = [directory / f"{address.stem}-rank{rank}.log" for rank in range(world_size)]
    job = {"module": work.__module__, "work": work.__name__, "arguments": arguments, "address": address, "logs": logs}
    server = rank_server()
    assert server.stdin and server.stdout
    try:
        print(json.dumps(job, default=str), file=server.stdin, flush=True)
        codes = json.loads(next(line for line in server.stdout if line.startswith(ENDED)).removeprefix(ENDED))
    except BaseException:  # the time of the test is over
        server.kill()
        rank_server.cache_clear()
        raise
    assert codes == [0] * world_size, endings(logs)
    return [json.loads(log.with_suffix(".json").read_text()) for log in logs]


@cache
def rank_server() -> subprocess.Popen[str]:
    """A process that has loaded torch and DeepSpeed, which takes most of the time of a rank, and forks ranks; it ends
    with this one.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # so that a look for a GPU leaves it to the ranks
    }
    command = [sys.executable, __file__]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def serve_ranks() -> None:
    """Fork the ranks of each line of the input, and write their exit statuses."""
    for line in sys.stdin:
        job = json.loads(line)
        with pause_collector():
            work = getattr(importlib.import_module(job["module"]), job["work"])
        children = [fork_rank(job, rank, work) for rank in range(len(job["logs"]))]
        codes = dict[int, int]()
        while len(codes) < len(children):
            child, status = os.wait()
            codes[child] = os.waitstatus_to_exitcode(status)
            if codes[child]:  # the others may wait for it for ever
                time.sleep(10)
                for other in children:
                    if other not in codes:
                        os.kill(other, signal.SIGKILL)
        print(ENDED, json.dumps([codes[child] for child in children]), flush=True)


def fork_rank(job: dict[str, Any], rank: int, work: Callable[..., Any]) -> int:
    if child := os.fork():
        return child
    die_with_parent()
    log, address = Path(job["logs"][rank]), Path(job["address"])
    with log.open("wb") as stream, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    random.seed()  # these two would be the same in all ranks
    np.random.seed()
    tempfile.tempdir = str(address.parent)  # ranks that end at once leave the folder in which they met
    ranks = Ranks(rank, len(job["logs"]), rank)
    try:
        torch.set_num_threads(1)
        choose_kernels(None)
        join(ranks, address, timeout_s=120)
        log.with_suffix(".json").write_text(json.dumps(work(ranks, *job["arguments"])))
        end_at_once()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    serve_ranks()
