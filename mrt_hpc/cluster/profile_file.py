"""Names and writes the site profile that is proposed for a cluster."""

import re
import socket
from pathlib import Path

import mrt_hpc
from mrt_hpc.backends.sites import LOCAL
from mrt_hpc.backends.slurm.survey import Survey
from mrt_hpc.cluster.login_node import LoginNode
from mrt_hpc.cluster.profile import entries, profile_text
from mrt_hpc.cluster.questions import Wishes
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.base import NAME, PATTERNS
from mrt_hpc.recipe.find import SITES, folders
from mrt_hpc.recipe.load import load_site
from mrt_hpc.run.atomic import create_file, replace_file


def site_name(given: str | None, survey: Survey) -> str:
    if given is None:
        cluster_name = (survey.settings.name if survey.settings else "") or socket.gethostname().partition(".")[0]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", cluster_name).strip("-._")[:64]
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
    """The file in the user's own folder of site profiles."""
    return folders(SITES)[0] / f"{name}.yaml"


def refuse_existing(path: Path) -> None:
    if path.exists():
        raise UserError(
            "a site profile of this name exists",
            where=path,
            advice=Advice(
                "mrt-hpc doctor --site {path} checks it; --force replaces it, --output FILE writes another", path=path
            ),
        )


def write_profile(path: Path, survey: Survey, node: LoginNode, wishes: Wishes, *, force: bool) -> None:
    """Write the profile whole, after reading it as a submission would; ``force`` replaces an existing file."""
    head = (
        f"Site profile {wishes.name}, written by mrt-hpc {mrt_hpc.__version__} init from what Slurm's commands said.",
        "Change it as you like; `mrt-hpc fields site` lists every field, and `mrt-hpc doctor` checks the values.",
    )
    text = profile_text(entries(survey, node, wishes), head)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"there is no place for the profile: {error.strerror or error}",
            where=path.parent,
            advice=Advice("mrt-hpc init {name} --output FILE, a file in a folder of your own", name=wishes.name),
        ) from error
    if force:
        with replace_file(path) as temporary:
            _write_checked(temporary, text)
        return
    with create_file(path) as commit:
        _write_checked(commit.temporary, text)
    if not commit.won:
        refuse_existing(path)


def _write_checked(temporary: Path, text: str) -> None:
    temporary.write_text(text, encoding="utf-8")
    try:
        load_site(temporary)
    except UserError as error:
        raise error.reword(
            f"the profile would be wrong: {error.what}",
            where="the options of mrt-hpc init, or what Slurm said",
            advice="the same command with another value (mrt-hpc init --help lists the options)",
        ) from error
