"""Fetches the files of a data set of the Hugging Face hub, of one commit, into the hub's cache on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from mrt_hpc.datasets.repository import CARD, Chosen, Selection, choose
from mrt_hpc.datasets.rows import SourceFile
from mrt_hpc.errors import UserError
from mrt_hpc.hub.client import hub_errors
from mrt_hpc.recipe.hub_models import PREFIX

_NAME = re.compile(
    r"hub:(?P<repository>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[^/@\s]+))?(?:/(?P<split>[\w.-]+))?", re.ASCII
)


@dataclass(frozen=True)
class HubName:
    """A data set of the hub, and the part of it that is asked for."""

    repository: str
    """OWNER/NAME."""
    selection: Selection


@dataclass(frozen=True)
class Fetched:
    """The files of one split at one commit."""

    commit: str
    chosen: Chosen
    files: tuple[SourceFile, ...]


def hub_name(text: str, options: Selection) -> HubName:
    """Read ``hub:OWNER/NAME[@REVISION][/SPLIT]``.

    Args:
        text: the name.
        options: what the options of the command say; they may add to the name, not contradict it.

    Raises:
        UserError: it is no such name, or an option says something else.
    """
    found = _NAME.fullmatch(text)
    if found is None:
        raise UserError(
            "not the name of a data set of the hub",
            value=text,
            expected="hub:OWNER/NAME[@REVISION][/SPLIT]",
            advice="mrt-hpc data prepare hub:HuggingFaceH4/MATH-500/test data/math500.jsonl",
        )
    revision = _agreed("revision", found["revision"], options.revision)
    split = _agreed("split", found["split"], options.split)
    return HubName(found["repository"], replace(options, revision=revision, split=split))


def _agreed(kind: str, named: str | None, option: str | None) -> str | None:
    if named is not None and option is not None and named != option:
        raise UserError(
            f"the name and the option ask for two different ones: {kind}",
            value=f"{named} and {option}",
            advice=f"leave out --{kind}, or leave it out of the name",
        )
    return option if named is None else named


def fetch(name: HubName, endpoint: str | None = None) -> Fetched:
    """Download the files of one split, as they are at the commit that the revision names now.

    Args:
        name: the data set and the part of it.
        endpoint: address of the hub; None takes the variable HF_ENDPOINT, else the public one.

    Raises:
        UserError: the hub's client is not installed, the hub cannot be reached, or it has no such data set or part.
    """
    by_hand = f"hf download --repo-type dataset {name.repository} --local-dir FOLDER"
    elsewhere = f"where there is network, type `{by_hand}`; then mrt-hpc data prepare FOLDER OUT"
    with hub_errors(_asked(name), elsewhere):
        from huggingface_hub import HfApi

        api = HfApi(endpoint=endpoint)
        info = api.dataset_info(name.repository, revision=name.selection.revision)
        commit = str(info.sha)

        def download(file: str) -> Path:
            return Path(api.hf_hub_download(name.repository, file, repo_type="dataset", revision=commit))

        names = sorted(sibling.rfilename for sibling in info.siblings or [])
        card = download(CARD).read_text(errors="replace") if CARD in names else ""
        chosen = choose(names, card, name.selection, PREFIX + name.repository)
        return Fetched(commit, chosen, tuple(SourceFile(file, download(file)) for file in chosen.names))


def _asked(name: HubName) -> str:
    revision = name.selection.revision
    return PREFIX + name.repository + (f"@{revision}" if revision is not None else "")
