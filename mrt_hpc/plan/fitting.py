"""The nearest change of a recipe with which a role fits its memory. A change is told only where the changed recipe was
seen to fit.
"""

from __future__ import annotations

from itertools import chain, combinations, product
from math import ceil
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from mrt_hpc.errors import UserError
from mrt_hpc.plan.fits import colocated, evaluated_shape, fits, policy_shape, rounded_up
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.evaluation_recipe import EvaluationRecipe
from mrt_hpc.recipe.model_files import divides
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.server_layout import ServerLayout, nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.plan.fits import RoleFit
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.site import SiteSettings

S = TypeVar("S", bound=BaseModel)
Change = tuple[str, object]
"""A field of the recipe, with dots, and its value."""
Changes = tuple[Change, ...]
"""Changes that belong together."""
Knob = tuple[Changes, ...]
"""The ways of changing one thing, the nearest first."""
MOST_CHANGES = 4
"""Fields that are changed at once, at most."""
GROWTH = (2, 4, 8)
MOST_GPUS = 8
"""The GPUs of a node."""
LARGER_SHARES = (0.85, 0.9, 0.95)
"""Shares of the memory that vLLM may take on a GPU of its own."""


def refuse_unfit(recipe: Experiment, site: SiteSettings) -> None:
    """Refuse a recipe whose roles cannot fit the memory that they get.

    Raises:
        UserError: naming the role, what it needs of what, and the nearest change that fits.
    """
    if refused := fits(recipe, site).refused:
        raise unfit(refused[0], recipe, site)


def unfit(role: RoleFit, recipe: Experiment, site: SiteSettings) -> UserError:
    """The error for a role that does not fit."""
    largest = max(role.parts, key=lambda part: role.parts[part] if part != "KV cache" or len(role.parts) == 1 else 0.0)
    change = nearest_change(role, recipe, site)
    words = " ".join(f"--set {field}={_text(value)}" for field, value in change or ())
    return UserError(
        f"{role.name} does not fit: it needs {role.needed:.1f} GiB of the {_place(role)} of a process, "
        f"{role.parts[largest]:.1f} GiB of it for {largest}",
        value=f"{role.needed:.1f} GiB",
        where=f"resources.{role.role}",
        expected=f"at most {role.limit:.1f} GiB: {role.source}",
        advice=words or f"{_shorter(role, recipe)}, a smaller model, or GPUs with more memory",
    )


def _shorter(role: RoleFit, recipe: Experiment) -> str:
    """The fields to change where no change was found that is sure to help."""
    if role.role is Role.EVALUATION:
        return "a lower evaluation.max_tokens"
    spans = role.role is Role.INFERENCE and recipe.resources.inference.gpus > 0 and not colocated(recipe)
    return "a lower sampling.max_tokens" + (", more resources.inference.nodes" if spans else "")


def _place(role: RoleFit) -> str:
    return "GPU memory" if role.place == "GPU" else "memory"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def nearest_change(role: RoleFit, recipe: Experiment, site: SiteSettings) -> Changes | None:
    """The fewest changes with which all of a role fits, the nearest ones first; None where none was found."""
    knobs = [knob for knob in _knobs(role, recipe, site) if knob]
    for count in range(1, min(MOST_CHANGES, len(knobs)) + 1):
        for chosen in combinations(knobs, count):
            for parts in product(*chosen):
                change = tuple(chain.from_iterable(parts))
                if _fits(role.role, changed(recipe, change), site):
                    return change
    return None


def _fits(role: Role, recipe: Experiment, site: SiteSettings) -> bool:
    """Whether a recipe is valid, and a role of it fits."""
    if isinstance(recipe, Recipe) and recipe.training.offload_optimizer and recipe.training.zero_stage == 0:
        return False
    return all(one.fits for one in fits(recipe, site).roles if one.role is role)


def changed(recipe: S, change: Changes) -> S:
    """A recipe with other values in some fields."""
    for field, value in change:
        recipe = _with(recipe, field.split("."), value)
    return recipe


def _with(section: S, path: list[str], value: object) -> S:
    inner = value if len(path) == 1 else _with(getattr(section, path[0]), path[1:], value)
    return section.model_copy(update={path[0]: inner})


def _knobs(role: RoleFit, recipe: Experiment, site: SiteSettings) -> Iterator[Knob]:
    """What may be changed for a role, the nearest first."""
    if role.role is Role.TRAINER and not isinstance(recipe, EvaluationRecipe):
        yield from _trainer_knobs(recipe, site)
    else:
        yield from _server_knobs(role, recipe, site)


