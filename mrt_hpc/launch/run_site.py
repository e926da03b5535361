"""The site of a run that is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.launch.backend import Site
from mrt_hpc.launch.ledger import recorded_site, submissions
from mrt_hpc.launch.local.site import LocalSite
from mrt_hpc.launch.sites import find_site
from mrt_hpc.recipe.ownership import refuse_changeable

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout


def site_of_run(layout: RunLayout, name: str | None, *, trust: bool = False) -> Site:
    """The site profile of this name; without a name the one that jobs of the run were last submitted with, or this
    machine where none was.

    Args:
        layout: the run directory.
        name: of a profile of the user's; None for that of the run.
        trust: whether the profile of the run is taken, too, where another user can change it: jobs run its commands.

    Raises:
        UserError: there is no such profile, it cannot be read, or another user can change that of the run.
    """
    sent = submissions(layout)
    if name is not None or not sent:
        return find_site(name)
    if not trust:
        refuse_changeable(layout.jobs, "the site profile of the run is not taken, whose commands the jobs would run")
    site = recorded_site(layout, sent[-1].site)
    assert isinstance(site, Site), "a profile without a back end is refused when it is submitted with"
    return site


def site_text(layout: RunLayout, site: Site, name: str | None) -> str:
    """Where the jobs go, and why, in a sentence."""
    if name is not None or not submissions(layout):
        place = "this machine" if isinstance(site, LocalSite) else f"site {site.name}"
        return f"the tasks run on {place}" + ("" if name is not None else " (another: --site SITE)")
    return f"the jobs go to site {site.name}, as the last ones of {layout.root} did (another: --site SITE)"
