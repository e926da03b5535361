"""The starting policy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mrt_hpc.recipe.base import PathText, Section


class HuggingFaceModel(Section):
    """A model directory in Hugging Face format, with its tokenizer."""

    type: Literal["hugging_face"] = "hugging_face"
    path: PathText
    """The model directory, with config.json, tokenizer and safetensors; a relative path starts at the recipe's folder.
    Or ``hub:OWNER/NAME@REVISION``, a model that ``mrt-hpc model fetch`` has put into the hub's cache. A run downloads
    nothing.
    """


class SmallWorldModel(Section):
    """The small model that comes with the package; needs neither network nor GPU."""

    type: Literal["small_world"] = "small_world"


Model = Annotated[HuggingFaceModel | SmallWorldModel, Field(discriminator="type")]
