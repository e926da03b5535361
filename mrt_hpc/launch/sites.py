"""Finding a site profile by its path or its name."""

from __future__ import annotations

from pathlib import Path

import mrt_hpc
from mrt_hpc.errors import UserError, word
from mrt_hpc.launch.backend import Site
from mrt_hpc.launch.local.site import LocalSite
from mrt_hpc.launch.settings import default_site
from mrt_hpc.recipe.find import SITES, expanded, find, installed_folders
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
        return _named(name)
    default = default_site()
    if default is None or default.name == LOCAL:
        return LocalSite()
    try:
        path = find(SITES, default.name, typed=False)
    except UserError as error:
        raise error.told_as(
            f"{error.what} as the default site",
            where=default.source,
            advice=f"set another one there (mrt-hpc init writes a profile), or the same command with --site {LOCAL}",
        ) from error
    return _taken(path, default.name)


def _named(name: str) -> Site:
    return LocalSite() if name == LOCAL else _taken(find(SITES, name), name)


def _taken(path: Path, name: str) -> Site:
    """The site of a profile. One that a name alone has found is taken only where no other user can change it; those
    that come with the package are as safe as the package.
    """
    by_path = expanded(name).is_absolute() or expanded(name).is_file()
    of_the_package = (Path(mrt_hpc.__file__).resolve().parents[1], *installed_folders())
    if not by_path and not any(path.is_relative_to(folder) for folder in of_the_package):
        refuse_changeable(
            path,
            "this site profile, whose commands your jobs would run, is not taken by its name",
            f"read what is there; then --site {word(path)}, which takes it as it is",
        )
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
