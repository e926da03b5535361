"""The site of a command: the one that is named, else that of the run, else the user's default, else this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.launch.backend import Site
from mrt_hpc.launch.ledger import last_site, recorded_site
from mrt_hpc.launch.local.site import LocalSite
from mrt_hpc.launch.settings import default_site
from mrt_hpc.launch.sites import LOCAL, find_site, site_of_file
from mrt_hpc.launch.slurm.commands import controller_here
from mrt_hpc.recipe.find import SITES, folders, names_in
from mrt_hpc.recipe.ownership import refuse_changeable

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout

IN_A_JOB = "SLURM_JOB_ID"
"""The variable of a shell whose machine Slurm has given to the user."""


@dataclass(frozen=True)
class ChosenSite:
    """The site of a command, and why it is this one."""

    site: Site
    why: str = ""
    """The end of a sentence; empty where that needs no word."""
    asked_for: bool = True
    """Whether the user has named it; False for this machine where it is taken because nothing names another, or because
    the run was here before.
    """

    @property
    def text(self) -> str:
        """Where the tasks run, and why, in a sentence."""
        place = "this machine" if isinstance(self.site, LocalSite) else f"site {self.site.name}"
        return f"the tasks run on {place}{self.why and f', {self.why} (another: --site SITE)'}"

    def refusal(self) -> UserError | None:
        """Why the tasks may not run here: nothing names this machine, and jobs of a cluster are submitted from it."""
        if self.asked_for or not isinstance(self.site, LocalSite) or IN_A_JOB in os.environ:
            return None
        if (answer := controller_here()) is None:
            return None
        mine = names_in(folders(SITES)[0])
        return UserError(
            "no site is named, and the tasks would run on this machine, from which a Slurm cluster is used",
            where="scontrol ping",
            value=answer,
            expected=f"a site profile ({'yours: ' + ', '.join(mine) if mine else 'you have none yet'}), or local",
            advice="mrt-hpc init, which describes the cluster for all commands; or the same command with --site "
            f"{mine[0] if mine else LOCAL}{f', or with --site {LOCAL} on this machine' if mine else ''}",
        )

    def checked(self) -> ChosenSite:
        """The same, once it is seen that tasks may run there.

        Raises:
            UserError: they may not.
        """
        if (error := self.refusal()) is not None:
            raise error
        return self


def chosen_site(name: str | None, *runs: RunLayout, trust: bool = False) -> ChosenSite:
    """The site of a command.

    Args:
        name: what the user has typed for ``--site``; None where nothing.
        runs: the directories of the run, or of those that it continues: the first that was submitted before decides.
        trust: whether the profile of the run is taken, too, where another user can change it: jobs run its commands.

    Raises:
        UserError: there is no such profile, it cannot be read, or another user can change that of the run.
    """
    if name is not None:
        return ChosenSite(find_site(name))
    for layout in runs:
        if (site := site_of_run(layout, trust=trust)) is not None:
            return _as_before(layout, site)
    default = default_site()
    if default is None or default.name == LOCAL:
        return ChosenSite(LocalSite(), asked_for=default is not None)
    return ChosenSite(find_site(None), f"as {default.source} says")


def _as_before(layout: RunLayout, site: Site) -> ChosenSite:
    """The site of a run that was submitted before. This machine needs no word where it is the user's default, too."""
    why = f"as the last ones of {layout.root} did"
    if not isinstance(site, LocalSite):
        return ChosenSite(site, why)
    default = default_site()
    if default is None or default.name == LOCAL:
        return ChosenSite(site, asked_for=default is not None)
    return ChosenSite(site, why, asked_for=False)


def site_of_run(layout: RunLayout, *, trust: bool = False) -> Site | None:
    """The site that a run was submitted to last, with the profile as it is now, or as it was where its file is gone;
    None where the run never was submitted.

    Args:
        layout: the run directory.
        trust: as for :func:`chosen_site`. The profile is then the one that the run has recorded.

    Raises:
        UserError: the profile cannot be read, or another user can change what the run says of it.
    """
    if (last := last_site(layout)) is None:
        return None
    if not trust:
        refuse_changeable(layout.jobs, "the site profile of the run is not taken, whose commands the jobs would run")
        if last.file is not None and last.file.is_file():
            return site_of_file(last.file)
    site = recorded_site(layout, last.name)
    assert isinstance(site, Site), "a profile without a back end is refused when it is submitted with"
    return site


def refuse_work_here(name: str | None) -> None:
    """Refuse a command that works on the machine on which it is typed, where that is one from which a cluster is used.

    Args:
        name: what the user has typed for ``--site``; None where nothing.

    Raises:
        UserError: naming the ways to work in a job, or here.
    """
    chosen = chosen_site(name).checked()
    if isinstance(chosen.site, LocalSite) or (name is None and IN_A_JOB in os.environ):
        return
    raise UserError(
        "this command works on the machine on which it is typed, and cannot send its work to a site",
        value=chosen.site.name,
        where="--site" if name is not None else chosen.why,
        expected=f"--site {LOCAL}, or a shell in a job of the cluster",
        advice=f"srun --pty, and the same command behind it; or add --site {LOCAL}",
    )
