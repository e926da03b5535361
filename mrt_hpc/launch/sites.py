"""Finding a site profile by its path or its name."""

from __future__ import annotations

from pathlib import Path

from mrt_hpc.errors import UserError
from mrt_hpc.launch.backend import Site
from mrt_hpc.launch.local.site import LocalSite
from mrt_hpc.launch.settings import default_site
from mrt_hpc.recipe.find import SITES, expanded, find
from mrt_hpc.recipe.load import load_site
from mrt_hpc.recipe.ownership import refuse_changeable

LOCAL = "local"
"""The name that always means this machine."""


def find_site(name: str | None) -> Site:
    """The site profile of a name or path that the user has typed; without one the user's default, or else this machine.

    Raises:
        UserError: there is none, it is wrong, or its kind has no back end; or a name alone has found one in the folder
            that the command was typed in, which another user can change.
    """
    if name is not None:
        return _named(name, typed=True)
    default = default_site()
    return LocalSite() if default is None else _named(default.name, typed=False)


def _named(name: str, *, typed: bool) -> Site:
    if name == LOCAL:
        return LocalSite()
    path = find(SITES, name, typed=typed)
    if path.is_relative_to(Path.cwd()) and not expanded(name).is_file():
        refuse_changeable(path, "this site profile, whose commands your jobs would run, is not taken from this folder")
    return site_of_file(path)


def site_of_file(path: Path) -> Site:
    """The site profile in a file.

    Raises:
        UserError: it is wrong, or its kind has no back end.
    """
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
