"""The nearest change of a recipe with which a role fits its memory. A change is told only where the changed recipe was
seen to fit.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from mrt_hpc.errors import UserError
from mrt_hpc.plan.fits import fits, policy_shape, rounded_up
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.batching import Batching
from mrt_hpc.recipe.evaluation_recipe import EvaluationRecipe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.plan.fits import RoleFit
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.recipe.site import SiteSettings

S = TypeVar("S", bound=BaseModel)
Change = tuple[str, object]
"""A field of the recipe, with dots, and its value."""
Knob = tuple[Change, ...]
"""The values that a field may take, the nearest first."""
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
        advice=words or "a smaller model, shorter sequences, or GPUs with more memory",
    )


def _place(role: RoleFit) -> str:
    return "GPU memory" if role.place == "GPU" else "memory"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def nearest_change(role: RoleFit, recipe: Experiment, site: SiteSettings) -> tuple[Change, ...] | None:
    """The fewest changes with which all of a role fits, the nearest ones first; None where none was found."""
    knobs = [knob for knob in _knobs(role, recipe, site) if knob]
    for count in range(1, min(MOST_CHANGES, len(knobs)) + 1):
        for chosen in combinations(knobs, count):
            for change in product(*chosen):
                if _fits(role.role, changed(recipe, change), site):
                    return change
    return None


def _fits(role: Role, recipe: Experiment, site: SiteSettings) -> bool:
    if isinstance(recipe, EvaluationRecipe):
        return all(one.fits for one in fits(recipe, site).roles if one.role is role)
    training = recipe.training
    is_valid = training.zero_stage > 0 or not training.offload_optimizer
    shares = training.sequence_parallel == 1 or training.batching is not Batching.PADDED
    divides = recipe.resources.trainer.ranks % training.sequence_parallel == 0
    return is_valid and shares and divides and all(one.fits for one in fits(recipe, site).roles if one.role is role)


def changed(recipe: Experiment, change: tuple[Change, ...]) -> Experiment:
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
    yield () if training.gradient_checkpointing else (("training.gradient_checkpointing", True),)
    yield () if training.projection == "fused" else (("training.projection", "fused"),)
    shorter = training.max_tokens_per_micro_batch > longest
    yield (("training.max_tokens_per_micro_batch", longest),) if shorter else ()
    yield tuple(("training.zero_stage", stage) for stage in (2, 3) if stage > training.zero_stage)
    if resources.gpus:
        yield () if training.offload_optimizer else (("training.offload_optimizer", True),)
        yield _more_memory_for_the_host(recipe, site)
        yield (("training.batching", "packed"),) if training.batching is Batching.PADDED else ()
        wider = (n for n in GROWTH if n > training.sequence_parallel)
        yield tuple(("training.sequence_parallel", n) for n in wider if policy_shape(recipe).heads % n == 0)
    yield tuple(("resources.trainer.ranks", resources.ranks * factor) for factor in GROWTH)


def _more_memory(role: Role, recipe: Experiment, site: SiteSettings) -> Knob:
    """As much memory as the role's processes need."""
    needed = [one.needed for one in fits(recipe, site).roles if one.role is role and one.source.endswith("memory_gib")]
    return ((f"resources.{role}.memory_gib", float(rounded_up(max(needed, default=0.0)))),) if needed else ()


def _more_memory_for_the_host(recipe: Recipe, site: SiteSettings) -> Knob:
    """As much memory of the node as an offloaded optimiser needs."""
    offloaded = changed(recipe, (("training.offload_optimizer", True),))
    values = _more_memory(Role.TRAINER, offloaded, site)
    return tuple((field, value) for field, value in values if _number(value) > recipe.resources.trainer.memory_gib)


def _number(value: object) -> float:
    assert isinstance(value, float)
    return value


def _server_knobs(role: RoleFit, recipe: Experiment, site: SiteSettings) -> Iterator[Knob]:
    resources = getattr(recipe.resources, str(role.role))
    if not resources.gpus:
        cache = [one.needed for one in fits(recipe, site).roles if one.source == "serving.kv_cache_gib"]
        share = getattr(getattr(recipe, "prover", None), "memory_share", 1.0)
        larger = float(rounded_up(max(cache, default=0.0) / min(share, 1.0 - share or 1.0)))
        grown = (("serving.kv_cache_gib", larger),) if cache else ()
        yield grown
        yield _more_memory(role.role, changed(recipe, grown), site)
        return
    current = recipe.serving.gpu_memory_utilization
    yield tuple(("serving.gpu_memory_utilization", share) for share in LARGER_SHARES if share > current)
    more = (resources.gpus * factor for factor in GROWTH)
    yield tuple((f"resources.{role.role}.gpus", gpus) for gpus in more if gpus <= MOST_GPUS)
