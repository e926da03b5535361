"""Every number of a recipe and of a site profile has a range that no sensible use leaves, and is refused in words."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.field_docs import models_of, whole_annotation
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.schema import EvaluationRecipe, Recipe
from mrt_hpc.recipe.site import SITES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel


ROOT = Path(__file__).parents[2]


def models_below(*models: type[BaseModel]) -> set[type[BaseModel]]:
    found: set[type[BaseModel]] = set()
    left = [*models]
    while left:
        if (model := left.pop()) not in found:
            found.add(model)
            left += [below for field in model.model_fields.values() for below in models_of(whole_annotation(field))]
    return found


MODELS = sorted(models_below(Recipe, EvaluationRecipe, *SITES.classes), key=lambda model: model.__name__)


def numbers(annotation: Any, limits: tuple[Any, ...] = ()) -> Iterator[tuple[type, tuple[Any, ...]]]:
    """The kinds of numbers in an annotation, each with its constraints."""
    if annotation in (int, float):
        yield annotation, limits
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) is Annotated:
        own = [one for each in inner[1:] for one in (each.metadata if isinstance(each, FieldInfo) else [each])]
        yield from numbers(inner[0], (*limits, *own))
    elif typing.get_origin(annotation) is not typing.Literal:
        for one in inner:
            yield from numbers(one, limits)


def fields() -> list[Any]:
    return [
        pytest.param(whole_annotation(field), id=f"{model.__name__}.{name}")
        for model in MODELS
        for name, field in model.model_fields.items()
        if [*numbers(whole_annotation(field))]
    ]


def test_the_walk_sees_every_kind_of_section() -> None:
    assert len(fields()) > 100
    assert {"Training", "SlurmSite", "LocalSite", "MeasuredThroughput", "LengthStage"} <= {m.__name__ for m in MODELS}


@pytest.mark.parametrize("annotation", fields())
def test_every_number_has_a_lowest_and_a_highest_value(annotation: Any) -> None:
    for _, limits in numbers(annotation):
        assert any(isinstance(one, Ge | Gt) for one in limits), "no lowest value"
        assert any(isinstance(one, Le | Lt) for one in limits), "no highest value"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "training.learning_rate=1e9",
            "from 1e-12 to 1: The peak learning rate of AdamW. (below it no weight changes, above it none stays)",
        ),
        ("training.betas=[0.9,1]", "with 1 AdamW divides by zero"),
        ("serving.stall_limit_s=1e-300", "less is over at once"),
        ("resilience.heartbeat_limit_s=0.0001", "from 0.05 to 604,800"),
        ("evaluation.temperature=1e6", "from 0 to 10"),
        ("sampling.temperature=1e-9", "below it vLLM"),
        ("serving.max_concurrent_sequences=18446744073709551616", "from 1 to 1,000,000"),
        ("serving.kv_cache_gib=1e300", "no node has more memory"),
        ("resources.trainer.gpus=18446744073709551616", "no node has more"),
        ("sampling.max_prompt_tokens=1000000000000", "no model holds a longer text"),
        ('episodes.markers=["\\t"]', "white space"),
        ("prover.model=/", "the path of a file or folder"),
        ("evaluation.results=' '", "the path of a file or folder"),
    ],
)
def test_a_value_without_sense_is_refused_with_the_range_and_the_reason(setting: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        load_recipe(ROOT / "recipes/quickstart.yaml", [setting])
    assert setting.partition("=")[0] in refused.value.what
    assert words in str(refused.value.expected)
