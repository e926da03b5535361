"""The memory of roles, against arithmetic by hand; refusals, and the settings that they name."""

import json
import math
import re
from pathlib import Path

import pytest
from basics import RECIPES
from commands import recipe, refusal
from tables import tables
from warm_start import ModelSize, build_tokenizer, fresh_model

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.sites import find_site
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.plan import memory
from mrt_hpc.plan.jobs import Role
from mrt_hpc.plan.memory import ModelShape, ServerSetting, TrainerSetting, UnknownShapeError
from mrt_hpc.plan.memory_fit import DECIDING, Fits, fits, refuse_unfit
from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import Training


def config(kind: str, hidden: int, inner: int, layers: int, heads: tuple[int, int], words: int) -> dict[str, object]:
    """A model's config.json, with heads of queries and of keys."""
    return {
        "model_type": kind, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "vocab_size": words,
        "tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 21,
    }  # fmt: skip


QWEN_1_5B = config("qwen2", 1536, 8960, 28, (12, 2), 151936)
LLAMA_8B = config("llama", 4096, 14336, 32, (32, 8), 128256)
QWEN_32B = config("qwen2", 5120, 27648, 64, (40, 8), 152064)
PARAMETERS = 1_777_088_000  # of the first of them
SMALL = ModelShape(8, 16, 2, 2, 1, 4, 100, tied=False)
GIB = 2**30


def model(directory: Path, config: dict[str, object]) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return f"model.path={directory}"


def of_size(name: str, directory: Path, *overrides: str) -> Recipe:
    of_model = model(directory / "model", LLAMA_8B if name.endswith("llama") else QWEN_1_5B)
    return recipe(name, of_model, *overrides)


def a100(gib: float | None = None) -> SlurmSite:
    return SlurmSite(name="cluster", gpu_type="a100", gpu_memory_gib=gib)


def needed(found: Fits, name: str) -> float:
    return next(one.needed for one in found.roles if one.name == name)


def trainer(shape: ModelShape = SMALL, *, ranks: int = 1, longest: int = 4, **changes: object) -> TrainerSetting:
    fields: dict[str, object] = {"learning_rate": 1e-6, "max_tokens_per_micro_batch": 4, **changes}
    fields["batching"] = Batching(str(fields.get("batching", "padded")))
    return TrainerSetting(Training(**fields), shape, ranks, longest)  # type: ignore[arg-type]


def test_shapes_of_published_models_and_of_the_small_world() -> None:
    qwen, tied = memory.shape_of(QWEN_1_5B), memory.shape_of({**QWEN_1_5B, "tie_word_embeddings": True})
    assert (qwen.parameters, memory.shape_of(LLAMA_8B).parameters) == (PARAMETERS, 8_030_261_248)
    assert qwen.parameters - tied.parameters == 151936 * 1536
    assert qwen.cache_numbers(1) == 28 * 2 * 2 * 128, "28 layers, 2 heads of 128 for keys and as many for values"
    kinds = ["sliding_attention"] * 20 + ["full_attention"] * 8
    windowed = memory.shape_of({**QWEN_1_5B, "use_sliding_window": True, "layer_types": kinds, "sliding_window": 100})
    assert windowed.cache_numbers(50) == qwen.cache_numbers(50)
    assert windowed.cache_numbers(1000) == 2 * 256 * (8 * 1000 + 20 * 100)
    gemma = {**LLAMA_8B, "use_sliding_window": True, "sliding_window": 100, "num_hidden_layers": 26}
    del gemma["max_window_layers"]
    of_six = memory.shape_of({**gemma, "sliding_window_pattern": 6})
    assert (of_six.window_layers, memory.shape_of(gemma).window_layers) == (22, 0), "every sixth layer has no window"
    made = fresh_model(ModelSize(), build_tokenizer(), 0)
    assert memory.shape_of(made.config.to_dict()) == memory.SMALL_WORLD
    assert memory.SMALL_WORLD.parameters == made.num_parameters()


