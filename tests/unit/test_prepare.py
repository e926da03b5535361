"""Weights version 0 is taken from a model directory, which may be a weights version of another run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from mrt_hpc.launch.create import create_or_open
from mrt_hpc.launch.placement import Placement
from mrt_hpc.launch.task import load_task
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.errors import UserError
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.site import LocalSite
from mrt_hpc.roles import prepare
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import DamagedError, verify
from mrt_hpc.run.weights import publish
from mrt_hpc.world.tokenizer import build_tokenizer

if TYPE_CHECKING:
    from mrt_hpc.roles.task import Task

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
FILES = ("chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def fill(directory: Path) -> None:
    build_tokenizer().save_pretrained(directory)
    (directory / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    save_file({"weight": np.zeros(4, dtype=np.float32)}, directory / "model.safetensors")


def task_from(model: Path, run: Path) -> Task:
    recipe = load_recipe(QUICKSTART, (f"model={{type: hugging_face, path: {model}}}",))
    create_or_open(run, recipe, compile_plan(recipe, LocalSite()))
    return load_task(RunLayout(run), "prepare", 0, Placement(0, 1, 0, "a"))


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A weights version of another run."""
    layout = RunLayout(tmp_path / "other")
    publish(layout, 12, fill)
    return layout.weights_version(12)


def test_a_run_starts_from_a_weights_version_of_another(other: Path, tmp_path: Path) -> None:
    task = task_from(other, tmp_path / "run")
    prepare.run(task)
    manifest = verify(task.layout.weights_version(0))
    assert sorted(manifest.files) == sorted(FILES)
    assert manifest.about["source"] == str(other)


def test_a_damaged_weights_version_of_another_run_is_refused(other: Path, tmp_path: Path) -> None:
    save_file({"weight": np.ones(4, dtype=np.float32)}, other / "model.safetensors")
    task = task_from(other, tmp_path / "run")
    with pytest.raises(DamagedError, match="differs from the manifest"):
        prepare.run(task)
    assert not task.layout.weights_version(0).exists()


def test_a_model_whose_tokenizer_loses_spaces_is_refused_before_anything_is_sampled(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    fill(model)
    lossy = json.loads((model / "tokenizer.json").read_text()) | {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": ""}
    }
    (model / "tokenizer.json").write_text(json.dumps(lossy))
    task = task_from(model, tmp_path / "run")
    with pytest.raises(UserError, match="the tokenizer does not bring back a text whole"):
        prepare.run(task)
    assert not task.layout.weights_version(0).exists()


def test_an_architecture_that_the_installed_packages_do_not_know_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchForCausalLM"]}')
    with pytest.raises(UserError, match="transformers and vLLM as installed here do not know"):
        prepare.check_architecture(tmp_path)
