"""Finding a site profile by its path or its name."""

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from mrt_hpc.attempt.ledger import last_site, recorded_site
from mrt_hpc.backends.backend import Site
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.commands import controller_here
from mrt_hpc.errors import UserError, word
from mrt_hpc.recipe.base import NAME, Section, as_kind
from mrt_hpc.recipe.find import SITES, configuration, expanded, find, folders, is_of_the_package, names_in
from mrt_hpc.recipe.load import load_site
from mrt_hpc.recipe.source import read_source
from mrt_hpc.recipe.user_code import is_written_by_others, refuse_changeable
from mrt_hpc.recipe.validate import validate
from mrt_hpc.run.atomic import replacing
from mrt_hpc.run.layout import RunLayout

# -- settings ----------------------------------------------------------------------------------------------------------
# The settings of a user: the site that commands take where none is named. They are one small file in the user's own
# configuration folder, and a variable that stands above it.


VARIABLE = "MRT_HPC_SITE"
"""The variable with the site for all commands of a shell."""
EXPECTED = "the name of a site profile, its absolute path, or local for this machine"


def _names_a_site(text: str) -> str:
    """Refuse what would mean another profile in each working directory."""
    if not re.fullmatch(NAME, text) and not expanded(text).is_absolute():
        raise PydanticCustomError("no_site", EXPECTED)
    return text


class Settings(Section):
    """What a user has set for all commands."""

    site: Annotated[str, AfterValidator(_names_a_site)] | None = None
    """The site of all commands that take ``--site``: a profile's name or absolute path, or local for this machine."""


class DefaultSite(NamedTuple):
    """The site that a user has set for all commands."""

    name: str
    """The name of its profile, or its path."""
    source: str
    """Where it is set: the variable, or the settings file."""


def settings_file() -> Path:
    """The user's settings, whether the file exists or not."""
    return configuration() / "settings.yaml"


def read_settings() -> Settings:
    """The user's settings; the defaults where there is no file.

    Raises:
        UserError: the file is wrong, cannot be read, or another user can change it.
    """
    path = settings_file()
    without = f"--site SITE or {VARIABLE}=SITE goes without the settings"
    if not os.path.lexists(path):  # a link that leads nowhere is an error below
        return Settings()
    try:
        instead = f"mv {word(path)} {word(path)}.other, and mrt-hpc init; {without}"
        refuse_changeable(path, f"the settings are not read ({without})", instead)
        source = read_source(path, advice=f"correct it, or rm -r {word(path)}; {without}")
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"the settings cannot be read: {reason}", where=path, advice=without) from error
    return validate(replace(source, correction=f"edit {path}; {without}"), Settings, source.data)


def default_site() -> DefaultSite | None:
    """The site that the user has set, by the variable or else in the settings; None where neither names one.

    Raises:
        UserError: what is set names no site.
    """
    if named := os.environ.get(VARIABLE):
        try:
            return DefaultSite(_names_a_site(named), VARIABLE)
        except PydanticCustomError as error:
            advice = f"export {VARIABLE}=NAME, unset {VARIABLE}, or --site SITE"
            raise UserError(
                "this variable names no site", value=named, where=VARIABLE, expected=EXPECTED, advice=advice
            ) from error
    site = read_settings().site
    return None if site is None else DefaultSite(site, str(settings_file()))


def write_default_site(name: str) -> None:
    """Make a site the one of all commands of this user.

    Raises:
        UserError: the settings cannot be written.
    """
    path = settings_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_written_by_others(path.parent):
            path.parent.chmod(path.parent.stat().st_mode & ~0o022)  # what it holds decides which commands jobs run
        with replacing(path) as temporary:
            temporary.write_text(f"# The site of all commands: {EXPECTED}.\nsite: {json.dumps(name)}\n")
            temporary.chmod(0o600)
    except OSError as error:
        raise UserError(
            f"the default site cannot be written: {error.strerror or error}",
            where=path,
            advice=f"export {VARIABLE}={name}, for example in ~/.bashrc",
        ) from error


LOCAL = "local"
"""The name that always means this machine."""


def find_site(name: str | None) -> Site:
    """The site profile of a name or path that the user has typed; without one the user's default, or else this machine.

    Raises:
        UserError: there is none, it is wrong, or its kind has no back end; or a name alone has found one in the folder
            that the command was typed in, which another user can change.
    """
    if name is not None:
        return LocalSite() if name == LOCAL else _taken(find(SITES, name), name)
    default = default_site()
    if default is None or default.name == LOCAL:
        return LocalSite()
    try:
        path = find(SITES, default.name, typed=False)
    except UserError as error:
        raise error.in_other_words(
            f"{error.what} as the default site",
            where=default.source,
            advice=f"set another one there (mrt-hpc init writes a profile), or the same command with --site {LOCAL}",
        ) from error
    return _taken(path, default.name)


def _taken(path: Path, name: str) -> Site:
    """The site of a profile. One that a name alone has found is taken only where no other user can change it; those
    that come with the package are as safe as the package.
    """
    by_path = expanded(name).is_absolute() or expanded(name).is_file()
    if not by_path and not is_of_the_package(path):
        refuse_changeable(
            path,
            "this site profile, whose commands your jobs would run, is not taken by its name",
            f"read what is there; then --site {word(path)}, which takes it as it is",
        )
    return site_of_file(path)


def site_of_file(path: Path) -> Site:
    """The site profile in a file.

    Raises:
        UserError: it is wrong.
    """
    return as_kind(load_site(path), Site)


# -- run site ----------------------------------------------------------------------------------------------------------
# The site of a command: the one that is named, else that of the run, else the user's default, else this machine.


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

    def checked(self) -> "ChosenSite":
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


def site_of_run(layout: RunLayout, *, trust: bool) -> Site | None:
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
