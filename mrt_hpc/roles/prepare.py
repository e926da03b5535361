"""The first job: it publishes weights version 0, the small world's model or a Hugging Face directory of the user."""

import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.errors import UserError, nearest, word
from mrt_hpc.recipe.choices import Precision
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import HuggingFaceModel
from mrt_hpc.roles.prepare_checks import check_prompts, check_tokenizer, name_unreadable
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.atomic import sync_names
from mrt_hpc.run.events import EventKind, Use
from mrt_hpc.run.manifest import MANIFEST, DamagedError, verify
from mrt_hpc.run.safetensors_file import refuse_not_finite
from mrt_hpc.run.weights import publish, refuse_delta, release, take_over

log = logging.getLogger(__name__)


def run(task: Task) -> None:
    """Publish weights version 0, unless it is there.

    Raises:
        UserError: the model's architecture is not known here, its tokenizer loses text, or a prompt is too long.
    """
    task.spend(Use.PREPARING)
    if not task.experiment.trains:
        publish_models(task)
        return
    if task.layout.weights_version(0).exists():
        log.info("weights version 0 is there already")
        return
    check_prover_model(task)
    name_unreadable(task)
    model = task.recipe.model
    if isinstance(model, HuggingFaceModel):
        publish_copy(task, 0, Path(model.path), "model.path")
        return
    check_prompts(task, STARTING_MODEL)
    publish_checked(task, 0, STARTING_MODEL, "small_world")


def publish_models(task: Task) -> None:
    """Publish each model of an evaluation on its own as the weights version of its number, unless that is there.

    Raises:
        UserError: a model is not there, is not known here, or loses text; or a prompt is too long.
    """
    models = task.experiment.models
    missing = [i for i in range(len(models)) if not task.layout.weights_version(i).exists()]
    if missing:
        name_unreadable(task)
    for number in missing:
        model = models[number]
        if not Path(model.path).is_dir():
            raise UserError(
                f"model {model.name} is not there",
                value=model.path,
                expected="a model directory; the run that was to publish it has ended without it, or removed it",
                advice=f"mrt-hpc status {model.run}" if model.run else f"ls {word(Path(model.path).parent)}",
            )
        publish_copy(task, number, Path(model.path), f"models.{number}.path", trained=False)
    task.retrying(lambda: sync_names(task.layout.weights), "syncing the weights")  # those of a killed attempt, too
    release(task.experiment, task.layout)  # these weights are in this run now, and their training may remove them


def publish_copy(task: Task, version: int, source: Path, field: str, *, trained: bool = True) -> None:
    """Publish a model directory as a weights version, after its files and its prompts were checked.

    Args:
        task: of the first job.
        version: the number of the weights version.
        source: the model directory.
        field: of the recipe that names it.
        trained: whether the trainer loads it too.

    Raises:
        UserError: the model's architecture is not known here, or is not trained as it is; its tokenizer loses text; or
            a prompt is too long.
    """
    refuse_delta(source)
    check_architecture(source, field, trained=trained)
    if (source / MANIFEST).exists():  # a weights version of another run
        task.retrying(lambda: verify(source, anywhere=True), f"reading {source}")
    if trained:
        check_training(source, field, task.recipe)
    check_tokenizer(task.experiment, source, field)
    check_prompts(task, source)
    publish_checked(task, version, source, str(source))


def publish_checked(task: Task, version: int, source: Path, name: str) -> None:
    """Publish a model directory, whose files and prompts were checked, under the source's ``name``.

    Raises:
        UserError: its weights are not finite.
    """
    task.retrying(
        lambda: publish(task.layout, version, lambda directory: copy_model(source, directory), source=name),
        f"weights version {version}",
    )
    task.events.emit(EventKind.PUBLISHED, version=version)


def check_prover_model(task: Task) -> None:
    """Refuse a prover model that cannot be used.

    Raises:
        UserError: its architecture is not known here, its tokenizer loses text, or its weights are not finite.
    """
    prover = task.recipe.prover
    if prover is not None and prover.model is not None:
        check_architecture(Path(prover.model), "prover.model", trained=False)
        check_tokenizer(task.recipe, Path(prover.model), "prover.model")
        check_finite(Path(prover.model), Path(prover.model))


def check_architecture(directory: Path, field: str, *, trained: bool) -> None:
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
        guess = nearest(named[0], set.intersection(*known.values())) if named else None
        raise UserError(
            f"this architecture is no causal language model known to {' and '.join(strangers)} as installed here",
            value=named,
            where=f"{field}, {directory / 'config.json'}, architectures",
            expected="a name that vLLM and, for training, transformers register"
            + (f"; the nearest is {guess}" if guess else ""),
            advice="take another model, or an environment with versions that know it",
        )


def check_training(directory: Path, field: str, recipe: Recipe) -> None:
    """Refuse a model that would not be trained as it is sampled, before a GPU is asked for: by the headers of its
    files, and by a small model with its options. The trainer checks the model itself, with its weights.

    Args:
        directory: of the model.
        field: of the recipe that names it.
        recipe: the run's.

    Raises:
        UserError: naming the tensors that are missing or unknown, or what is not computed as the model does.
    """
    from mrt_hpc.training.agreement import make_small, settle
    from mrt_hpc.training.policy import Kernels, load_policy, model_config, refuse_other_tensors

    config = model_config(directory)
    refuse_other_tensors(directory, config)
    with TemporaryDirectory() as scratch:
        small = Path(scratch)
        try:
            make_small(config, small)
        except Exception as error:  # a model of any kind, of sizes that its class may not take
            log.warning("this model has no small form, so the trainer's start is its first check: %r", error)
            return
        policy = load_policy(small, 1.0, Precision.FP32, kernels=Kernels.of(recipe.training))
        settle(policy, recipe.algorithm.longest_trained(recipe), directory, field=field)


def copy_model(source: Path, directory: Path) -> None:
    """Take a model over. The manifest of another run's weights version stays behind: the new version gets its own.

    Raises:
        UserError: its weights are not finite.
    """
    take_over(source, directory, without=(MANIFEST,))
    check_finite(directory, source)


def check_finite(directory: Path, source: Path) -> None:
    """Refuse a model of which a number is not finite.

    Args:
        directory: of its files.
        source: the place that an error names.

    Raises:
        UserError: one is NaN or infinite.
    """
    try:
        refuse_not_finite(directory)
    except DamagedError as damage:
        raise UserError(
            f"the model cannot be used: {damage.what}",
            where=source,
            expected="weights that are finite numbers",
            advice="fetch the model again (mrt-hpc model fetch NAME), or take another one",
        ) from damage
