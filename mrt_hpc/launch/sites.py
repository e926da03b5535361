"""Finding a site profile by its path or its name."""

from __future__ import annotations

from mrt_hpc.errors import UserError
from mrt_hpc.launch.backend import Site
from mrt_hpc.launch.local.site import LocalSite
from mrt_hpc.recipe.find import SITES, find
from mrt_hpc.recipe.load import load_site


def find_site(name: str | None) -> Site:
    """The site profile of this name or path; this machine when none is given.

    Raises:
        UserError: there is none, it is wrong, or its kind has no back end.
    """
    if name is None or name == "local":
        return LocalSite()
    path = find(SITES, name)
    site = load_site(path)
    if not isinstance(site, Site):
        raise UserError(
            "the class of this site profile has no back end",
            value=site.type,
            where=path,
            expected="a subclass of mrt_hpc.launch.backend.Site",
            advice="derive the class from it, and type the same command again",
        )
    return site
