"""A shape is what a run may use at a time, such as one GPU. ``--shape NAME`` lays it over a recipe: it states GPUs and
time limits, and what follows is computed here. It has no number of the method.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from math import ceil
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.plan.compile import build_plan
from mrt_hpc.plan.hours import Throughput, expected_hours, throughput
from mrt_hpc.plan.whole_nodes import set_fields
from mrt_hpc.recipe.base import Count, require_kind
from mrt_hpc.recipe.find import SHAPES, find
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.recipe.sections import Coupling
from mrt_hpc.recipe.site import SiteSettings
from mrt_hpc.recipe.source import read_source
from mrt_hpc.recipe.validate import validate
from mrt_hpc.run.layout import is_collection

NODE_GPUS = 8
USED_SHARE = 0.9
"""Of a time limit that a job may be expected to take."""
REFERENCE_SITE = SiteSettings(type="reference", name="reference")
"""An A100's stated rates decide how much fits into a job, so that a shape makes one run of a recipe everywhere,
whatever profiles a user has.
"""
MOST_PARTS = 1000
"""Parts that work is divided into before it counts as too large."""
SEGMENT, TASKS = "schedule.iterations_per_job", "resources.inference.tasks"


class Shape(BaseModel):
    """The GPUs of a run, and the fields of a recipe that are the same for all recipes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpus: Count
    """The GPUs that inference and trainers use at a time."""
    collection: dict[str, Any] = Field(default_factory=dict)
    """Fields of ``resources.inference`` in recipes that sample before they train and never then."""
    training: dict[str, Any] = Field(default_factory=dict)
    schedule: dict[str, Any] = Field(default_factory=dict)
    evaluation: dict[str, Any] = Field(default_factory=dict)
    resources: dict[str, Any] = Field(default_factory=dict)


def load_shape(name: str) -> Shape:
    """Read a shape by its path or name."""
    source = read_source(find(SHAPES, name), advice=Advice("mrt-hpc recipes list"))
    return validate(source, Shape, source.data)


def shape_changes(name: str, load: Callable[[tuple[str, ...]], Experiment], own: tuple[str, ...]) -> tuple[str, ...]:
    """The changes that lay a shape over a recipe, and then the user's own.

    Args:
        load: the recipe with changes, as ``training.learning_rate=2e-6``.
    own: the user's changes, which come last.
    """
    shape, recipe = load_shape(name), load(own)
    if not isinstance(recipe, Recipe):
        raise UserError(
            "an evaluation on its own has no shape",
            value=name,
            where="--shape",
            advice=Advice("mrt-hpc plan RECIPE --shape {name}", name=name),
        )
    if not recipe.resources.trainer.gpus:
        what = "a shape divides GPUs, and the recipe uses none"
        raise UserError(what, value=name, where="--shape", advice=Advice("leave --shape {name} out", name=name))
    stated = [*_fields(shape.model_dump(exclude={"gpus", "collection"}))]
    if _samples_before(recipe):
        stated += _fields(shape.collection, "resources.inference.")
    stated += _divide_gpus(recipe, shape)
    set_by_user = {change.partition("=")[0].strip() for change in own}
    return (*stated, *_fit_times(require_kind(load((*stated, *own)), Recipe), set_by_user), *own)


def _fields(section: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{above}{name}.")
        else:
            yield f"{above}{name}={json.dumps(value)}"


def _samples_before(recipe: Recipe) -> bool:
    """Whether inference samples before training only."""
    return recipe.algorithm.collects and not recipe.algorithm.samples_rollouts


def _divide_gpus(recipe: Recipe, shape: Shape) -> Iterator[str]:
    """Tasks and ranks that share the GPUs: half each, where both work at a time."""
    trainer, inference = recipe.resources.trainer, recipe.resources.inference
    coupling = shape.schedule.get("coupling", recipe.schedule.coupling)
    rollouts = recipe.algorithm.samples_rollouts
    share = shape.gpus // 2 if rollouts and coupling == Coupling.CONCURRENT else shape.gpus
    ranks = max(share // trainer.gpus, 1)
    yield f"resources.trainer.ranks={ranks}"
    if share > NODE_GPUS:
        yield f"resources.trainer.ranks_per_node={NODE_GPUS // trainer.gpus}"
    if rollouts and coupling == Coupling.COLOCATED:
        yield f"{TASKS}=1"
        yield f"resources.inference.gpus={ranks * trainer.gpus}"
    elif recipe.samples_traces:
        tasks = max(share // (inference.gpus * inference.nodes), 1)
        yield f"{TASKS}={tasks}"
        if _samples_before(recipe):  # with more tasks, which take turns
            yield f"resources.inference.max_parallel={tasks}"


def _fit_times(recipe: Recipe, set_by_user: set[str]) -> Iterator[str]:
    """A collection's tasks and a job's iterations that end within the time limit."""
    if _samples_before(recipe) and TASKS not in set_by_user:
        at_once = recipe.resources.inference.tasks
        tasks = (at_once * parts for parts in range(1, MOST_PARTS))
        yield _first_fitting(recipe, TASKS, tasks, is_collection)
    if SEGMENT not in set_by_user:
        yield _first_fitting(recipe, SEGMENT, _segments(recipe), lambda iteration: not is_collection(iteration))


def _segments(recipe: Recipe) -> Iterator[int]:
    """A job's iterations: the recipe's, then ever fewer, so that all jobs have about as many."""
    iterations, own, every = recipe.iterations, recipe.schedule.iterations_per_job, recipe.algorithm.refresh_period
    fewer = (ceil(iterations / jobs) for jobs in range(ceil(iterations / own), iterations + 1))
    return (size for size in dict.fromkeys((own, *fewer)) if every is None or every % size == 0)


def _first_fitting(recipe: Recipe, field: str, values: Iterable[int], counts: Callable[[int], bool]) -> str:
    """The first value with which the jobs of the counted iterations end in time."""
    rates = throughput(recipe, REFERENCE_SITE)
    if rates is not None:
        for value in values:
            if _ends_in_time(set_fields(recipe, ((field, value),)), rates, counts):
                return f"{field}={value}"
    raise UserError(
        "it is not known how long an iteration takes" if rates is None else "no number fits into the jobs of the shape",
        where=field,
        value=recipe.name,
        advice=Advice("--set {field}=N beside --shape, or a longer time limit in a copy of the shape", field=field),
    )


def _ends_in_time(recipe: Recipe, rates: Throughput, counts: Callable[[int], bool]) -> bool:
    plan = build_plan(recipe, max_array_size=None)
    expected = expected_hours(plan, recipe, rates)
    limits = {
        j.name: USED_SHARE * j.resources.time_limit_minutes for j in plan.jobs if any(map(counts, j.iterations[:1]))
    }
    return all(name in expected and expected[name].longest * 60 <= limit for name, limit in limits.items())
