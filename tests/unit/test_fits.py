"""The memory of roles, against arithmetic by hand; refusals, and proposals that fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.sites import find_site
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Role
from mrt_hpc.plan.memory import (
    SMALL_WORLD,
    ModelShape,
    ServerSetting,
    TrainerSetting,
    UnknownShapeError,
    activation_bytes,
    gpu_memory,
    logit_bytes,
    server_memory,
    shape_in,
    shape_of,
    trainer_memory,
)
from mrt_hpc.plan.memory_fit import Fits, fits, nearest_change, refuse_unfit
from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.sections import Training

if TYPE_CHECKING:
    from mrt_hpc.plan.memory import TrainerMemory
    from mrt_hpc.recipe.schema import Recipe

RECIPES = Path(__file__).parents[2] / "recipes"
QWEN_1_5B = {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "vocab_size": 151936, "model_type": "qwen2", "tie_word_embeddings": False,
    "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 21,
}  # fmt: skip
LLAMA_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "model_type": "llama", "tie_word_embeddings": False,
}  # fmt: skip
QWEN_32B = {
    "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40,
    "num_key_value_heads": 8, "vocab_size": 152064, "model_type": "qwen2", "tie_word_embeddings": False,
}  # fmt: skip
SMALL = ModelShape(8, 16, 2, 2, 1, 4, 100, tied=False)
GIB = 2**30


def model(directory: Path, config: dict[str, object]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def of_size(name: str, directory: Path, *overrides: str) -> Recipe:
    """A recipe of the paper, with its model's config.json in a directory."""
    config = LLAMA_8B if name.endswith("llama") else QWEN_1_5B
    path = model(directory, config)
    return load_recipe(RECIPES / f"{name}.yaml", (f"model.path={path}", *overrides))


def a100(gib: float | None = None) -> SlurmSite:
    return SlurmSite(name="cluster", gpu_type="a100", gpu_memory_gib=gib)


def role(found: Fits, name: str) -> float:
    return next(one.needed for one in found.roles if one.name == name)


def trainer(shape: ModelShape = SMALL, *, ranks: int = 1, longest: int = 4, **changes: object) -> TrainerSetting:
    fields: dict[str, object] = {"learning_rate": 1e-6, "max_tokens_per_micro_batch": 4, **changes}
    fields["batching"] = Batching(str(fields.get("batching", "padded")))
    return TrainerSetting(Training(**fields), shape, ranks, longest)  # type: ignore[arg-type]


def bytes_of(shape: ModelShape, **changes: object) -> TrainerMemory:
    return trainer_memory(trainer(shape, **changes))  # type: ignore[arg-type]


# -- shapes -----------------------------------------------------------------------------------------------------------


def test_parameters_of_published_models() -> None:
    assert shape_of(QWEN_1_5B).parameters == 1_777_088_000
    assert shape_of(LLAMA_8B).parameters == 8_030_261_248


def test_tied_embeddings_count_once() -> None:
    untied, tied = shape_of(QWEN_1_5B), shape_of({**QWEN_1_5B, "tie_word_embeddings": True})
    assert untied.parameters - tied.parameters == 151936 * 1536


def test_the_small_world_has_the_shape_that_is_stated() -> None:
    from mrt_hpc.domains.small_world.model import ModelSize, build_tokenizer, fresh_model

    made = fresh_model(ModelSize(), build_tokenizer(), 0)
    assert shape_of(made.config.to_dict()) == SMALL_WORLD
    assert SMALL_WORLD.parameters == made.num_parameters()


def test_a_token_of_the_cache_by_hand() -> None:
    """28 layers, 2 heads of 128 for keys and as many for values."""
    assert shape_of(QWEN_1_5B).cache_numbers(1) == 28 * 2 * 2 * 128


def test_layers_with_a_window_keep_no_more_than_the_window() -> None:
    kinds = ["sliding_attention"] * 20 + ["full_attention"] * 8
    windowed = shape_of({**QWEN_1_5B, "use_sliding_window": True, "layer_types": kinds, "sliding_window": 100})
    assert windowed.cache_numbers(50) == shape_of(QWEN_1_5B).cache_numbers(50)
    assert windowed.cache_numbers(1000) == 2 * 256 * (8 * 1000 + 20 * 100)


@pytest.mark.parametrize("change", [{"num_experts": 8}, {"kv_lora_rank": 512}, {"hidden_size": None}])
def test_other_kinds_of_models_are_not_guessed(change: dict[str, object]) -> None:
    with pytest.raises(UnknownShapeError, match="dense decoders only"):
        shape_of({**QWEN_1_5B, **change})


