"""Every way of computing log-probabilities against 32 bits: log-probabilities, loss and the whole gradient.

The weights are the same in both number formats: they are rounded to bfloat16 first. The reference computes padded rows
in 32 bits.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from bench_trainer_gpu import VARIANTS
from paper_sequences import SMALLER, branched, sampled
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from mrt_hpc.training.accelerator import choose_kernels, device
from mrt_hpc.training.attention import PACKED_ATTENTION, Blocks, has_flash_attention, segments_of
from mrt_hpc.training.micro_batch import lay_out
from mrt_hpc.training.policy import Kernels, Policy, logit_chunks
from mrt_hpc.training.settings import TrainingSequence
from steps.record import Record

VOCABULARY = 2048
KINDS: dict[str, type[PretrainedConfig]] = {"qwen2": Qwen2Config, "llama": LlamaConfig, "qwen3": Qwen3Config}
HEADS, KEY_HEADS = 8, 2
LONE = 200  # the number of parts of one query each


@dataclass(frozen=True)
class Scored:
    logprobs: torch.Tensor
    loss: float
    gradient: torch.Tensor


def run(record: Record) -> None:
    """Compare every kind of model, size of heads and way of computing, with deterministic kernels and without."""
    record.needs_gpu_unless_tiny()
    choose_kernels(True)  # cuBLAS reads its variable once, so the deterministic kernels come first
    for deterministic in (True, False):
        for kind in KINDS:
            for head in (16,) if record.tiny else (64, 128):
                compare(record, kind, head, deterministic)
        record.part(f"one query a part, {told(deterministic)}", lone_queries, 16 if record.tiny else 128)


def told(deterministic: bool) -> str:
    return "deterministic" if deterministic else "fastest"


def compare(record: Record, kind: str, head: int, deterministic: bool) -> None:
    model, batch = model_of(kind, head, layers=2 if record.tiny else 4), sequences(record.tiny)
    choose_kernels(False)  # the reference need not give the same bits twice, and must not fail for that
    reference = scored(copy.deepcopy(model).float(), Kernels(), batch)
    choose_kernels(deterministic)
    for name, kernels in ways():
        title = f"{kind}, head {head}, {name}, {told(deterministic)}"
        record.part(title, differences, model, kernels, batch, reference, twice=deterministic)


def ways() -> Iterator[tuple[str, Kernels]]:
    return ((variant.name, variant.kernels) for variant in VARIANTS if variant.kernels is not None)


def model_of(kind: str, head: int, layers: int) -> PreTrainedModel:
    hidden = HEADS * head
    torch.manual_seed(0)
    config = KINDS[kind](
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=head,
        max_position_embeddings=4096,
        initializer_range=hidden**-0.5,
        tie_word_embeddings=False,
    )
    with device():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.train()


def sequences(tiny: bool) -> list[TrainingSequence]:
    """Traces with branches, and one of which a single token is computed; each token has its number as a mark."""
    scale = SMALLER if tiny else SMALLER // 8
    found = branched(sampled(4, scale, VOCABULARY, 0)[: 2 if tiny else 4], scale, VOCABULARY, 1)
    first = found[0]
    one = np.zeros(1, np.float32)
    found.append(
        replace(first, token_ids=[7], prompt_ids=[3], advantages=one + 1, behaviour_logprobs=one, mask=one > -1)
    )
    starts = np.cumsum([0, *(s.trained_tokens for s in found)])
    return [
        replace(s, behaviour_logprobs=np.arange(a, b, dtype=np.float32))
        for s, a, b in zip(found, starts[:-1], starts[1:], strict=True)
    ]


def scored(model: PreTrainedModel, kernels: Kernels, batch: Sequence[TrainingSequence]) -> Scored:
    vars(model.get_output_embeddings()).pop("forward", None)  # what an earlier way fused
    model.set_attn_implementation(PACKED_ATTENTION if kernels.is_one_row else "sdpa")
    model.zero_grad()
    policy, laid = Policy(model, 1.0, False, kernels), lay_out(kernels.batching, batch).to(device())
    logprobs, _ = policy(laid, logit_chunks(laid.trained_tokens, policy.vocabulary))
    loss = -(logprobs.float() * laid.advantages).sum() / laid.trained_tokens
    loss.backward()
    gradient = torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None])
    order = laid.behaviour_logprobs.argsort()  # a shared row has the tokens in another order
    return Scored(logprobs.detach().float()[order], float(loss), gradient)


def differences(
    model: PreTrainedModel, kernels: Kernels, batch: Sequence[TrainingSequence], reference: Scored, *, twice: bool
) -> dict[str, Any]:
    """How far one way is from the reference; and where it should be, whether a second time gives the same bits."""
    found = scored(model, kernels, batch)
    nats = (found.logprobs - reference.logprobs).abs()
    result: dict[str, Any] = {
        "nats_mean": float(nats.mean()),
        "nats_max": float(nats.max()),
        "loss": found.loss,
        "loss_in_32_bits": reference.loss,
        "gradient_error": float((found.gradient - reference.gradient).norm() / reference.gradient.norm()),
    }
    if twice:
        again = scored(model, kernels, batch)
        same = torch.equal(found.logprobs, again.logprobs) and torch.equal(found.gradient, again.gradient)
        result["same_bits_again"] = same
    return result


def lone_queries(head: int) -> dict[str, Any]:
    """Parts of one query each with up to all keys before it, where flash attention might regroup heads, against blocks
    in 32 bits.
    """
    torch.manual_seed(0)
    place = device()
    narrow = [torch.randn(LONE, heads, head, device=place, dtype=torch.bfloat16) for heads in (HEADS, *[KEY_HEADS] * 2)]
    lengths, paths = [1] * LONE, [np.arange(n % (1 + n % 3), n + 1, 1 + n % 3) for n in range(LONE)]
    output, gradients = attended(segments_of(lengths, place, torch.bfloat16, head, paths), narrow)
    expected, reference = attended(Blocks.of(lengths, place, paths), [t.float() for t in narrow])
    return {
        "flash_attention": has_flash_attention(place, torch.bfloat16, head),
        "output_error": error(output, expected),
        "gradient_error": [error(a, b) for a, b in zip(gradients, reference, strict=True)],
    }


def attended(segments: Any, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    query, key, value = (t.detach().requires_grad_() for t in inputs)
    output: torch.Tensor = segments.attend(query, key, value, None)
    output.float().square().sum().backward()
    return output.detach(), [t.grad for t in (query, key, value) if t.grad is not None]


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference, as a share of the expected norm."""
    return float((found.float() - expected.float()).norm() / expected.float().norm())
