"""The content of a site file. It is not part of :mod:`mrt_hpc.recipe.site` because the classes of the registry build on
that module.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict

from mrt_hpc.recipe.registry import SITES
from mrt_hpc.recipe.site import SiteSettings


class SiteFile(BaseModel):
    """A profile of one kind, which ``type`` names."""

    model_config = ConfigDict(frozen=True)

    site: Annotated[SiteSettings, SITES]
