"""The trainer refuses a model that it would not train as it is sampled: small models of several families."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from commands import refusal
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import GPT2Config, LlamaConfig, Phi3Config, PretrainedConfig, Qwen2Config, Qwen3NextConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.training.agreement import ForwardCheck, differences, refuse_differences, require_agreement
from mrt_hpc.training.attention import PACKED_ATTENTION, segments_of
from mrt_hpc.training.policy import Kernels, Policy, load_policy
from mrt_hpc.training.small_model import make_small

PADDED, PACKED, SHARED = Batching.PADDED, Batching.PACKED, Batching.SHARED
LONGEST = 100


def load(config: PretrainedConfig, folder: Path, batching: Batching = PADDED, **options: Any) -> Policy:
    make_small(config, folder)
    return load_policy(folder, 0.8, options.pop("precision", Precision.FP32), kernels=Kernels(batching, **options))


def phi3(kind: str = "longrope") -> Phi3Config:
    """48 numbers a table, as heads have 96; the tables change where a sequence has more than 64 tokens."""
    tables = {"short_factor": [1.0] * 48, "long_factor": [4.0] * 48} if kind == "longrope" else {"factor": 4.0}
    rope = {"rope_type": kind, "rope_theta": 10000.0, "original_max_position_embeddings": 64, **tables}
    return Phi3Config(max_position_embeddings=256, original_max_position_embeddings=64, rope_parameters=rope)


def llama(**rope: Any) -> LlamaConfig:
    return LlamaConfig(max_position_embeddings=64, rope_parameters={"rope_theta": 10000.0, **rope})


FAMILIES: dict[str, tuple[Callable[[], PretrainedConfig], Batching, ForwardCheck | None]] = {
    "Qwen2, padded": (Qwen2Config, PADDED, None),
    "Qwen2, packed": (Qwen2Config, PACKED, None),
    "Qwen2, shared": (Qwen2Config, SHARED, None),
    "dropout of GPT-2": (GPT2Config, PADDED, None),
    "dropout of OPT": (transformers.OPTConfig, PADDED, None),
    "recurrent layers": (Qwen3NextConfig, PADDED, None),
    "recurrent layers, shared": (Qwen3NextConfig, SHARED, ForwardCheck.IN_ONE_ROW),
    "layers of Mamba, packed": (transformers.MambaConfig, PACKED, ForwardCheck.IN_ONE_ROW),
    "ALiBi, packed": (transformers.BloomConfig, PACKED, ForwardCheck.IN_ONE_ROW),
    "a window": (transformers.MistralConfig, PADDED, None),
    "a window, packed": (transformers.MistralConfig, PACKED, ForwardCheck.IN_ONE_ROW),
    "a window that no layer uses, packed": (transformers.Qwen2MoeConfig, PACKED, None),
    "scaled logits": (lambda: transformers.FalconH1Config(lm_head_multiplier=0.0195), PADDED, ForwardCheck.HEAD),
    "longrope": (phi3, PADDED, ForwardCheck.LONGEST),
    "dynamic NTK": (lambda: llama(rope_type="dynamic", factor=4.0), PADDED, ForwardCheck.LONGEST),
    "YaRN": (lambda: llama(rope_type="yarn", factor=4.0, original_max_position_embeddings=64), PADDED, None),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_trained_as_it_is_or_refused(family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, batching, wrong = FAMILIES[family]
    policy = load(config(), tmp_path, batching)
    failed = [difference for difference in differences(policy, LONGEST) if not difference.agrees]
    assert not failed or (failed[0].check is wrong and failed[0].nats > 0.1)
    if wrong in (None, ForwardCheck.IN_ONE_ROW):
        require_agreement(policy, LONGEST, tmp_path)
        assert policy.kernels.batching is (batching if wrong is None else PADDED)
        assert ("training.batching is padded" in caplog.text) is (wrong is not None)
        assert all(difference.agrees for difference in differences(policy, LONGEST))
        return
    with pytest.raises(UserError) as refused:
        require_agreement(policy, LONGEST, tmp_path)
    assert {ForwardCheck.LONGEST: "sampling.max_tokens"}.get(wrong, "model.path") in str(refused.value.advice)


def test_a_table_that_no_sequence_of_the_run_reaches_is_taken(tmp_path: Path) -> None:
    refuse_differences(differences(load(phi3(), tmp_path), longest=64), tmp_path)


@pytest.mark.parametrize(("precision", "fused"), [(Precision.BF16, False), (Precision.BF16_AUTOCAST, True)])
@pytest.mark.parametrize("batching", Batching)
def test_16_bits_are_within_the_limit(precision: Precision, fused: bool, batching: Batching, tmp_path: Path) -> None:
    found = differences(load(Qwen2Config(), tmp_path, batching, precision=precision, fused=fused), LONGEST)
    assert all(difference.nats < 0.05 for difference in found)
    refuse_differences(found, tmp_path)


def test_what_is_wrong_is_seen_in_16_bits_too(tmp_path: Path) -> None:
    found = differences(load(Qwen3NextConfig(), tmp_path, PACKED, precision=Precision.BF16), LONGEST)
    assert [d.check for d in found if not d.agrees] == [ForwardCheck.IN_ONE_ROW]


def test_a_window_that_only_a_mask_shows_is_refused_in_a_packed_row(tmp_path: Path) -> None:
    """No short sequence shows it."""
    model = load(Qwen2Config(), tmp_path, PACKED).model
    states = torch.zeros(1, 2, 5, 8)
    segments = segments_of((5,), torch.device("cpu"), torch.float32, 8)
    attend, mask = ALL_ATTENTION_FUNCTIONS[PACKED_ATTENTION], ALL_MASK_ATTENTION_FUNCTIONS[PACKED_ATTENTION]
    assert mask() is None
    attend(model, states, states, states, None, segments=segments)
    refused = refusal(partial(attend, segments=segments), model, states, states, states, mask(local_size=4096))
    assert refused.where == "training.batching"


def test_dropout_that_is_left_is_seen(tmp_path: Path) -> None:
    policy = load(GPT2Config(), tmp_path)
    dropouts = [m for m in policy.modules() if isinstance(m, nn.Dropout)]
    assert dropouts and not any(m.p for m in dropouts)
    for module in dropouts:
        module.p = 0.1
    assert "dropout" in refusal(refuse_differences, differences(policy, LONGEST), tmp_path).what


def test_log_probabilities_that_are_not_finite_agree_with_nothing(tmp_path: Path) -> None:
    policy = load(Qwen2Config(), tmp_path)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight[0, 0] = torch.nan
    heads = [found for found in differences(policy, LONGEST) if found.check is ForwardCheck.HEAD]
    assert heads and not any(found.agrees for found in heads)


def test_the_check_leaves_the_policy_as_it_was(tmp_path: Path) -> None:
    policy = load(GPT2Config(), tmp_path, PACKED).eval()
    kernels, attention = policy.kernels, policy.model.config._attn_implementation
    differences(policy, LONGEST)
    assert (policy.kernels, policy.model.config._attn_implementation) == (kernels, attention)
    assert not policy.training


def rewritten(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


UP = "model.layers.9.mlp.up_proj.weight"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no head": (rewritten(lambda t: t.pop("lm_head.weight")), "lm_head.weight"),
    "a layer too many": (rewritten(lambda t: t.update({UP: torch.zeros(2, 2)})), "layers.9"),
    "another shape": (rewritten(lambda t: t.update({"model.norm.weight": torch.ones(3)})), "norm"),
    "a shard without index": (
        lambda folder: (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors"),
        "model.safetensors",
    ),
    "no such model": (lambda folder: (folder / "config.json").write_text('{"model_type": "none"}'), "transformers"),
}
"""By what is wrong with a checkpoint: what harms it, and what the error names."""


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_checkpoint_with_other_tensors_than_its_model_is_refused(damage: str, tmp_path: Path) -> None:
    make_small(Qwen2Config(tie_word_embeddings=False), tmp_path)
    harm, named = DAMAGE[damage]
    harm(tmp_path)
    assert named in refusal(load_policy, tmp_path, 1.0, Precision.FP32).message()