def test_other_kinds_of_models_are_not_guessed(tmp_path: Path) -> None:
    for change in (
        {"num_experts": 8}, {"kv_lora_rank": 512}, {"hidden_size": None}, {"hidden_size": -64000000},
        {"head_dim": math.nan}, {"num_key_value_heads": "8"}, {"vocab_size": 1.5}, {"intermediate_size": True},
    ):  # fmt: skip
        with pytest.raises(UnknownShapeError):
            memory.shape_of({**QWEN_1_5B, **change})
    with pytest.raises(UnknownShapeError, match=r"config\.json"):
        memory.shape_in(tmp_path)


@pytest.mark.parametrize(("precision", "stage", "ranks", "a_parameter"), [
    (Precision.BF16, 0, 2, 2 + 12 / 2 + 6 + 4),  # weights in 16 bits are partitioned as in stage 1
    (Precision.BF16, 1, 1, 2 + 12 + 6 + 4),
    (Precision.BF16, 2, 2, 2 + 12 / 2 + 4 / 2 + 8),
    (Precision.BF16, 3, 4, (2 + 12 + 4) / 4 + 12 + 1),
    (Precision.FP32, 0, 2, 4 + 8 + 4 + 4),
    (Precision.FP32, 1, 2, 4 + 12 / 2 + 4 + 4),
    (Precision.FP32, 2, 2, 4 + 16 / 2 + 6),
])  # fmt: skip
def test_bytes_a_parameter_by_hand(precision: Precision, stage: int, ranks: int, a_parameter: float) -> None:
    """All parameters fit one bucket, and there are next to no tokens."""
    shape = ModelShape(512, 1536, 8, 8, 2, 64, 16384, tied=False)
    found = memory.trainer_memory(trainer(shape, precision=precision, zero_stage=stage, ranks=ranks, longest=1))
    assert found.whole / shape.parameters == pytest.approx(a_parameter, rel=1e-3)


def test_offloaded_states_lie_in_the_memory_of_the_node() -> None:
    shape = memory.shape_of(QWEN_1_5B)
    moved, wide, partitioned = (
        memory.trainer_memory(trainer(shape, ranks=4, offload_optimizer=True, zero_stage=stage, precision=precision))
        for stage, precision in ((2, Precision.BF16), (2, Precision.FP32), (3, Precision.BF16))
    )
    assert memory.trainer_memory(trainer(shape, ranks=4, zero_stage=2)).host == 0
    assert (moved.optimizer, wide.optimizer, partitioned.optimizer, partitioned.gradients) == (0, 0, 0, 0)
    assert (moved.gradients, wide.gradients) == (PARAMETERS * 4 / 4 + 2 * shape.largest, 4 * shape.largest)
    assert (moved.host, wide.host) == (PARAMETERS * (12 + 4 + 2) / 4, PARAMETERS * (12 + 4 + 4 + 4) / 4)
    assert partitioned.host == PARAMETERS * (12 + 4 + 4) / 4


def test_activations_by_hand() -> None:
    """Per token: norms 2 x (4 + 2 + 2) x 8, the residual 2 x 8, attention 2 x (16 + 8) + 4 x 2, 4 x 2 x 16 inside; 6 x
    16 in passing, and 6 x 8 at both ends. Of 5 tokens a rank of two has 3, with 2 x (2 x 8 + 2 x 8 + 2 x 4) bytes more
    each: the one head of keys and the one of values are copied.
    """
    layer, passing, ends = 128 + 16 + 48 + 8 + 128, 96, 48
    assert memory.activation_bytes(trainer(gradient_checkpointing=False)) == 4 * (2 * layer + passing + ends)
    assert memory.activation_bytes(trainer()) == 4 * (2 * 2 * 8 + layer + passing + ends)
    assert trainer(longest=100).tokens == 100, "a sequence longer than the limit has a micro batch of its own"
    alone, shared = trainer(longest=5), trainer(longest=5, sequence_parallel=2)
    assert (alone.tokens, shared.tokens) == (5, 3)
    assert memory.activation_bytes(shared) == 3 * (memory.activation_bytes(alone) / 5 + 80)
    assert memory.logit_bytes(shared) == 20 * 3 * 100


