"""Names and writes the site profile that is proposed for a cluster."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

import mrt_hpc
from mrt_hpc.errors import UserError, word
from mrt_hpc.launch.sites import LOCAL
from mrt_hpc.launch.slurm.profile_text import profile_text
from mrt_hpc.launch.slurm.proposal import entries
from mrt_hpc.recipe.base import NAME, PATTERNS
from mrt_hpc.recipe.find import SITES, folders
from mrt_hpc.recipe.load import load_site
from mrt_hpc.run.atomic import creating, replacing

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.launch.login_node import LoginNode
    from mrt_hpc.launch.slurm.cluster_facts import Survey
    from mrt_hpc.launch.slurm.questions import Wishes


def site_name(given: str | None, survey: Survey) -> str:
    """The name of the profile: the one given, else the cluster's, else that of this machine.

    Raises:
        UserError: the name given cannot be that of a profile.
    """
    if given is None:
        told = (survey.settings.name if survey.settings else "") or socket.gethostname().partition(".")[0]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", told).strip("-._")[:64]
        return name if name not in ("", LOCAL) else "cluster"
    if not re.fullmatch(NAME, given) or given == LOCAL:
        raise UserError(
            "this cannot be the name of a site profile",
            value=given,
            expected=f"{PATTERNS[NAME]}; and not {LOCAL}, which means this machine",
            advice="mrt-hpc init NAME",
        )
    return given


def profile_path(name: str) -> Path:
    """Where the profile of this name is kept: the user's own folder of site profiles."""
    return folders(SITES)[0] / f"{name}.yaml"


def refuse_existing(path: Path) -> None:
    """Refuse to replace a file.

    Raises:
        UserError: there is one.
    """
    if path.exists():
        raise UserError(
            "a site profile of this name exists",
            where=path,
            advice=f"mrt-hpc doctor --site {word(path)} checks it; --force replaces it, --output FILE writes another",
        )


def write_profile(path: Path, survey: Survey, node: LoginNode, wishes: Wishes, *, force: bool) -> None:
    """Write the profile whole, after reading it as a submission would.

    Args:
        path: the file.
        survey: of the cluster.
        node: the machine that the command is typed on.
        wishes: what the user has said.
        force: whether an existing file is replaced.

    Raises:
        UserError: a value that was given is wrong, or the file exists.
    """
    head = (
        f"Site profile {wishes.name}, written by mrt-hpc {mrt_hpc.__version__} init from what Slurm's commands told.",
        "Change it as you like; `mrt-hpc fields site` lists every field, and `mrt-hpc doctor` checks the values.",
    )
    text = profile_text(entries(survey, node, wishes), head)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"there is no place for the profile: {error.strerror or error}",
            where=path.parent,
            advice=f"mrt-hpc init {wishes.name} --output FILE, a file in a folder of your own",
        ) from error
    if force:
        with replacing(path) as temporary:
            _write_checked(temporary, text)
        return
    with creating(path) as commit:
        _write_checked(commit.temporary, text)
    if not commit.won:
        refuse_existing(path)


def _write_checked(temporary: Path, text: str) -> None:
    """Write the text and read it back.

    Raises:
        UserError: the profile is wrong.
    """
    temporary.write_text(text)
    try:
        load_site(temporary)
    except UserError as error:
        raise error.told_as(
            f"the profile would be wrong: {error.what}",
            where="the options of mrt-hpc init, or what Slurm told",
            advice="the same command with another value (mrt-hpc init --help lists the options)",
        ) from error
