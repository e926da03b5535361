"""The first job: publishes weights version 0, of the small world or a user's Hugging Face directory."""

import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from mrt_hpc.domains.domain import domain_of
from mrt_hpc.errors import Advice, UserError, nearest
from mrt_hpc.recipe.choices import Precision
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import HuggingFaceModel
from mrt_hpc.roles.prepare_checks import check_prompts, check_tokenizer, name_faulty_golds
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.atomic import sync_names
from mrt_hpc.run.events import EventKind, Use
from mrt_hpc.run.manifest import MANIFEST, DamagedError, verify
from mrt_hpc.run.pins import release
from mrt_hpc.run.safetensors_file import refuse_not_finite
from mrt_hpc.run.weights import publish, take_over

log = logging.getLogger(__name__)


def run(task: Task) -> None:
    task.spend(Use.PREPARING)
    if not task.experiment.trains:
        publish_models(task)
        return
    if task.layout.weights_version(0).exists():
        log.info("weights version 0 is there already")
        return
    check_prover_model(task)
    name_faulty_golds(task)
    model = task.recipe.model
    if isinstance(model, HuggingFaceModel):
        publish_copy(task, 0, Path(model.path), "model.path")
        return
    start = domain_of(model).starting_model
    check_prompts(task, start)
    publish_checked(task, 0, start, model.type)


def publish_models(task: Task) -> None:
    """Publish each model of a separate evaluation as the version of its number, unless it exists."""
    models = task.experiment.models
    missing = [i for i in range(len(models)) if not task.layout.weights_version(i).exists()]
    if missing:
        name_faulty_golds(task)
    for number in missing:
        model = models[number]
        if not Path(model.path).is_dir():
            raise UserError(
                f"model {model.name} is not there",
                value=model.path,
                expected="a model directory; the run that was to publish it has ended without it, or removed it",
                advice=Advice("mrt-hpc status {run}", run=model.run)
                if model.run
                else Advice("ls {parent}", parent=Path(model.path).parent),
            )
        publish_copy(task, number, Path(model.path), f"models.{number}.path", trained=False)
    task.retry(lambda: sync_names(task.layout.weights), "syncing the weights")  # those of a killed attempt, too
    release(task.experiment, task.layout)  # these weights are in this run now, and their training may remove them


def publish_copy(task: Task, version: int, source: Path, field: str, *, trained: bool = True) -> None:
    """Check a model directory's files and prompts, and publish it as a weights version; ``field`` of the recipe names
    it.
    """
    check_architecture(source, field, trained=trained)
    if (source / MANIFEST).exists():  # a weights version of another run
        task.retry(lambda: verify(source, anywhere=True), f"reading {source}")
    if trained:
        check_training(source, field, task.recipe)
    check_tokenizer(task.experiment, source, field)
    check_prompts(task, source)
    publish_checked(task, version, source, str(source))


def publish_checked(task: Task, version: int, source: Path, name: str) -> None:
    task.retry(
        lambda: publish(task.layout, version, lambda directory: copy_model(source, directory), source=name),
        f"weights version {version}",
    )
    task.events.emit(EventKind.PUBLISHED, version=version)


def check_prover_model(task: Task) -> None:
    """Refuse a prover with an unknown architecture, a lossy tokenizer or weights that are not finite."""
    prover = task.recipe.prover
    if prover is not None and prover.model is not None:
        check_architecture(Path(prover.model), "prover.model", trained=False)
        check_tokenizer(task.recipe, Path(prover.model), "prover.model")
        check_finite(Path(prover.model), Path(prover.model))


def check_architecture(directory: Path, field: str, *, trained: bool) -> None:
    """Refuse an architecture that the installed vLLM, or for a ``trained`` model transformers, does not know."""
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
    """Refuse a model that would be trained otherwise than sampled, before a GPU is asked for: by file headers and a
    small model with its options.
    """
    from mrt_hpc.training.agreement import require_agreement
    from mrt_hpc.training.policy import Kernels, load_policy, model_config, refuse_other_tensors
    from mrt_hpc.training.small_model import make_small

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
        require_agreement(policy, recipe.algorithm.cost(recipe, 0).longest, directory, field=field)


def copy_model(source: Path, directory: Path) -> None:
    """Another run's manifest is left out: the new version gets its own. Refuses weights that are not finite."""
    take_over(source, directory, without=(MANIFEST,))
    check_finite(directory, source)


def check_finite(directory: Path, source: Path) -> None:
    try:
        refuse_not_finite(directory)
    except DamagedError as damage:
        raise UserError(
            f"the model cannot be used: {damage.what}",
            where=source,
            expected="weights that are finite numbers",
            advice="fetch the model again (mrt-hpc model fetch NAME), or take another one",
        ) from damage
