"""Packed rows and the fused projection against the same computed one sequence at a time, and with whole logits."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from transformers import GemmaConfig, GemmaForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mrt_hpc.errors import UserError
from mrt_hpc.training import projection
from mrt_hpc.training.attention import (
    CAUSAL,
    PACKED_ATTENTION,
    VARIABLE_LENGTH_ATTENTION,
    Blocks,
    VariableLengths,
    has_flash_attention,
    segments_of,
)
from mrt_hpc.training.micro_batch import MicroBatch, collate, collate_end_to_end
from mrt_hpc.training.policy import Kernels, Policy
from mrt_hpc.training.sequence import TrainingSequence

CPU = torch.device("cpu")
VOCABULARY, HIDDEN, TEMPERATURE = 31, 16, 0.7
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}


def sequence(seed: int, prompt: int, tokens: int) -> TrainingSequence:
    """A sequence of these lengths, every second token of it trained."""
    rng = np.random.default_rng(seed)
    return TrainingSequence(
        rng.integers(0, VOCABULARY, prompt).tolist(),
        rng.integers(0, VOCABULARY, tokens).tolist(),
        rng.normal(size=tokens).astype(np.float32),
        rng.normal(size=tokens).astype(np.float32),
        np.arange(tokens) % 2 == 0,
    )


SEQUENCES = [sequence(seed, prompt, tokens) for seed, (prompt, tokens) in enumerate([(3, 9), (1, 1), (5, 30), (2, 8)])]
TRAINED = sum(s.trained_tokens for s in SEQUENCES)


def qwen2(attention: str = "sdpa") -> Qwen2ForCausalLM:
    """A model with weights that are always the same."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, attn_implementation=attention))


