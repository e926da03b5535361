"""Finding a site profile by its path or its name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.recipe.errors import UserError, nearest
from mrt_hpc.recipe.load import default_site, load_site

if TYPE_CHECKING:
    from mrt_hpc.recipe.site import Site

PROFILES = Path("slurm") / "sites"
"""In a checkout, below the working directory."""


def find_site(name: str | None) -> Site:
    """The site profile of this name or path; this machine when none is given.

    Raises:
        UserError: there is none, or it is wrong.
    """
    if name is None or name == "local":
        return default_site()
    if Path(name).suffix in (".yaml", ".yml"):
        return load_site(Path(name))
    known = {path.stem: path for folder in site_folders() for path in sorted(folder.glob("*.yaml"))}
    if name not in known:
        guess = nearest(name, known)
        raise UserError(
            "no such site profile",
            value=name,
            where=", ".join(map(str, site_folders())),
            expected=f"{guess} is the nearest"
            if guess
            else f"one of {', '.join(sorted(known)) or 'none found'}, or a path",
            advice="copy slurm/sites/example.yaml and fill in your cluster's names",
        )
    return load_site(known[name])


def site_folders() -> list[Path]:
    """Where profiles are looked for, the user's own last, so that they win."""
    home = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config"))
    return [PROFILES, home / "mrt-hpc" / "sites"]