def test_a_directory_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownShapeError, match=r"config\.json cannot be read"):
        shape_in(tmp_path)


# -- trainer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "stage", "ranks", "a_parameter"),
    [
        (Precision.BF16, 0, 2, 2 + 12 / 2 + 6 + 4),  # weights in 16 bits are partitioned as in stage 1
        (Precision.BF16, 1, 1, 2 + 12 + 6 + 4),
        (Precision.BF16, 2, 2, 2 + 12 / 2 + 4 / 2 + 8),
        (Precision.BF16, 3, 4, (2 + 12 + 4) / 4 + 12 + 1),
        (Precision.FP32, 0, 2, 4 + 8 + 4 + 4),
        (Precision.FP32, 1, 2, 4 + 12 / 2 + 4 + 4),
        (Precision.FP32, 2, 2, 4 + 16 / 2 + 6),
    ],
)
def test_bytes_a_parameter_by_hand(precision: Precision, stage: int, ranks: int, a_parameter: float) -> None:
    """All parameters fit one bucket, and there are next to no tokens."""
    shape = ModelShape(512, 1536, 8, 8, 2, 64, 16384, tied=False)
    found = bytes_of(shape, precision=precision, zero_stage=stage, ranks=ranks, longest=1)
    assert found.whole / shape.parameters == pytest.approx(a_parameter, rel=1e-3)


def test_offloaded_states_lie_in_the_memory_of_the_node() -> None:
    shape = shape_of(QWEN_1_5B)
    kept = bytes_of(shape, ranks=4, zero_stage=2)
    moved = bytes_of(shape, ranks=4, zero_stage=2, offload_optimizer=True)
    assert (kept.host, moved.optimizer, moved.gradients) == (0, 0, 0)
    assert moved.host == shape.parameters * (12 + 4) / 4


def test_activations_of_one_layer_by_hand() -> None:
    """Per token: norms 2 x (4 + 2 + 2) x 8, the residual 2 x 8, attention 2 x (16 + 8) + 4 x 2, 4 x 2 x 16 inside; 6 x
    16 in passing, and 6 x 8 at both ends.
    """
    layer, passing, ends = 128 + 16 + 48 + 8 + 128, 96, 48
    kept = trainer(gradient_checkpointing=False)
    assert activation_bytes(kept) == 4 * (2 * layer + passing + ends)
    assert activation_bytes(trainer()) == 4 * (2 * 2 * 8 + layer + passing + ends)


def test_logits_are_bounded_by_the_pieces_that_they_come_in() -> None:
    shape = shape_of(QWEN_1_5B)
    assert logit_bytes(trainer(shape, max_tokens_per_micro_batch=1000)) == 20 * 1000 * 151936
    assert logit_bytes(trainer(shape, max_tokens_per_micro_batch=20480)) == 20 * 2**28
    rows = 2**28 // 151936
    fused = trainer(shape, max_tokens_per_micro_batch=20480, projection="fused")
    assert logit_bytes(fused) == 10 * rows * 151936 + 4 * 151936 * 1536


def test_a_sequence_longer_than_the_limit_has_a_micro_batch_of_its_own() -> None:
    assert trainer(longest=100).tokens == 100


def test_ranks_that_share_a_sequence_hold_a_part_of_its_activations() -> None:
    """Of 5 tokens a rank of two has 3, with 2 x (2 x 8 + 2 x 8 + 2 x 4) bytes more each: the one head of keys and the
    one of values are copied.
    """
    alone, shared = trainer(longest=5), trainer(longest=5, sequence_parallel=2)
    assert (alone.tokens, shared.tokens) == (5, 3)
    assert activation_bytes(shared) == 3 * (activation_bytes(alone) / 5 + 80)
    assert logit_bytes(shared) == 20 * 3 * 100


def test_a_trace_that_fits_no_gpu_is_shared_by_several(tmp_path: Path) -> None:
    path = model(tmp_path / "model", LLAMA_8B)
    fields = (
        f"model.path={path}", "sampling.max_tokens=400000", "resources.trainer.ranks=8", "training.zero_stage=3",
        "training.gradient_checkpointing=true", "training.projection=fused", "training.offload_optimizer=true",
        "training.max_tokens_per_micro_batch=16384", "resources.trainer.memory_gib=900", "training.batching=packed",
    )  # fmt: skip
    asked = load_recipe(RECIPES / "mrt.yaml", fields)
    unfit = next(one for one in fits(asked, a100(79.0)).roles if one.role is Role.TRAINER and not one.fits)
    change = nearest_change(unfit.role, asked, a100(79.0))
    assert change is not None and [field for field, _ in change] == ["training.sequence_parallel"]