def gradients(policy: Policy, batch: MicroBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The log-probabilities, and the gradient of their mean, weighted by the advantages."""
    logprobs, _ = policy(batch, 1)
    ((logprobs * batch.advantages).sum() / TRAINED).backward()
    return logprobs.detach(), {n: p.grad for n, p in policy.named_parameters() if p.grad is not None}


def one_at_a_time() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The same by plain transformers, whole logits and one sequence after the other."""
    model = qwen2()
    parts = []
    for s in SEQUENCES:
        logits = model(input_ids=torch.tensor([[*s.prompt_ids, *s.token_ids]])).logits[0, len(s.prompt_ids) - 1 : -1]
        tokens = torch.tensor(s.token_ids)
        logprobs = (logits / TEMPERATURE).log_softmax(-1)[torch.arange(len(tokens)), tokens][torch.from_numpy(s.mask)]
        ((logprobs * torch.from_numpy(s.advantages[s.mask])).sum() / TRAINED).backward()
        parts.append(logprobs.detach())
    return torch.cat(parts), {f"model.{n}": p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kernels", [Kernels(p, f, e) for p in (0, 1) for f in (0, 1) for e in (0, 1)])  # type: ignore[arg-type]
def test_every_choice_gives_what_one_sequence_at_a_time_gives(kernels: Kernels, checkpointing: bool) -> None:
    model = qwen2(PACKED_ATTENTION if kernels.packed else "sdpa")
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
    batch = collate_end_to_end(SEQUENCES) if kernels.packed else collate(SEQUENCES)
    logprobs, actual = gradients(Policy(model, TEMPERATURE, False, kernels), batch)
    expected_logprobs, expected = one_at_a_time()
    assert torch.allclose(logprobs, expected_logprobs, atol=1e-5)
    assert actual.keys() == expected.keys()
    assert max(float((actual[n] - expected[n]).abs().max()) for n in expected) < 1e-5


def test_a_sequence_does_not_see_another_in_its_row() -> None:
    """Bit for bit in its values: with other neighbours of the same lengths, nothing changes."""
    policy = Policy(qwen2(PACKED_ATTENTION), TEMPERATURE, False, Kernels(packed=True))
    others = [sequence(seed + 50, len(s.prompt_ids), len(s.token_ids)) for seed, s in enumerate(SEQUENCES)]
    first, _ = policy(collate_end_to_end([*SEQUENCES[:2], others[2], SEQUENCES[3]]), 1)
    second, _ = policy(collate_end_to_end([others[0], SEQUENCES[1], others[2], others[3]]), 1)
    own = slice(5, 6)  # the trained token of the second sequence
    assert torch.equal(first[own], second[own])
    assert not torch.equal(first[:5], second[:5])


@pytest.mark.parametrize("fused", [False, True])
def test_a_filler_has_a_gradient_of_zero_for_every_parameter(fused: bool) -> None:
    filler = collate_end_to_end([])
    assert filler.trained_tokens == 0 and filler.input_ids.shape == (1, 1)
    _, found = gradients(Policy(qwen2(PACKED_ATTENTION), 1.0, False, Kernels(True, fused)), filler)
    assert found and all(not g.any() for g in found.values())


def test_a_packed_batch_keeps_each_tokens_own_place() -> None:
    batch = collate_end_to_end(SEQUENCES)
    assert batch.lengths == tuple(s.width for s in SEQUENCES) and batch.position_ids is not None
    assert batch.position_ids[0].tolist() == [i for s in SEQUENCES for i in range(s.width)]
    padded = collate(SEQUENCES)
    for name in ("targets", "advantages", "behaviour_logprobs"):
        assert torch.equal(getattr(batch, name), getattr(padded, name))
    predicting = batch.input_ids.flatten()[batch.positions]
    assert torch.equal(predicting, padded.input_ids.flatten()[padded.positions])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.sampled_from([1, 2, 4]))
def test_blocks_give_causal_attention_of_each_sequence(lengths: list[int], key_heads: int) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(sum(lengths), heads, 8) for heads in (4, key_heads, key_heads))
    actual = Blocks.of(lengths, CPU).attend(query, key, value, 0.3)
    parts = zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True)
    expected = []
    for q, k, v in parts:
        wide = [t.repeat_interleave(4 // key_heads, 1).transpose(0, 1) for t in (k, v)]
        scores = (q.transpose(0, 1) @ wide[0].transpose(1, 2)) * 0.3
        hidden = torch.ones(len(q), len(q)).triu(1).bool()
        expected.append((scores.masked_fill(hidden, -torch.inf).softmax(-1) @ wide[1]).transpose(0, 1))
    assert torch.allclose(actual, torch.cat(expected), atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_the_fused_projection_gives_log_probabilities_entropies_and_gradients(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "LOGIT_ELEMENTS", rows * VOCABULARY)
    torch.manual_seed(1)
    plain = nn.Linear(HIDDEN, VOCABULARY, bias=False)
    head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
    head.load_state_dict(plain.state_dict())
    hidden, targets, weights = torch.randn(10, HIDDEN), torch.randint(VOCABULARY, (10,)), torch.randn(10)
    inputs = [hidden.clone().requires_grad_() for _ in range(2)]
    projection.fuse(head, TEMPERATURE, entropy=True)
    logprobs, entropies = head(inputs[0], targets)
    logits = plain(inputs[1]) / TEMPERATURE
    expected = -F.cross_entropy(logits, targets, reduction="none")
    (logprobs * weights).sum().backward()
    (expected * weights).sum().backward()
    assert torch.allclose(logprobs, expected, atol=1e-6)
    assert torch.allclose(entropies, torch.distributions.Categorical(logits=logits).entropy(), atol=1e-5)
    assert inputs[0].grad is not None and inputs[1].grad is not None
    assert torch.allclose(inputs[0].grad, inputs[1].grad, atol=1e-5)
    assert head.weight.grad is not None and plain.weight.grad is not None
    assert torch.allclose(head.weight.grad, plain.weight.grad, atol=1e-5)


def test_a_projection_with_a_bias_is_not_fused() -> None:
    with pytest.raises(UserError, match="cannot be fused"):
        projection.fuse(nn.Linear(2, 3), 1.0, entropy=True)


def test_other_families_of_models_work_on_packed_rows() -> None:
    torch.manual_seed(0)
    for model in (
        LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation=PACKED_ATTENTION)),
        GemmaForCausalLM(GemmaConfig(**SHAPE, head_dim=4, attn_implementation=PACKED_ATTENTION)),
    ):
        packed, _ = Policy(model, 1.0, False, Kernels(packed=True))(collate_end_to_end(SEQUENCES), 1)
        model.set_attn_implementation("sdpa")
        padded, _ = Policy(model, 1.0, False, Kernels())(collate(SEQUENCES), 1)
        assert torch.allclose(packed, padded, atol=1e-5)


def test_a_model_with_a_sliding_window_is_refused_on_packed_rows() -> None:
    config = Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=4, max_window_layers=0, attn_implementation=PACKED_ATTENTION
    )
    policy = Policy(Qwen2ForCausalLM(config), 1.0, False, Kernels(packed=True))
    with pytest.raises(UserError, match="packed rows"):
        policy(collate_end_to_end(SEQUENCES), 1)


def test_a_padded_batch_is_refused_by_the_attention_of_packed_rows() -> None:
    assert PACKED_ATTENTION in ALL_ATTENTION_FUNCTIONS
    with pytest.raises(UserError, match="packed rows"):
        Policy(qwen2(PACKED_ATTENTION), 1.0, False, Kernels(packed=True))(replace(collate(SEQUENCES), lengths=None), 1)


def test_the_locked_torch_has_flash_attention_for_different_lengths() -> None:
    """Its kernel needs a GPU: only that it takes what it is given is tested here."""
    assert VARIABLE_LENGTH_ATTENTION is not None
    tensors = [torch.empty(7, heads, 8, device="meta", dtype=torch.bfloat16) for heads in (4, 2, 2)]
    ends = torch.tensor([0, 3, 7], dtype=torch.int32)
    inspect.signature(VARIABLE_LENGTH_ATTENTION).bind(*tensors, ends, ends, 4, 4, scale=0.3, window_size=CAUSAL)
    form = VariableLengths.of([3, 4], CPU)
    assert form.ends.tolist() == [0, 3, 7] and form.ends.dtype == torch.int32 and form.longest == 4


def test_a_cpu_uses_blocks() -> None:
    assert not has_flash_attention(CPU, torch.bfloat16, 128)
    assert isinstance(segments_of([3, 4], CPU, torch.bfloat16, 128), Blocks)
