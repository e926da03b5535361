"""Packed rows, shared prefixes, blocks of attention and the fused projection against plain ones; determinism."""

import inspect
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import python, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, Ernie4_5_MoeConfig, Glm4MoeLiteConfig, Qwen2Config, Qwen2ForCausalLM

from mrt_hpc import TrainingSequence, UserError
from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.training import attention, fused_projection
from mrt_hpc.training.attention import PACKED_ATTENTION, Blocks, VariableLengths
from mrt_hpc.training.export import gather
from mrt_hpc.training.micro_batch import collate, collate_end_to_end
from mrt_hpc.training.packing import SharedRow
from mrt_hpc.training.policy import Kernels, Policy, load_policy

PACKED = Kernels(Batching.PACKED)
CPU = torch.device("cpu")
VOCABULARY, HIDDEN, TEMPERATURE = 31, 16, 0.7
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3,
}  # fmt: skip


def test_gradients_of_rows_that_are_taken_repeatedly_are_summed_in_32_bits() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        rows = torch.zeros(2, 1, dtype=dtype, requires_grad=True)
        taken = attention.take_rows(rows, torch.tensor([0] * 1000 + [1]), repeated=True)
        taken.backward(torch.full_like(taken, 1.0))
        assert rows.grad is not None and rows.grad.tolist() == [[1000.0], [1.0]]  # in bfloat16 the sum stops at 256