# -- servers ----------------------------------------------------------------------------------------------------------


def test_a_cache_on_a_gpu_by_hand() -> None:
    """63.2 GiB less the weights, the forward pass of 8,192 tokens, the logits of 128 and 1.5 GiB."""
    shape = shape_of(QWEN_1_5B)
    found = server_memory(ServerSetting(shape, 2, 20480, 8392, 128, 1, 63.2 * GIB))
    batch = 2 * 8192 * (4 * 1536 + 2 * 8960 + 1536 + 2 * 256) + 12 * 128 * 151936
    left = 63.2 * GIB - 2 * 1_777_088_000 - batch - 1.5 * GIB
    assert found.cache == pytest.approx(left)
    assert found.at_once(found.longest) == int(left // (20480 * 28 * 2 * 256 * 2)) == 105


def test_two_gpus_halve_weights_and_keys() -> None:
    shape = shape_of(LLAMA_8B)
    one, two = (server_memory(ServerSetting(shape, 2, 8192, 8192, 128, n, 60 * GIB)) for n in (1, 2))
    assert (two.weights, two.longest) == (one.weights / 2, one.longest / 2)


def test_without_a_gpu_the_recipe_states_the_cache() -> None:
    found = fits(load_recipe(RECIPES / "quickstart.yaml", ()), LocalSite())
    inference = next(one for one in found.roles if one.name == "inference")
    assert inference.parts["KV cache"] == 1.0
    assert f"{2**30 // (324 * 2 * 2 * 128 * 4):,} sequences of 324 tokens" in inference.note


# -- sites ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "stated", "gib", "known"),
    [
        ("h200", None, 139.0, True),
        ("nvidia_h100_80gb", None, 78.4, True),
        ("a100-40gb", None, 39.2, True),
        ("a100", 39.5, 39.5, True),
        ("a100", None, 79.0, True),
        ("strange", None, 79.0, False),
        (None, None, 79.0, False),
    ],
)
def test_the_memory_of_a_gpu(gpu: str | None, stated: float | None, gib: float, known: bool) -> None:
    found = gpu_memory(SlurmSite(name="cluster", gpu_type=gpu, gpu_memory_gib=stated))
    assert found.gib == pytest.approx(gib)
    assert found.known is known


# -- verdicts ---------------------------------------------------------------------------------------------------------

PAPER = [
    str(path.relative_to(RECIPES).with_suffix(""))
    for folder in ("", "4x8", "preemptible", "one_gpu")
    for path in sorted((RECIPES / folder).glob("*.yaml"))
    if path.stem != "quickstart"
]


@pytest.mark.parametrize("name", PAPER)
def test_recipes_of_the_paper_fit_gpus_of_80_gb(name: str, tmp_path: Path) -> None:
    found = fits(of_size(name, tmp_path / "model"), find_site("example"))
    assert (found.refused, found.doubtful, found.unchecked) == ([], [], ())