def _trainer_knobs(recipe: Recipe, site: SiteSettings) -> Iterator[Knob]:
    training, resources = recipe.training, recipe.resources.trainer
    longest = recipe.algorithm.longest_trained(recipe)
    if not resources.gpus:
        yield _more_memory(Role.TRAINER, recipe, site)
    yield () if training.gradient_checkpointing else _one("training.gradient_checkpointing", True)
    yield () if training.projection == "fused" else _one("training.projection", "fused")
    shorter = training.max_tokens_per_micro_batch > longest
    yield _one("training.max_tokens_per_micro_batch", longest) if shorter else ()
    yield _one("training.zero_stage", *(stage for stage in (2, 3) if stage > training.zero_stage))
    yield _shared_rows(recipe)
    if resources.gpus:
        yield () if training.offload_optimizer else _one("training.offload_optimizer", True)
        yield _more_memory_for_the_host(recipe, site)
    if not colocated(recipe):
        yield _one("resources.trainer.ranks", *(resources.ranks * factor for factor in GROWTH))


def _one(field: str, *values: object) -> Knob:
    """The values that one field may take."""
    return tuple(((field, value),) for value in values)


def _shared_rows(recipe: Recipe) -> Knob:
    """Ranks that share each micro-batch, where they divide the heads."""
    training, ranks, heads = recipe.training, recipe.resources.trainer.ranks, policy_shape(recipe).heads
    packed: Changes = (("training.batching", "packed"),) if training.batching == "padded" else ()
    wider = (training.sequence_parallel * factor for factor in GROWTH)
    return tuple(
        (*packed, ("training.sequence_parallel", parts)) for parts in wider if not (ranks % parts or heads % parts)
    )


def _more_memory(role: Role, recipe: Experiment, site: SiteSettings) -> Knob:
    """As much memory as the role's processes need."""
    source = f"resources.{role}.memory_gib"
    needed = [one.needed for one in fits(recipe, site).roles if one.source == source]
    return _one(source, float(rounded_up(max(needed)))) if needed else ()


def _more_memory_for_the_host(recipe: Recipe, site: SiteSettings) -> Knob:
    """As much memory of the node as the trainer needs there: as it is, and with an offloaded optimiser."""
    offloaded = changed(recipe, (("training.offload_optimizer", True),))
    lacking = [one for one in (recipe, offloaded) if not _fits_its_node(one, site)]
    return tuple(dict.fromkeys(chain.from_iterable(_more_memory(Role.TRAINER, one, site) for one in lacking)))


def _fits_its_node(recipe: Recipe, site: SiteSettings) -> bool:
    return all(one.fits for one in fits(recipe, site).roles if one.place == "memory")


def _server_knobs(role: RoleFit, recipe: Experiment, site: SiteSettings) -> Iterator[Knob]:
    resources = getattr(recipe.resources, str(role.role))
    if not resources.gpus:
        grown = _larger_cache(role, recipe, site)
        yield grown
        yield _more_memory(role.role, changed(recipe, grown[0]) if grown else recipe, site)
        return
    current = recipe.serving.gpu_memory_utilization
    yield _one("serving.gpu_memory_utilization", *(share for share in LARGER_SHARES if share > current))
    yield _more_memory(role.role, recipe, site)
    if not colocated(recipe) and nodes_of(resources) == 1:
        yield _more_gpus(role.role, recipe, resources.gpus)


def _larger_cache(role: RoleFit, recipe: Experiment, site: SiteSettings) -> Knob:
    """A cache without a GPU that holds one longest sequence, of the server that lacks most."""
    roles = (one for one in fits(recipe, site).roles if one.role is role.role)
    lacking = [one.share for one in roles if one.source == "serving.kv_cache_gib"]
    return (
        _one("serving.kv_cache_gib", float(rounded_up(max(lacking) * recipe.serving.kv_cache_gib))) if lacking else ()
    )


def _more_gpus(role: Role, recipe: Experiment, gpus: int) -> Knob:
    """More GPUs for each server, where they divide the heads."""
    now, shape = ServerLayout.of(recipe.serving, gpus).tensor_parallel, evaluated_shape(recipe)
    wider = [now * factor for factor in GROWTH if divides(now * factor, shape.heads, shape.kv_heads)]
    found = [(width, _gpus_for(role, recipe, width)) for width in wider]
    return tuple(
        (("serving.tensor_parallel", width), *counts)
        for width, counts in found
        if all(count <= MOST_GPUS for _, count in counts)
    )


def _gpus_for(role: Role, recipe: Experiment, width: int) -> tuple[tuple[str, int], ...]:
    """The GPUs of each role whose number has to change for servers of so many each, that of ``role`` first: as many
    servers as the recipe states, or as few GPUs more as leave none without a server.
    """
    found = []
    for one in (role, *(other for other in (Role.INFERENCE, Role.EVALUATION) if other is not role)):
        gpus = getattr(recipe.resources, str(one)).gpus
        needed = width * (recipe.serving.servers or ceil(gpus / width))
        if gpus and needed != gpus:
            found.append((f"resources.{one}.gpus", needed))
    return tuple(found)