def attention_along(paths: list[np.ndarray], query: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    """Each position attends to those before it on its path, by the mask of all positions."""
    seen = torch.zeros(len(query), len(query), dtype=torch.bool)
    for path in paths:
        seen[path[:, None], path[None]] = torch.ones(len(path), len(path)).tril().bool()
    key, value = (t.repeat_interleave(4 // t.shape[1], 1).transpose(0, 1) for t in rest)
    scores = ((query.transpose(0, 1) @ key.transpose(1, 2)) * 0.3).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(0, 1)


def plain_attention_of_different_lengths(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends: torch.Tensor, key_ends: torch.Tensor,
    longest: int, longest_key: int, *, scale: float, window_size: tuple[int, int],
) -> torch.Tensor:  # fmt: skip
    """What flash attention computes for causal windows: the last query of a part is at its last key."""
    assert window_size == attention.CAUSAL
    outputs = []
    for (a, b), (c, d) in zip(pairwise(ends.tolist()), pairwise(key_ends.tolist()), strict=True):
        assert b - a <= longest and d - c <= longest_key
        seen = torch.ones(b - a, d - c).tril(d - c - (b - a)).bool()
        rows = [t.transpose(0, 1)[None] for t in (query[a:b], key[c:d], value[c:d])]
        outputs.append(F.scaled_dot_product_attention(*rows, seen, scale=scale, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(outputs)


SHARED_IDS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=25), min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(SHARED_IDS, st.sampled_from([1, 2, 4]), st.booleans())
def test_attention_follows_paths_or_stays_within_sequences(ids: list[list[int]], key_heads: int, shares: bool) -> None:
    """Flash attention needs a GPU: its arguments are tested with the same attention computed plainly."""
    torch.manual_seed(0)
    row = SharedRow.of([np.array(tokens) for tokens in ids])
    parts = [(own, path) for own, path in zip(row.own, row.paths, strict=True) if own]
    lengths, paths = [own for own, _ in parts], [path for _, path in parts]
    if not shares:
        paths = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])
    heads, shape = (4, key_heads, key_heads), {"dtype": torch.float64, "requires_grad": True}
    inputs = [torch.randn(len(row.ids), count, 8, **shape) for count in heads]
    blocks, varied = (form.of(lengths, CPU, paths if shares else None) for form in (Blocks, VariableLengths))
    actual, expected = blocks.attend(*inputs, 0.3), attention_along(paths, *inputs)
    assert torch.allclose(actual, expected)
    weights = torch.randn_like(expected)
    found, wanted = (torch.autograd.grad((output * weights).sum(), inputs) for output in (actual, expected))
    assert all(map(torch.allclose, found, wanted))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "VARIABLE_LENGTH_ATTENTION", plain_attention_of_different_lengths)
        assert torch.allclose(varied.attend(*inputs, 0.3), expected)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_the_fused_projection_is_the_plain_one(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_projection, "LOGIT_ELEMENTS", rows * VOCABULARY)
    torch.manual_seed(1)
    plain, head = (nn.Linear(HIDDEN, VOCABULARY, bias=False) for _ in range(2))
    head.load_state_dict(plain.state_dict())
    hidden, targets, weights = torch.randn(10, HIDDEN), torch.randint(VOCABULARY, (10,)), torch.randn(10)
    inputs = [hidden.clone().requires_grad_() for _ in range(2)]
    fused_projection.fuse(head, TEMPERATURE, entropy=True)
    logprobs, entropies = head(inputs[0], targets)
    logits = plain(inputs[1]) / TEMPERATURE
    expected = -F.cross_entropy(logits, targets, reduction="none")
    (logprobs * weights).sum().backward()
    (expected * weights).sum().backward()
    assert torch.allclose(logprobs, expected, atol=1e-6)
    assert torch.allclose(entropies, torch.distributions.Categorical(logits=logits).entropy(), atol=1e-5)
    for one, other in (inputs, (head.weight, plain.weight)):
        assert one.grad is not None and other.grad is not None
        assert torch.allclose(one.grad, other.grad, atol=1e-5)
    assert "cannot be fused" in str(refusal(fused_projection.fuse, nn.Linear(2, 3), 1.0, True)), "it has a bias"


def test_what_packed_rows_cannot_hold_is_refused() -> None:
    numbers = np.ones(4, np.float32)
    sequences = [TrainingSequence([1], [2] * 4, numbers, numbers, np.ones(4, bool))] * 2
    sliding = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
    for more, batch in ((sliding, collate_end_to_end(sequences)), ({}, replace(collate(sequences), lengths=None))):
        model = Qwen2ForCausalLM(Qwen2Config(**SHAPE, **more, attn_implementation=PACKED_ATTENTION))
        assert "packed rows" in str(refusal(Policy(model, 1.0, False, PACKED), batch, 1))


def test_the_locked_torch_has_flash_attention_for_different_lengths() -> None:
    """Its kernel needs a GPU: only that it takes what it is given is tested here."""
    assert attention.VARIABLE_LENGTH_ATTENTION is not None
    tensors = [torch.empty(7, heads, 8, device="meta", dtype=torch.bfloat16) for heads in (4, 2, 2)]
    ends = torch.tensor([0, 3, 7], dtype=torch.int32)
    inspect.signature(attention.VARIABLE_LENGTH_ATTENTION).bind(
        *tensors, ends, ends, 4, 4, scale=0.3, window_size=attention.CAUSAL
    )
    form = VariableLengths.of([3, 4], CPU)
    assert form.ends.tolist() == [0, 3, 7] and form.ends.dtype == torch.int32 and form.longest == 4
    assert form.path_ends is form.ends and form.longest_path == 4 and form.paths is None
    assert not attention.has_flash_attention(CPU, torch.bfloat16, 128)
    assert isinstance(attention.segments_of([3, 4], CPU, torch.bfloat16, 128), Blocks)


def test_a_query_head_keeps_its_head_of_keys(tmp_path: Path) -> None:
    """Also where ranks do not divide the heads of keys and values, or are more."""
    for heads, shared, parts in ((4, 4, 2), (4, 2, 4), (12, 2, 3), (12, 2, 4), (8, 1, 8)):
        keys = attention.repeat_heads(torch.arange(shared).view(1, shared, 1).float(), parts)[0, :, 0]
        assert len(keys) % parts == 0 and heads % len(keys) == 0
        of_queries = torch.arange(shared).repeat_interleave(heads // shared)
        assert torch.equal(keys.repeat_interleave(heads // len(keys)).long(), of_queries)
    Qwen2Config(num_attention_heads=4, num_key_value_heads=2, hidden_size=16).save_pretrained(tmp_path)
    with pytest.raises(UserError) as refused:
        load_policy(tmp_path, 1.0, Precision.FP32, row_ranks=attention.RowRanks(3))
    assert refused.value.expected == "one of 1, 2, 4"


def test_frozen_parameters_stay_frozen_and_buffers_keep_their_number_format(tmp_path: Path) -> None:
    """Ernie's router has a bias that is a frozen parameter, that of GLM is a buffer of 32 bits."""
    moe = {"moe_intermediate_size": 8, "moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 1}
    ernie = AutoModelForCausalLM.from_config(Ernie4_5_MoeConfig(**SHAPE, **moe))
    ernie.save_pretrained(tmp_path / "ernie")
    frozen = {name for name, tensor in ernie.named_parameters() if not tensor.requires_grad}
    loaded = load_policy(tmp_path / "ernie", 1.0, Precision.FP32).model.named_parameters()
    assert frozen
    assert {name for name, tensor in loaded if not tensor.requires_grad} == frozen

    latent = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4}
    experts = {"moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1}
    config = Glm4MoeLiteConfig(**{**SHAPE, "num_key_value_heads": 4}, **latent, **experts, topk_group=1)
    glm = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    bias = next(name for name, _ in glm.named_buffers() if name.endswith("e_score_correction_bias"))
    glm.get_buffer(bias).copy_(8.5 + torch.arange(4) / 1000)
    glm.save_pretrained(tmp_path / "glm")
    engine = SimpleNamespace(zero_optimization_partition_weights=lambda: False)
    policy = load_policy(tmp_path / "glm", 1.0, Precision.BF16)
    trainer = SimpleNamespace(policy=policy, engine=engine, ranks=SimpleNamespace(rank=0))
    published = gather(trainer, torch.bfloat16)  # type: ignore[arg-type]
    assert torch.equal(published[bias], glm.get_buffer(bias))
    assert published["lm_head.weight"].dtype == torch.bfloat16


# -- training.deterministic


# A GPU is played by the name of its device alone: what is read back are torch's own switches.
SCRIPT = """
import json, os, torch
from mrt_hpc.training import accelerator
def chosen(device, deterministic, workspace):
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    os.environ.update({} if workspace is None else {"CUBLAS_WORKSPACE_CONFIG": workspace})
    accelerator.device = lambda: torch.device(device)
    accelerator.choose_kernels(deterministic)
    return [
        torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic, os.environ.get("CUBLAS_WORKSPACE_CONFIG"), torch.cuda.is_initialized(),
    ]
print(json.dumps([chosen("cpu", None, None), chosen("cpu", False, None), chosen("cuda", None, None),
                  chosen("cuda", True, None), chosen("cuda", True, ":16:8")]))
"""


def test_deterministic_is_an_error_where_it_is_asked_for_and_a_workspace_of_the_site_stays() -> None:
    """By case: deterministic, warning only, cuDNN's, cuBLAS's workspace, whether CUDA was touched."""
    printed = python("-c", SCRIPT).stdout
    on_cpu, refused_on_cpu, on_gpu, asked_for_on_gpu, with_workspace = json.loads(printed.splitlines()[-1])
    assert on_cpu == asked_for_on_gpu == [True, False, True, ":4096:8", False]
    assert on_gpu == refused_on_cpu == [False, False, False, None, False]
    assert with_workspace[3] == ":16:8"