@pytest.mark.parametrize("path", sorted((RECIPES / "small_world").glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_of_the_small_world_fit_their_memory(path: Path) -> None:
    found = fits(load_recipe(path, ()), LocalSite())
    assert found.roles
    assert (found.refused, found.doubtful, found.unchecked) == ([], [], ())


def test_a_model_that_is_not_there_is_not_checked() -> None:
    path = "hub:nobody/nothing@0123456789abcdef0123456789abcdef01234567"
    found = fits(load_recipe(RECIPES / "mrt.yaml", (f"model.path={path}",)), find_site("example"))
    assert found.roles == ()
    assert "mrt-hpc model fetch nobody/nothing" in found.unchecked[0]


def test_what_does_not_fit_is_refused_with_a_change_that_fits(tmp_path: Path) -> None:
    path = model(tmp_path / "model", QWEN_32B)
    asked = load_recipe(RECIPES / "mrt.yaml", (f"model.path={path}", "serving.gpu_memory_utilization=0.95"))
    with pytest.raises(UserError) as refused:
        refuse_unfit(asked, a100())
    assert "trainer does not fit" in refused.value.what
    changes = (refused.value.advice or "").replace("--set ", "").split()
    assert changes
    better = load_recipe(RECIPES / "mrt.yaml", (f"model.path={path}", "serving.gpu_memory_utilization=0.95", *changes))
    refuse_unfit(better, a100())


def test_where_no_change_helps_the_fields_to_change_are_named(tmp_path: Path) -> None:
    path = model(tmp_path / "model", QWEN_32B)
    asked = load_recipe(RECIPES / "mrt.yaml", (f"model.path={path}",))
    with pytest.raises(UserError) as refused:
        refuse_unfit(asked, a100(1.0))
    assert refused.value.where == "resources.inference"
    assert str(refused.value.advice).startswith("a lower sampling.max_tokens, more resources.inference.nodes, ")


def test_a_server_gets_more_of_its_gpu_or_a_second_one(tmp_path: Path) -> None:
    asked = of_size("backtracking_llama", tmp_path / "model")
    small = next(one for one in fits(asked, a100(22.0)).roles if one.name == "inference")
    assert not small.fits
    assert nearest_change(small.role, asked, a100(22.0)) == (("serving.gpu_memory_utilization", 0.85),)
    tiny = next(one for one in fits(asked, a100(14.5)).roles if one.name == "inference")
    assert nearest_change(tiny.role, asked, a100(14.5)) == (
        ("serving.tensor_parallel", 2), ("resources.inference.gpus", 2), ("resources.evaluation.gpus", 2),
    )  # fmt: skip


def test_gpus_of_a_task_that_are_enough_are_kept(tmp_path: Path) -> None:
    """Four servers of one GPU become two of two."""
    asked = of_size("backtracking_llama", tmp_path / "model", "resources.inference.gpus=4")
    tiny = next(one for one in fits(asked, a100(14.5)).roles if one.name == "inference")
    change = nearest_change(tiny.role, asked, a100(14.5))
    assert change == (("serving.tensor_parallel", 2), ("resources.evaluation.gpus", 2))


def test_several_servers_keep_their_number_when_each_gets_more_gpus(tmp_path: Path) -> None:
    fields = ("serving.tensor_parallel=1", "serving.servers=2", "resources.inference.gpus=2")
    asked = of_size("backtracking_llama", tmp_path / "model", *fields, "resources.evaluation.gpus=2")
    tiny = next(one for one in fits(asked, a100(14.5)).roles if one.name == "inference")
    change = nearest_change(tiny.role, asked, a100(14.5))
    assert change == (
        ("serving.tensor_parallel", 2), ("resources.inference.gpus", 4), ("resources.evaluation.gpus", 4),
    )  # fmt: skip


def test_layers_in_two_stages_halve_weights_and_cache() -> None:
    shape = shape_of(LLAMA_8B)
    one, two = (server_memory(ServerSetting(shape, 2, 8192, 8192, 128, 2, 60 * GIB, stages)) for stages in (1, 2))
    assert (two.weights, two.longest) == (one.weights / 2, one.longest / 2)


def test_a_colocated_trainer_waits_in_the_memory_of_the_node(tmp_path: Path) -> None:
    """4 ranks: all weights for publishing and 2 bytes of its own, 12 / 4 and 4 / 4 bytes a parameter, and 4 GiB. Each
    of the 4 servers has weights of its own.
    """
    fields = ("schedule.coupling=colocated", "resources.inference.tasks=1", "resources.inference.gpus=4")
    found = fits(of_size("mrt_online", tmp_path / "model", *fields), find_site("example"))
    assert role(found, "trainer, off the GPU") == pytest.approx((2 + 2 + 3 + 1) * 1_777_088_000 / GIB + 4)
    assert role(found, "inference, asleep") == pytest.approx(4 * 2 * 1_777_088_000 / GIB + 4)
    assert found.refused == []


def test_a_colocated_role_leaves_room_for_what_the_other_one_keeps(tmp_path: Path) -> None:
    """The trainer 3 GiB for a sleeping server, with its graphs; a server that takes the whole GPU 1 GiB."""
    fields = ("resources.inference.tasks=1", "resources.inference.gpus=4", "serving.gpu_memory_utilization=1.0")
    changes = ((), ("schedule.coupling=colocated",))
    alone, both = (fits(of_size("mrt_online", tmp_path / "model", *fields, *one), a100(80.0)) for one in changes)
    limits = [next(one.limit for one in found.roles if one.name == "inference") for found in (alone, both)]
    assert role(both, "trainer") - role(alone, "trainer") == pytest.approx(3.0)
    assert limits == [80.0, 79.0]


def test_the_weights_that_were_published_last_wait_for_the_next_delta(tmp_path: Path) -> None:
    """A second copy in 2 bytes a parameter: in the memory of the node, or without a GPU in that of the trainer."""
    deltas = ("training.full_weights_every=10", "schedule.iterations_per_job=20", "schedule.max_staleness=1")
    asked = of_size("mrt_online", tmp_path / "model", *deltas)
    found = fits(asked, find_site("example"))
    assert role(found, "trainer, off the GPU") == pytest.approx((2 + 2) * 1_777_088_000 / GIB + 4)
    whole = fits(of_size("mrt_online", tmp_path / "model"), find_site("example"))
    assert "trainer, off the GPU" not in {one.name for one in whole.roles}
    assert role(found, "trainer") == role(whole, "trainer"), "nothing more on the GPU"
    small = of_size("mrt_online", tmp_path / "model", *deltas, "resources.trainer.memory_gib=8")
    unfit = next(one for one in fits(small, find_site("example")).roles if one.name == "trainer, off the GPU")
    assert nearest_change(unfit.role, small, find_site("example")) == (("resources.trainer.memory_gib", 12.0),)
    without_gpu = ("resources.trainer.gpus=0", "training.deterministic=false")
    more = [
        role(fits(of_size("mrt_online", tmp_path / "model", *without_gpu, *fields), LocalSite()), "trainer")
        for fields in (deltas, ())
    ]
    assert more[0] - more[1] == pytest.approx(2 * 1_777_088_000 / GIB)


def test_an_assumed_gpu_refuses_nothing(tmp_path: Path) -> None:
    path = model(tmp_path / "model", QWEN_32B)
    found = fits(load_recipe(RECIPES / "mrt.yaml", (f"model.path={path}",)), LocalSite())
    assert found.refused == []
    assert {one.role for one in found.doubtful} == {Role.INFERENCE, Role.TRAINER, Role.EVALUATION}


def test_little_memory_without_a_gpu_is_refused() -> None:
    asked = load_recipe(RECIPES / "quickstart.yaml", ("resources.trainer.memory_gib=0.5",))
    with pytest.raises(UserError, match=r"trainer does not fit") as refused:
        refuse_unfit(asked, LocalSite())
    assert refused.value.advice is not None
    assert refused.value.advice.startswith("--set resources.trainer.memory_gib=")


@settings(max_examples=60, deadline=None)
@given(
    gib=st.floats(8, 80),
    config=st.sampled_from([QWEN_1_5B, LLAMA_8B, QWEN_32B]),
    stage=st.integers(0, 3),
    ranks=st.sampled_from([1, 2, 4]),
    tokens=st.sampled_from([4096, 20480, 65536]),
    offload=st.booleans(),
    precision=st.sampled_from(list(Precision)),
    servers=st.sampled_from([1, 2]),
)
def test_a_proposal_always_fits(
    tmp_path_factory: pytest.TempPathFactory,
    gib: float,
    config: dict[str, object],
    stage: int,
    ranks: int,
    tokens: int,
    offload: bool,
    precision: Precision,
    servers: int,
) -> None:
    path = model(tmp_path_factory.getbasetemp() / f"model-{config['hidden_size']}", config)
    site, fields = a100(gib), [
        f"model.path={path}", f"training.zero_stage={stage}", f"resources.trainer.ranks={ranks}",
        f"training.max_tokens_per_micro_batch={tokens}", f"training.precision={precision}",
        f"training.offload_optimizer={str(offload and stage > 0).lower()}", f"serving.servers={servers}",
        f"resources.inference.gpus={servers}", f"resources.evaluation.gpus={servers}",
    ]  # fmt: skip
    asked = load_recipe(RECIPES / "mrt.yaml", tuple(fields))
    for one in fits(asked, site).roles:
        change = None if one.fits else nearest_change(one.role, asked, site)
        if change is not None:
            values = (f"{field}={str(value).lower() if isinstance(value, bool) else value}" for field, value in change)
            better = load_recipe(RECIPES / "mrt.yaml", (*fields, *values))
            assert all(other.fits for other in fits(better, site).roles if other.role is one.role)


# -- commands ---------------------------------------------------------------------------------------------------------


def test_plan_tells_memory_in_a_table_and_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = CliRunner().invoke(main, ["plan", "quickstart"], catch_exceptions=False)
    assert "memory of a process at its peak, GiB" in table.output
    assert "sequences of 324 tokens at once" in table.output
    told = CliRunner().invoke(main, ["plan", "quickstart", "--json"], catch_exceptions=False)
    found = json.loads(told.stdout)
    assert [one["name"] for one in found["memory"]["roles"]] == ["inference", "trainer", "evaluation"]
    assert all(one["fits"] for one in found["memory"]["roles"])
    assert found["jobs"][0]["name"] == "prepare"


def test_plan_says_what_submit_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    change = ["--set", "resources.trainer.memory_gib=0.5"]
    printed = CliRunner().invoke(main, ["plan", "quickstart", *change], catch_exceptions=False)
    assert "does not fit, submit will refuse" in printed.output
    refused = CliRunner().invoke(main, ["submit", "quickstart", *change])
    assert refused.exit_code == 2
    assert not (tmp_path / "runs").exists()
