"""The strict base model of recipes and site profiles, and their checked kinds of numbers and texts."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
"""Iterations, steps, and problems, rollouts and branches of one: more are a mistake, and no run ends with them."""
NotNegative = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
NumberFormat = Literal["float32", "bfloat16", "float16"]
"""Number formats of weights and activations."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
OPTION = r"^[a-z][a-z0-9-]*$"
PATTERNS = {
    NAME: "letters, digits, dots, underscores and hyphens: 64 at most, the first a letter or a digit",
    VARIABLE: "letters, digits and underscores, the first no digit",
    OPTION: "small letters, digits and hyphens, the first a letter: an option of sbatch without its two hyphens",
}
"""The patterns that texts are checked with, in words."""
Name = Annotated[str, Field(pattern=NAME)]
"""Names become parts of paths and job names, hence no spaces and no slashes."""


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise PydanticCustomError(
            "control_character", "one line of text, without a line break or another control character"
        )
    return text


Line = Annotated[str, AfterValidator(_one_line)]
"""Text within a line of a job script; a line break would put the rest on a line of its own."""


def misfit(field: str, reason: str, fits: str | None = None) -> PydanticCustomError:
    """The refusal of a combination.

    Args:
        field: the field to change first, with dots.
        reason: the values that the field may have, and why.
        fits: a value of the field that removes this refusal, as YAML; None where it is not known.
    """
    return PydanticCustomError("misfit", "{reason}", {"field": field, "reason": reason, "fits": fits})


class Section(BaseModel):
    """A part of a recipe: immutable, with no unknown fields, each field documented by the text under it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


K = TypeVar("K")


def as_kind(section: Section, kind: type[K]) -> K:
    """Return a section as the class of a higher layer that it must be.

    Raises:
        TypeError: its class is not a subclass of ``kind``.
    """
    if not isinstance(section, kind):
        raise TypeError(f"{type(section).__name__} is not a subclass of {kind.__module__}.{kind.__name__}")
    return section
