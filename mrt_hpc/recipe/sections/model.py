"""The starting policy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mrt_hpc.recipe.base import Count, PathText, Section


class HuggingFaceModel(Section):
    """A model directory in Hugging Face format, with its tokenizer."""

    type: Literal["hugging_face"] = "hugging_face"
    path: PathText
    """The model directory, with config.json, tokenizer and safetensors; a relative path starts at the recipe's folder.
    Or ``hub:OWNER/NAME@REVISION``, a model that ``mrt-hpc model fetch`` has put into the hub's cache. A run downloads
    nothing.
    """


class SmallWorldModel(Section):
    """The embedded small model, made and warm-started by the run's first job; needs neither network nor GPU."""

    type: Literal["small_world"] = "small_world"
    warm_start_steps: Count | None = None
    """The number of optimiser steps of the supervised warm start; null takes the small world's own number."""
    answer_forms: Count = 1
    """The number of ways in which the model learns to write an answer (7, 8-1, 9-2, ...). With more than one, only a
    verifier knows which texts are right.
    """


Model = Annotated[HuggingFaceModel | SmallWorldModel, Field(discriminator="type")]
