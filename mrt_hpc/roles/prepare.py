"""The first job: it makes weights version 0, from the small world or from a Hugging Face directory."""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mrt_hpc.domains.small_world.equations import Habits
from mrt_hpc.domains.small_world.tokenizer import build_tokenizer
from mrt_hpc.domains.small_world.warm_start import WarmStartSettings, warm_start
from mrt_hpc.errors import UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.recipe.schema import HuggingFaceModel, SmallWorldModel
from mrt_hpc.roles.preparation.gold_answers import name_unreadable
from mrt_hpc.roles.preparation.prompt_lengths import check_prompts
from mrt_hpc.roles.preparation.tokenizer_check import check_tokenizer
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.manifest import MANIFEST, verify
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.run.weights import publish

if TYPE_CHECKING:
    from mrt_hpc.roles.task.context import Task

log = logging.getLogger(__name__)


def run(task: Task) -> None:
    """Publish weights version 0, unless it is there.

    Raises:
        UserError: the model's architecture is not known here, its tokenizer loses text, or a prompt is too long.
    """
    if task.layout.weights_version(0).exists():
        log.info("weights version 0 is there already")
        return
    check_prover_model(task)
    name_unreadable(task)
    model = task.recipe.model
    if isinstance(model, HuggingFaceModel):
        source = Path(model.path)
        check_architecture(source, "model.path")
        if (source / MANIFEST).exists():  # a weights version of another run
            task.retrying(lambda: verify(source), f"reading {source}")
        check_prompts(task, check_tokenizer(task.recipe, source, "model.path"))
        task.retrying(
            lambda: publish(task.layout, 0, lambda directory: copy_model(source, directory), source=str(source)),
            "weights version 0",
        )
    else:
        check_prompts(task, small_world_prompter(task))
        task.retrying(
            lambda: publish(task.layout, 0, lambda directory: _warm_start(task, directory), source="small_world"),
            "weights version 0",
        )
    task.events.emit(EventKind.PUBLISHED, version=0)


def small_world_prompter(task: Task) -> Prompter:
    """The prompter of the embedded model before the model is made: its tokenizer is the same at every start."""
    with TemporaryDirectory() as directory:
        build_tokenizer().save_pretrained(directory)
        return Prompter.of(Path(directory), task.recipe.prompt)


def check_prover_model(task: Task) -> None:
    """Refuse a prover model that cannot be used.

    Raises:
        UserError: its architecture is not known here, or its tokenizer loses text.
    """
    prover = task.recipe.prover
    if prover is not None and prover.model is not None:
        check_architecture(Path(prover.model), "prover.model", trained=False)
        check_tokenizer(task.recipe, Path(prover.model), "prover.model")


def check_architecture(directory: Path, field: str, *, trained: bool = True) -> None:
    """Refuse an architecture that the installed transformers or vLLM does not know.

    Args:
        directory: of the model.
        field: of the recipe that names it.
        trained: whether the trainer loads it too, by transformers.

    Raises:
        UserError: naming it, and who does not know it.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TRANSFORMERS
    from vllm import ModelRegistry  # takes seconds to import, and only a model from outside needs it

    named = json.loads((directory / "config.json").read_bytes()).get("architectures") or []
    known = {"vLLM": set(ModelRegistry.get_supported_archs())}
    if trained:
        known["transformers"] = set(TRANSFORMERS.values())
    if strangers := [package for package, names in known.items() if not names & set(named)]:
        raise UserError(
            f"this architecture is no causal language model known to {' and '.join(strangers)} as installed here",
            value=named,
            where=f"{field}, {directory / 'config.json'}, architectures",
            expected="a name that vLLM and, for training, transformers register",
            advice="take another model, or an environment with versions that know it",
        )


def copy_model(source: Path, directory: Path) -> None:
    """Take a model over by hard links where the filesystem allows it, by copies elsewhere.

    The manifest of another run's weights version stays behind: the new version gets its own.

    The links are safe: nothing in a run writes to a weights version, and replacing a file elsewhere leaves the link as
    it was.
    """
    for file in sorted(p for p in source.iterdir() if p.is_file() and not p.name.startswith(".")):
        if file.name == MANIFEST:
            continue
        real = file.resolve()
        try:
            os.link(real, directory / file.name)
        except OSError:  # another filesystem, or one without hard links
            shutil.copy2(real, directory / file.name)


def _warm_start(task: Task, directory: Path) -> None:
    model = task.recipe.model
    assert isinstance(model, SmallWorldModel)  # the caller has checked that
    habits = Habits(answer_forms=model.answer_forms)
    settings = WarmStartSettings(seed=derive_seed(task.recipe.seed, "warm_start"), habits=habits)
    if model.warm_start_steps is not None:
        settings = replace(settings, steps=model.warm_start_steps)
    report = warm_start(settings, directory, log.info)
    log.info("warm start: %s", report)
