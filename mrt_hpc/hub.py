"""Fetches a model of the Hugging Face hub, of one commit, into the hub's cache on this machine, and checks each file.

The hub's client downloads: files that are in the cache are not fetched again, and a broken download continues where it
stopped. Only what serving and training need is fetched, and no weights in other formats.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mrt_hpc.errors import ExitCode, UserError, word
from mrt_hpc.recipe.hub_models import CachedModel, HubModel, cache_directory
from mrt_hpc.run.atomic import checksums, write_text

NEEDED = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
"""The files of configuration, tokenizer, chat template and weights."""
NOT_NEEDED = ("*/*", "consolidated*", ".*")
"""Folders hold other formats, such as ONNX; some models have their weights a second time in the format of their makers.
"""


def fetch_model(model: HubModel, cache: Path | None = None, endpoint: str | None = None) -> Path:
    """Fetch a model into the cache, as it is at the commit that its revision names now, and return its directory.

    The name of the revision is written last, so that a model whose fetching was stopped is not taken for a whole one. A
    pinned model that the cache holds needs no network.

    Args:
        model: what to fetch.
        cache: the hub's cache; None takes that of HF_HUB_CACHE or HF_HOME.
        endpoint: address of the hub; None takes the variable HF_ENDPOINT, else the public one.

    Raises:
        UserError: the hub refuses or cannot be reached, the model has no safetensors, or a file differs from the hub's
            checksum.
    """
    cached = CachedModel(model, cache or cache_directory())
    elsewhere = (
        f"type `{model.command}` on a node with network access that shares {cached.cache}; or copy {cached.folder} "
        "from a machine that has it"
    )
    with hub_errors(model.text, elsewhere):
        from huggingface_hub import HfApi, get_cached_repo_tree

        api, name, place = HfApi(endpoint=endpoint), model.repository, cached.cache
        commit = model.revision if model.is_pinned else str(api.model_info(name, revision=model.revision).sha)
        api.snapshot_download(
            name, revision=commit, cache_dir=place, allow_patterns=[*NEEDED], ignore_patterns=[*NOT_NEEDED]
        )
        files = get_cached_repo_tree(name, revision=commit, cache_dir=place)
    directory = cached.snapshot(commit)
    _refuse_damaged(directory, files)
    if missing := cached.missing(commit):
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


def _refuse_damaged(directory: Path, files: Sequence[Any]) -> None:
    """Compare the files that were fetched with the hub's checksums.

    Args:
        directory: of the model.
        files: all files of the model, as the hub lists them.

    Raises:
        UserError: one differs.
    """
    there = [file for file in files if (directory / file.path).is_file()]
    sums = checksums([directory / file.path for file in there])
    for file, digest_found in zip(there, sums, strict=True):
        path, large = directory / file.path, file.lfs is not None
        if (digest_found if large else _git_blob(path)) != (file.lfs.sha256 if large else file.blob_id):
            raise UserError(
                "a file in the hub's cache differs from its checksum: it was damaged on the way or on the disk",
                where=path,
                expected=file.lfs.sha256 if large else f"git blob {file.blob_id}",
                advice=f"rm {word(path.resolve())} {word(path)}, then the same command again",
                exit_code=ExitCode.RETRYABLE,
            )


def _git_blob(path: Path) -> str:
    """The name that git gives to the content of a small file."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def hub_errors(asked: str, elsewhere: str) -> Iterator[None]:
    """Turn the errors of the hub's client within the block into errors that a user can fix.

    Args:
        asked: the name that was asked for.
        elsewhere: what to do where this node has no network.

    Raises:
        UserError: the hub refuses or cannot be reached, or a file arrived incomplete.
    """
    from huggingface_hub import errors

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
