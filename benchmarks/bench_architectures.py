"""Which architectures the trainer computes as they are: the check at the trainer's start, on a small model of each that
transformers and vLLM both register as a causal language model.

    python benchmarks/bench_architectures.py --output benchmarks/results/architectures

Each model has random weights and the options of its default configuration, made small. It is checked in 32 bits, once
for each batching, in a process of its own, so that one that crashes or hangs ends nothing but itself.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from benchmarking import options, written
from benchmarking import table as markdown
from transformers import logging
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.recipe.model_files import GENERATORS
from mrt_hpc.training.agreement import differences
from mrt_hpc.training.policy import Kernels, load_policy, longest_of_model
from mrt_hpc.training.small_model import make_small

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LIMIT_S = 90.0  # seconds for one architecture
LONGEST = 2048  # tokens of the longest sequence of the recipe that is assumed, where the model holds as many
COMPLETED: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 4, "moe_topk": 2},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
}
"""Options of configurations whose defaults make no model, or none with the layers that its checkpoints have."""


@dataclass
class Seen:
    name: str
    kind: str  # the name of its configuration in transformers
    not_made: str = ""  # why there is no small model of it; empty where there is
    verdicts: dict[str, str] = field(default_factory=dict)
    """By batching the check that refuses the model; empty where it is taken."""
    nats: dict[str, dict[str, float]] = field(default_factory=dict)
    """By batching and check the largest difference, where it could be computed."""
    seconds: float = 0.0


def verdict(directory: Path, batching: Batching) -> tuple[str, dict[str, float]]:
    """The first check that failed, with its reason, or the first words of an error before; and the differences."""
    try:
        policy = load_policy(directory, 1.0, Precision.FP32, kernels=Kernels(batching))
        if policy.kernels.batching is not batching:
            return "cannot lie in one row", {}
        found = differences(policy, min(LONGEST, longest_of_model(directory) or LONGEST))
    except UserError as error:
        return error.what.splitlines()[0][:200], {}
    failed = [
        f"{d.check.name}: {d.reason or f'{d.nats:.2g} nats'}".splitlines()[0][:200] for d in found if not d.agrees
    ]
    return failed[0] if failed else "", {d.check.name: d.nats for d in found if not d.reason}


def look(name: str, kind: str, answer: Connection) -> None:
    """Make and check a small model, and send what was seen, the more the later."""
    logging.set_verbosity_error()
    seen = Seen(name, kind)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            make_small(CONFIG_MAPPING[kind](**COMPLETED.get(kind, {})), Path(scratch))
        except Exception as error:  # any model of any kind
            seen.not_made = f"{type(error).__name__}: {str(error).strip() or '-'}".splitlines()[0][:160]
        else:
            for batching in Batching:
                seen.verdicts[batching], seen.nats[batching] = verdict(Path(scratch), batching)
        answer.send(seen)


def looked_at(name: str, kind: str) -> Seen:
    context = multiprocessing.get_context("fork")  # the imports take ten times as long as a look
    answer, sender = context.Pipe(duplex=False)
    process = context.Process(target=look, args=(name, kind, sender))
    started = time.monotonic()
    process.start()
    sender.close()
    try:
        seen = answer.recv() if answer.poll(LIMIT_S) else Seen(name, kind, f"it took more than {LIMIT_S:.0f} s")
    except EOFError:
        process.join()
        seen = Seen(name, kind, f"its process ended with code {process.exitcode}")
    finally:
        process.kill()
        process.join()
    seen.seconds = time.monotonic() - started
    return seen


def architectures() -> dict[str, str]:
    """The names that both packages register, each with the name of its configuration."""
    from vllm import ModelRegistry

    served = set(ModelRegistry.get_supported_archs())
    kinds = {name: kind for kind, name in reversed(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items())}
    return {name: kinds[name] for name in sorted(kinds.keys() & served) if name.endswith(GENERATORS)}


def row(seen: Seen) -> list[str]:
    if seen.not_made:
        return [seen.name, f"not made: {seen.not_made}", "", "", ""]
    cells = ["refused" if seen.verdicts[b] else f"passes {max(seen.nats[b].values()):.1g}" for b in Batching]
    return [seen.name, *cells, "; ".join(dict.fromkeys(v for v in seen.verdicts.values() if v))]


def table(all_seen: list[Seen]) -> str:
    made = [s for s in all_seen if not s.not_made]
    counts = {b: Counter("refused" if s.verdicts[b] else "passes" for s in made) for b in Batching}
    return "\n".join([
        f"# {len(all_seen)} architectures that transformers and vLLM both register; {len(made)} small models", "",
        "The largest difference of a log-probability, nats, 32 bits; at most 0.001 passes.", "",
        *markdown(("", *Batching), [(of, *(counts[b][of] for b in Batching)) for of in ("passes", "refused")]), "",
        *markdown(("architecture", *Batching, "why refused"), [row(s) for s in all_seen], words=5),
    ])  # fmt: skip


def main() -> None:
    given = options(__doc__, required=["output"], output=Path, names=[""])
    torch.set_num_threads(1)
    all_seen = []
    for name, kind in architectures().items():
        if not any(given.names) or name in given.names:
            all_seen.append(looked_at(name, kind))
            print(*row(all_seen[-1]), f"{all_seen[-1].seconds:.1f} s", sep=" | ", flush=True)
    lines = ",\n".join(json.dumps(asdict(s)) for s in all_seen)
    written(f"[\n{lines}\n]", given.output, "seen.json")
    written(table(all_seen), given.output)


if __name__ == "__main__":
    main()
