"""The first sampled group checks the trainer's policy: real groups of vLLM, and a trainer that holds other weights."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, task_in
from safetensors.torch import load_file, save_file

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.tracking import Tracker
from mrt_hpc.roles.trainer import Trainer
from mrt_hpc.roles.training.sampler_agreement import LIMIT_16_BITS, LIMIT_32_BITS, limit_of
from mrt_hpc.run.archive import read_sampled, sampled_positions
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import MANIFEST
from mrt_hpc.run.weights import publish, take_over
from mrt_hpc.training.rendezvous import Ranks


def negate_a_layer(model: Path) -> None:
    """Change one weight, as where a loader misses it."""
    tensors = load_file(model / "model.safetensors")
    name = next(name for name in tensors if name.endswith("layers.1.self_attn.o_proj.weight"))
    tensors[name] = -tensors[name]
    (model / "model.safetensors").unlink()  # a link to the file of the other run
    save_file(tensors, model / "model.safetensors", {"format": "pt"})


def trainer_of(
    run: Path, quickstart: RunLayout, one_rank: Ranks, tamper: Callable[[Path], None], *changes: str
) -> Trainer:
    """A trainer before its first update, with the first group of a run that was really sampled."""
    task = task_in(run, load_recipe(ROOT / "recipes" / "quickstart.yaml", changes), "segment-000.trainer")
    layout = task.layout

    def write(directory: Path) -> None:
        take_over(quickstart.weights_version(0), directory, without=(MANIFEST,))
        tamper(directory)

    publish(layout, 0, write)
    first = min(sampled_positions(quickstart, 0))
    commit_group(layout.group(0, first), read_sampled(quickstart, 0, first))
    return Trainer.resume_from_checkpoint(task, one_rank, Tracker())


def test_the_policy_that_sampled_is_the_trainers(
    quickstart: RunLayout, one_rank: Ranks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = trainer_of(tmp_path / "run", quickstart, one_rank, lambda _: None)
    with caplog.at_level(logging.INFO), trainer.task.shutdown.defer_to_safe_points():
        trainer.go_on()
    assert "the trainer's log-probabilities are the sampler's: a disagreement of" in caplog.text
    assert trainer._next() is None, "one group is not the whole iteration, and it is compared once"


@pytest.mark.parametrize("fault", ["weights", "temperature"])
def test_policies_that_differ_make_no_update(
    fault: str, quickstart: RunLayout, one_rank: Ranks, tmp_path: Path
) -> None:
    changes = ("sampling.temperature=0.5", "prover.temperature=0.5") if fault == "temperature" else ()
    tamper = negate_a_layer if fault == "weights" else lambda _: None
    trainer = trainer_of(tmp_path / "run", quickstart, one_rank, tamper, *changes)
    with trainer.task.shutdown.defer_to_safe_points(), pytest.raises(UserError, match="not the sampler's") as refused:
        trainer.go_on()
    assert refused.value.exit_code is ExitCode.FATAL and "no update was made" in str(refused.value)
    assert float(str(refused.value.value)) > LIMIT_16_BITS, "it would be noticed in bfloat16 too"
    assert (trainer.engine.step, trainer.iteration) == (0, 0)
    assert not trainer.task.layout.weights_version(1).exists()
    wanted = str(refused.value).rpartition("--set ")[2]
    again = trainer_of(tmp_path / "again", quickstart, one_rank, tamper, *changes, wanted)
    with again.task.shutdown.defer_to_safe_points():
        again.go_on()  # as the message says


def test_limits_follow_the_number_formats() -> None:
    def limit(version: int, *changes: str) -> float:
        return limit_of(load_recipe(ROOT / "recipes" / "quickstart.yaml", changes), version)

    assert limit(0) == LIMIT_32_BITS and limit(3) == LIMIT_16_BITS, "later versions are published in bfloat16"
    assert limit(3, "training.weights_dtype=float32") == LIMIT_32_BITS
    assert limit(0, "serving.dtype=bfloat16") == limit(0, "training.precision=bf16_autocast") == LIMIT_16_BITS
    assert limit(3, "resilience.sampler_disagreement=0.3") == 0.3
