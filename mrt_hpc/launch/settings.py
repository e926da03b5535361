"""The settings of a user: the site that commands take where none is named. They are one small file in the user's own
configuration folder, and a variable that stands above it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from mrt_hpc.errors import UserError, word
from mrt_hpc.recipe.base import NAME, Section
from mrt_hpc.recipe.find import configuration, expanded
from mrt_hpc.recipe.ownership import is_written_by_others, refuse_changeable
from mrt_hpc.recipe.source import read_source
from mrt_hpc.recipe.validate import validate
from mrt_hpc.run.atomic import replacing

if TYPE_CHECKING:
    from pathlib import Path

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
    """Of its profile, or its path."""
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