def test_logits_are_bounded_by_the_pieces_that_they_come_in() -> None:
    shape = memory.shape_of(QWEN_1_5B)
    assert memory.logit_bytes(trainer(shape, max_tokens_per_micro_batch=1000)) == 20 * 1000 * 151936
    assert memory.logit_bytes(trainer(shape, max_tokens_per_micro_batch=20480)) == 20 * 2**28
    fused = trainer(shape, max_tokens_per_micro_batch=20480, projection="fused")
    assert memory.logit_bytes(fused) == 10 * (2**28 // 151936) * 151936 + 4 * 151936 * 1536


def test_a_cache_on_a_gpu_by_hand() -> None:
    """63.2 GiB less the weights, the forward pass of 8,192 tokens, the logits of 128 and 1.5 GiB."""
    found = memory.server_memory(ServerSetting(memory.shape_of(QWEN_1_5B), 2, 20480, 8392, 128, 1, 63.2 * GIB))
    batch = 2 * 8192 * (4 * 1536 + 2 * 8960 + 1536 + 2 * 256) + 12 * 128 * 151936
    left = 63.2 * GIB - 2 * PARAMETERS - batch - 1.5 * GIB
    assert found.cache == pytest.approx(left)
    assert found.capacity(found.longest) == int(left // (20480 * 28 * 2 * 256 * 2)) == 105


def test_a_second_gpu_halves_weights_and_keys_and_a_second_stage_again() -> None:
    def server(gpus: int, stages: int = 1) -> tuple[float, float]:
        setting = ServerSetting(memory.shape_of(LLAMA_8B), 2, 8192, 8192, 128, gpus, 60 * GIB, stages)
        found = memory.server_memory(setting)
        return found.weights, found.longest

    assert [*server(1)] == [2 * part for part in server(2)] == [4 * part for part in server(2, 2)]


def test_without_a_gpu_the_recipe_states_the_cache() -> None:
    inference = next(one for one in fits(recipe("quickstart"), LocalSite()).roles if one.name == "inference")
    assert inference.parts["KV cache"] == 1.0
    assert f"{2**30 // (324 * 2 * 2 * 128 * 4):,} sequences of 324 tokens" in inference.note


def test_the_memory_of_a_gpu() -> None:
    for gpu, stated, gib, known in (
        ("nvidia_h100_80gb", None, 78.4, True), ("a100-40gb", None, 39.2, True), ("a100", 39.5, 39.5, True),
        ("a100", None, 79.0, True), ("strange", None, 79.0, False), (None, None, 79.0, False),
    ):  # fmt: skip
        found = memory.gpu_memory(SlurmSite(name="cluster", gpu_type=gpu, gpu_memory_gib=stated))
        assert (found.gib, found.known) == (pytest.approx(gib), known)


def test_every_recipe_of_the_package_fits(tmp_path: Path) -> None:
    """Those of the paper fit GPUs of 80 GB, those of the small world their memory on this machine."""
    example, verdicts = find_site("example"), {}
    for folder in ("", "small_world", "papers"):
        for path in (RECIPES / folder).glob("*.yaml"):
            name = str(path.relative_to(RECIPES).with_suffix(""))
            here = bool(folder) or name == "quickstart"
            found = fits(load_recipe(path) if here else of_size(name, tmp_path), LocalSite() if here else example)
            assert found.roles, name
            verdicts[name] = (found.refused_roles, found.doubtful, found.unchecked)
    assert {name: verdict for name, verdict in verdicts.items() if verdict != ([], [], ())} == {}


def test_what_does_not_fit_is_refused_with_the_settings_that_decide(tmp_path: Path) -> None:
    fields = (model(tmp_path / "model", QWEN_32B), "serving.gpu_memory_utilization=0.95")
    asked = recipe("mrt", *fields)
    refused = refusal(refuse_unfit, asked, a100())
    assert refused.what.startswith("trainer") and refused.where == "resources.trainer"
    assert refusal(refuse_unfit, asked, a100(1.0)).where == "resources.inference"
    assert fits(asked, LocalSite()).refused_roles == [], "an assumed GPU refuses nothing"
    doubtful = fits(recipe("mrt", fields[0]), LocalSite()).doubtful
    assert {one.role for one in doubtful} == {Role.INFERENCE, Role.TRAINER, Role.EVALUATION}


NAME = re.compile(r"\b(?:training|serving|resources|sampling|evaluation)(?:\.[a-z_]+)+")


@pytest.mark.parametrize("role", DECIDING)
def test_each_setting_that_an_advice_names_decides(role: Role, tmp_path: Path) -> None:
    """With another value of each of them the process needs another amount, or gets another limit."""
    settings = tables("fits")

    def of_role(*changes: str) -> list[tuple[float, float]]:
        found = fits(of_size("mrt_online", tmp_path, *settings["as_begun"], *changes), a100()).roles
        return [(one.needed, one.limit) for one in found if one.role is role]

    for name in NAME.findall(DECIDING[role]):
        assert of_role(*settings["others"][name]) != of_role(), name


def test_a_limit_that_a_recipe_states_is_raised_by_what_the_advice_says(tmp_path: Path) -> None:
    of_model = model(tmp_path / "model", QWEN_1_5B)
    offloaded = ("training.offload_optimizer=true", "training.zero_stage=2")
    for name, *fields in (
        ("mrt_online", of_model, *offloaded, "resources.trainer.memory_gib=8"),
        ("quickstart", "resources.inference.memory_gib=1"),
        ("quickstart", "sampling.max_tokens=4000000", "resources.inference.memory_gib=9", "prover.max_tokens=4"),
    ):
        while fits(asked := recipe(name, *fields), a100()).refused_roles:
            advice = str(refusal(refuse_unfit, asked, a100()).advice)
            setting = re.search(r"--set (\S+=\d+)", advice)
            assert setting is not None and setting[1] not in fields, advice
            fields.append(setting[1])


def test_a_colocated_role_leaves_room_for_what_the_other_one_keeps(tmp_path: Path) -> None:
    """In the memory of the node 4 ranks: all weights for publishing and 2 bytes of its own, 12 / 4 and 4 / 4 bytes a
    parameter, and 4 GiB. Each of the 4 servers has weights of its own. On the GPU the trainer leaves 3 GiB for a
    sleeping server, with its graphs; a server that takes the whole GPU leaves 1.7 GiB.
    """
    fields = ("resources.inference.tasks=1", "resources.inference.gpus=4")
    colocated = (*fields, "schedule.coupling=colocated")
    found = fits(of_size("mrt_online", tmp_path, *colocated), find_site("example"))
    assert needed(found, "trainer, off the GPU") == pytest.approx((2 + 2 + 3 + 1) * PARAMETERS / GIB + 4)
    assert needed(found, "inference, asleep") == pytest.approx(4 * 2 * PARAMETERS / GIB + 4)
    assert found.refused_roles == []
    whole = "serving.gpu_memory_utilization=1.0"
    alone, both = (fits(of_size("mrt_online", tmp_path, *each, whole), a100(80.0)) for each in (fields, colocated))
    limits = [next(one.limit for one in found.roles if one.name == "inference") for found in (alone, both)]
    assert needed(both, "trainer") - needed(alone, "trainer") == pytest.approx(3.0)
    assert limits == [80.0, 78.3]
