"""What every verifier tells the lower floors: its fields in a recipe, and whether its answers stand in boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mrt_hpc.recipe.base import Section


class VerifierSettings(Section):
    """The fields of a verifier. Subclasses add a ``type``, their own fields, and how an answer is found and judged."""

    reads_boxes: ClassVar[bool] = True
    r"""Whether the answer stands in ``\boxed{}``: provers that open a box need that."""

    if TYPE_CHECKING:
        type: str
