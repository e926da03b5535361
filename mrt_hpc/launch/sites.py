"""Finding a site profile by its path or its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.recipe.find import SITES, find
from mrt_hpc.recipe.load import default_site, load_site

if TYPE_CHECKING:
    from mrt_hpc.recipe.site import Site


def find_site(name: str | None) -> Site:
    """The site profile of this name or path; this machine when none is given.

    Raises:
        UserError: there is none, or it is wrong.
    """
    return default_site() if name is None or name == "local" else load_site(find(SITES, name))
