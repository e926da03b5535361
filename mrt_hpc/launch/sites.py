"""Finding a site profile by its path or its name."""

from __future__ import annotations

from pathlib import Path

from mrt_hpc.errors import UserError
from mrt_hpc.launch.backend import Site
from mrt_hpc.launch.local.site import LocalSite
from mrt_hpc.recipe.find import SITES, expanded, find
from mrt_hpc.recipe.load import load_site
from mrt_hpc.recipe.ownership import refuse_changeable


def find_site(name: str | None) -> Site:
    """The site profile of this name or path; this machine when none is given.

    Raises:
        UserError: there is none, it is wrong, or its kind has no back end; or a name alone has found one in the folder
            that the command was typed in, which another user can change.
    """
    if name is None or name == "local":
        return LocalSite()
    path = find(SITES, name)
    if path.is_relative_to(Path.cwd()) and not expanded(name).is_file():
        refuse_changeable(path, "this site profile, whose commands your jobs would run, is not taken from this folder")
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
