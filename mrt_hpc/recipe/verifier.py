"""The part of a verifier that the lower layers need: its fields in a recipe, and whether it reads boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mrt_hpc.recipe.base import Section


class VerifierSettings(Section):
    """The fields of a verifier. Subclasses add a ``type``, their own fields, and how an answer is found and judged."""

    reads_boxes: ClassVar[bool] = True
    r"""Whether the answer is in ``\boxed{}``; provers that open a box need this."""

    if TYPE_CHECKING:
        type: str
