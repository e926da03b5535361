"""Finding a site profile by its path or its name."""

import os
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from mrt_hpc.attempt.ledger import LastSite, last_site, last_site_file, recorded_site
from mrt_hpc.backends.backend import Site
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.commands import controller_here
from mrt_hpc.backends.user_settings import default_site
from mrt_hpc.errors import Advice, UserError, word
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.find import SITES, expand_home, find, folders, names_in
from mrt_hpc.recipe.load import load_site
from mrt_hpc.recipe.ownership import refuse_changeable
from mrt_hpc.run.layout import RunLayout

LOCAL = "local"
"""Always this machine."""


def find_site(name: str | None) -> Site:
    """The site that the user has typed; else the user's default, else this machine. Refuses a profile that another user
    can change, unless the user has just typed its path.
    """
    if name == LOCAL:
        return LocalSite()
    if name is not None:
        path = find(SITES, name)
        return site_of_file(path) if path == expand_home(name) else _trusted_site(path)
    default = default_site()
    if default is None or default.name == LOCAL:
        return LocalSite()
    try:
        path = find(SITES, default.name, typed=False)
    except UserError as error:
        advice = "set another one there (mrt-hpc init writes a profile), or the same command with --site {local}"
        what = f"{error.what} as the default site"
        raise error.reword(what, where=default.source, advice=Advice(advice, local=LOCAL)) from error
    return _trusted_site(path)


def _trusted_site(path: Path) -> Site:
    """Taken only if no other user can change it. The package's profiles are as safe as the package."""
    site = site_of_file(path)
    site.refuse_foreign(
        "this site profile, whose commands your jobs would run, is not taken unasked",
        f"--site {word(path)}, which takes it as it is, or for all commands",
    )
    return site


def site_of_file(path: Path) -> Site:
    return require_kind(load_site(path), Site)


def _refuse_other_text(site: Site, last: LastSite) -> None:
    """Accepts a changeable profile only as it was when this user named it; the error shows the lines."""
    assert site.file is not None and site.text is not None, "the profile was read from a file"
    if site.text == last.text:
        return
    try:
        refuse_changeable(site.file, "the site profile is not taken")
    except UserError as error:
        lines = unified_diff((last.text or "").splitlines(), site.text.splitlines(), "before", "now", n=1, lineterm="")
        take = Advice("read the lines; then --site {file}, which takes it as it is now", file=last.file)
        raise UserError(
            f"{error.what}, and it is not as it was when the run was submitted with it",
            value=list(lines),
            where=last.file,
            expected="the profile of that submission",
            advice=take if last.file else None,
        ) from error


# The site of a command: the one that is named, else that of the run, else the user's default, else this machine.


IN_A_JOB = "SLURMD_NODENAME"
"""Slurm sets it on a job's node; salloc sets a job's id on the login node too."""


@dataclass(frozen=True)
class ChosenSite:
    """The site of a command, and why it is this one."""

    site: Site
    why: str = ""
    """The end of a sentence; empty where that needs no word."""
    asked_for: bool = True
    """False for this machine where nothing names another."""

    @property
    def text(self) -> str:
        """Where the tasks run, and why."""
        place = "this machine" if isinstance(self.site, LocalSite) else f"site {self.site.name}"
        return f"the tasks run on {place}{self.why and f', {self.why} (another: --site SITE)'}"

    def refusal(self) -> UserError | None:
        """This machine submits jobs of a cluster, and nothing names it."""
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
            advice=Advice(
                "mrt-hpc init, which describes the cluster for all commands; or the same command with --site "
                "{site}{more}",
                site=mine[0] if mine else LOCAL,
                more=Advice(", or with --site local on this machine" if mine else ""),
            ),
        )

    def ensure_usable(self) -> "ChosenSite":
        if (error := self.refusal()) is not None:
            raise error
        return self


def chosen_site(name: str | None, *runs: RunLayout, trust: bool = False) -> ChosenSite:
    """The site of a command.

    Args:
        name: as typed for ``--site``.
        runs: the run, or those that it continues: the first that was submitted before decides.
        trust: take the run's profile also where another user can change it: jobs run its commands.
    """
    if name is not None:
        return ChosenSite(find_site(name))
    for layout in runs:
        if (site := site_of_run(layout, trust=trust)) is not None:
            return _earlier_site(layout, site)
    default = default_site()
    if default is None or default.name == LOCAL:
        return ChosenSite(LocalSite(), asked_for=default is not None)
    return ChosenSite(find_site(None), f"as {default.source} says")


def _earlier_site(layout: RunLayout, site: Site) -> ChosenSite:
    """The site of an earlier submission; the user's default needs no word."""
    default = default_site()
    is_usual = isinstance(site, LocalSite) and (default is None or default.name == LOCAL)
    return ChosenSite(site, "" if is_usual else f"as the last ones of {layout.root} did")


def site_of_run(layout: RunLayout, *, trust: bool) -> Site | None:
    """The site of a run's last submission, with the profile as it is now, or as recorded where its file is gone or with
    ``trust``.
    """
    if not trust and last_site_file(layout).exists():
        what = "the site profile of the run is not taken, whose commands the jobs would run"
        layout = RunLayout(refuse_changeable(layout.jobs, what).parent)
    if (last := last_site(layout)) is None:
        return None
    if not trust and last.file is not None and last.file.is_file():
        now = site_of_file(last.file)
        _refuse_other_text(now, last)
        return now
    site = recorded_site(layout, last.name)
    assert isinstance(site, Site), "a profile without a back end is refused when it is submitted with"
    return site


def refuse_work_here(name: str | None) -> None:
    chosen = chosen_site(name).ensure_usable()
    if isinstance(chosen.site, LocalSite) or (name is None and IN_A_JOB in os.environ):
        return
    raise UserError(
        "this command works on the machine on which it is typed, and cannot send its work to a site",
        value=chosen.site.name,
        where="--site" if name is not None else chosen.why,
        expected=f"--site {LOCAL}, or a shell in a job of the cluster",
        advice=Advice("srun --pty, and the same command behind it; or add --site {local}", local=LOCAL),
    )
