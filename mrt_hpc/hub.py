"""Fetches a model of the Hugging Face hub, of one commit, into the hub's cache, and checks each file. Only what serving
and training need is fetched, and no weights in other formats.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mrt_hpc.errors import Advice, ExitCode, UserError
from mrt_hpc.recipe.hub_models import COMMIT, CachedModel, HubModel, cache_directory
from mrt_hpc.recipe.model_files import NEEDED
from mrt_hpc.recipe.ownership import refuse_changeable
from mrt_hpc.run.atomic import checksums, write_text

TAG = re.compile(r'(W/)?"?[0-9A-Za-z][0-9A-Za-z._-]*"?')
"""A server's tag of a content: the name of a file in the hub's cache."""
NOT_NEEDED = ("*/*", "consolidated*", ".*")
"""Folders hold other formats, such as ONNX; some models have their weights a second time in the format of their makers.
"""


def fetch_model(model: HubModel, cache: Path | None = None, endpoint: str | None = None) -> Path:
    """Fetch a model into the cache, at the commit that its revision names now, and return its directory.

    The name of the revision is written last, so that an interrupted fetch is not taken for a whole model. A pinned
    model that the cache holds needs no network.

    Args:
        cache: None takes that of HF_HUB_CACHE or HF_HOME.
        endpoint: of the hub; None takes HF_ENDPOINT, else the public one.
    """
    cached = CachedModel(model, cache or cache_directory())
    cached = replace(cached, cache=own_cache(cached.cache, cached.folder.name))
    elsewhere = (
        f"type `{model.command}` on a node with network access that shares {cached.cache}; or copy {cached.folder} "
        "from a machine that has it"
    )
    with hub_errors(model.text, elsewhere):
        from huggingface_hub import HfApi, get_cached_repo_tree

        api, name, place = HfApi(endpoint=endpoint), model.repository, cached.cache
        commit = model.revision if model.is_pinned else commit_told(api.model_info(name, revision=model.revision).sha)
        api.snapshot_download(
            name, revision=commit, cache_dir=place, allow_patterns=[*NEEDED], ignore_patterns=[*NOT_NEEDED]
        )
        files = get_cached_repo_tree(name, revision=commit, cache_dir=place)
    directory = cached.snapshot(commit)
    _refuse_damaged(directory, files)
    if missing := cached.missing_files(commit):
        raise UserError(
            "this is no model that a run can use",
            value=model.text,
            where=directory,
            expected=f"it has {' and '.join(missing)}",
            advice="fetch another model; other formats have to be converted to safetensors first",
        )
    if not model.is_pinned:
        cached.ref.parent.mkdir(parents=True, exist_ok=True)
        write_text(cached.ref, commit)
    return directory


def own_cache(cache: Path, name: str) -> Path:
    """Refuse a cache in which another user can put a link in the place of a file or folder: the hub's client would
    write to where that leads. Return the cache's place, to be used from here on.

    Args:
        cache: is made where it is not there.
        name: the folder in it of a model or a data set.
    """
    what = "nothing is fetched into this cache of the hub"
    instead = "export HF_HUB_CACHE=DIR, a cache of your own, and the same command again; this one can still be read"
    cache.mkdir(parents=True, exist_ok=True)
    place = refuse_changeable(cache, what, instead)
    below = [place / name, place / ".locks", place / ".locks" / name]
    for path in (*below, *(inner for folder in below for inner in folder.glob("*"))):
        if path.is_dir():
            refuse_changeable(path, what, instead)
    return place


def commit_told(told: str | None) -> str:
    """The commit that the hub says a revision is: it becomes the name of a folder."""
    if told is None or not COMMIT.fullmatch(told):
        raise _no_name("commit", told, "40 hexadecimal digits")
    return told


def _no_name(kind: str, told: str | None, expected: str) -> UserError:
    return UserError(
        f"the hub answers with a {kind} that is none, and would have been the name of a file or folder",
        value=told,
        where=os.environ.get("HF_ENDPOINT", "https://huggingface.co"),
        expected=expected,
        advice="unset HF_ENDPOINT, where that names a mirror, and the same command again",
    )


def _checked_client() -> Any:
    """The hub's client, with a check of what the library makes names of files of."""
    from huggingface_hub.utils._http import default_client_factory

    client = default_client_factory()
    client.event_hooks["response"].append(_refuse_names)
    return client


def _refuse_names(response: Any) -> None:
    """Refuse an answer about a file whose headers name a path."""
    if response.request.method != "HEAD":
        return  # only from these answers names are taken
    for header in ("ETag", "X-Linked-Etag"):
        told = response.headers.get(header)
        if told is not None and not TAG.fullmatch(told):
            raise _no_name("tag", told, "letters, digits and . _ -")
    if (commit := response.headers.get("X-Repo-Commit")) is not None:
        commit_told(commit)


def _refuse_damaged(directory: Path, files: Sequence[Any]) -> None:
    """``files`` are all files of the model, with the hub's checksums."""
    there = [file for file in files if (directory / file.path).is_file()]
    sums = checksums([directory / file.path for file in there])
    for file, digest_found in zip(there, sums, strict=True):
        path, large = directory / file.path, file.lfs is not None
        if (digest_found if large else _git_blob(path)) != (file.lfs.sha256 if large else file.blob_id):
            raise UserError(
                "a file in the hub's cache differs from its checksum: it was damaged on the way or on the disk",
                where=path,
                expected=file.lfs.sha256 if large else f"git blob {file.blob_id}",
                advice=Advice("rm {blob} {path}, then the same command again", blob=path.resolve(), path=path),
                exit_code=ExitCode.RETRYABLE,
            )


def _git_blob(path: Path) -> str:
    """The name that git gives to the content of a small file."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def hub_errors(asked: str, elsewhere: str) -> Iterator[None]:
    """Turn errors of the hub's client into errors that a user can fix. ``elsewhere`` is the advice where this node has
    no network.
    """
    from huggingface_hub import errors, set_client_factory

    set_client_factory(_checked_client)
    try:
        yield
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise UserError(
            f"the hub refuses: {_first_line(error)}",
            value=asked,
            advice="correct the name or the revision; where the hub asks who you are, type: hf auth login",
        ) from error
    except (
        errors.HTTPError,
        errors.OfflineModeIsEnabled,
        errors.LocalEntryNotFoundError,
        errors.CachedRepoTreeNotFoundError,
        errors.XetDownloadError,
    ) as error:
        raise UserError(
            f"the hub cannot be reached: {_first_line(error)}",
            value=asked,
            advice=elsewhere,
            exit_code=ExitCode.RETRYABLE,
        ) from error
    except OSError as error:
        if error.errno is not None:  # an error of the system, such as a full disk
            raise
        raise UserError(
            f"a file was not downloaded completely: {_first_line(error)}",
            value=asked,
            advice="the same command again: it fetches only what is missing",
            exit_code=ExitCode.RETRYABLE,
        ) from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
