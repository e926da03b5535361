"""The settings of a user: the site that commands take where none is named. They are one small file in the user's own
configuration folder, and a variable that stands above it.
"""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.base import NAME, Section
from mrt_hpc.recipe.find import configuration, expand_home
from mrt_hpc.recipe.ownership import look_at_path, refuse_changeable
from mrt_hpc.recipe.source import read_source
from mrt_hpc.recipe.validate import validate
from mrt_hpc.run.atomic import write_text

VARIABLE = "MRT_HPC_SITE"
"""The site for all commands of a shell."""
EXPECTED = "the name of a site profile, its absolute path, or local for this machine"


def _names_a_site(text: str) -> str:
    """Refuse what would mean another profile in each working directory."""
    if not re.fullmatch(NAME, text) and not expand_home(text).is_absolute():
        raise PydanticCustomError("no_site", EXPECTED)
    return text


class Settings(Section):
    """The user's settings for all commands."""

    site: Annotated[str, AfterValidator(_names_a_site)] | None = None
    """The site of all commands that take ``--site``: a profile's name or absolute path, or local for this machine."""


class DefaultSite(NamedTuple):
    name: str
    """Name or path of its profile."""
    source: str


def settings_file() -> Path:
    return configuration() / "settings.yaml"


def read_settings() -> Settings:
    """The defaults where there is no file; refuses one that another user can change."""
    path = settings_file()
    without = Advice("--site SITE or {variable}=SITE goes without the settings", variable=VARIABLE)
    if not os.path.lexists(path):  # a link that leads nowhere is an error below
        return Settings()
    try:
        instead = Advice("mv {path} {path}.other, and mrt-hpc init; {without}", path=path, without=without)
        refuse_changeable(path, f"the settings are not read ({without})", instead)
        source = read_source(path, advice=Advice("correct it, or rm -r {path}; {without}", path=path, without=without))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"the settings cannot be read: {reason}", where=path, advice=without) from error
    return validate(replace(source, correction=f"edit {path}; {without}"), Settings, source.data)


def default_site() -> DefaultSite | None:
    """The variable's site, or else that of the settings."""
    if named := os.environ.get(VARIABLE):
        try:
            return DefaultSite(_names_a_site(named), VARIABLE)
        except PydanticCustomError as error:
            advice = Advice("export {variable}=NAME, unset {variable}, or --site SITE", variable=VARIABLE)
            raise UserError(
                "this variable names no site", value=named, where=VARIABLE, expected=EXPECTED, advice=advice
            ) from error
    site = read_settings().site
    return None if site is None else DefaultSite(site, str(settings_file()))


def write_default_site(name: str) -> None:
    path = settings_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if look_at_path(path.parent).is_written_by_others:
            path.parent.chmod(path.parent.stat().st_mode & ~0o022)  # what it holds decides which commands jobs run
        write_text(path, f"# The site of all commands: {EXPECTED}.\nsite: {json.dumps(name)}\n", private=True)
    except OSError as error:
        raise UserError(
            f"the default site cannot be written: {error.strerror or error}",
            where=path,
            advice=Advice("export {variable}={name}, for example in ~/.bashrc", variable=VARIABLE, name=name),
        ) from error
