"""Fetches a model of the Hugging Face hub, of one commit, into the hub's cache on this machine, and checks each file.

The hub's client downloads: files that are in the cache are not fetched again, and a connection that breaks is taken up
where it broke. Only what serving and training need is fetched, and no weights in other formats.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from mrt_hpc.errors import ExitCode, UserError, word
from mrt_hpc.hub.client import hub_errors
from mrt_hpc.recipe.hub_models import CachedModel, FetchRecord, FileRecord, HubModel, cache_directory
from mrt_hpc.run.atomic import checksums, write_json, write_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WEIGHTS = ".safetensors"
NEEDED = frozenset({WEIGHTS, ".json", ".jinja", ".model", ".txt", ".tiktoken"})
"""The endings of the files of configuration, tokenizer, chat template and weights."""
DUPLICATE = "consolidated"
"""The beginning of the names of weights that some models have a second time, in the format of their makers."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a model at one commit, as the hub tells of it."""

    name: str
    bytes: int
    sha256: str | None
    """Of the content, for large files."""
    git_blob: str
    """The name of the content in git, which is a checksum too."""


@dataclass(frozen=True)
class Fetched:
    """A model that is whole in the cache, all of whose checksums are right."""

    model: HubModel
    """As it was asked for."""
    directory: Path
    record_file: Path
    record: FetchRecord
    downloaded: bool
    """False where the cache had all of it already."""

    @property
    def pinned(self) -> HubModel:
        """The model with its commit as the revision."""
        return HubModel(self.model.repository, self.record.commit)

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(file.bytes for file in self.record.files.values())


def fetch_model(model: HubModel, cache: Path | None = None, endpoint: str | None = None) -> Fetched:
    """Fetch a model into the cache, as it is at the commit that its revision names now.

    The record of its files and the name of the revision are written last, so that a model whose fetching was stopped is
    never taken for a whole one. A pinned model that the cache holds needs no network.

    Args:
        model: what to fetch.
        cache: the hub's cache; None takes that of HF_HUB_CACHE or HF_HOME.
        endpoint: address of the hub; None takes the variable HF_ENDPOINT, else the public one.

    Raises:
        UserError: the client is not installed, the hub refuses or cannot be reached, the model has no safetensors, or a
            file differs from the hub's checksum.
    """
    cached = CachedModel(model, cache or cache_directory())
    if (there := _already_there(cached)) is not None:
        return there
    elsewhere = (
        f"type `{model.command}` on a node with network access that shares {cached.cache}; or copy {cached.folder} "
        "from a machine that has it"
    )
    with hub_errors(model.text, elsewhere):
        from huggingface_hub import HfApi, snapshot_download

        info = HfApi(endpoint=endpoint).model_info(model.repository, revision=model.revision, files_metadata=True)
        commit, files = str(info.sha), needed_files(model, map(_remote, info.siblings or []))
        had_all = all((cached.snapshot(commit) / file.name).is_file() for file in files)
        snapshot_download(
            model.repository,
            revision=commit,
            cache_dir=cached.cache,
            endpoint=endpoint,
            allow_patterns=[file.name for file in files],
        )
    record = FetchRecord(repository=model.repository, commit=commit, files=_checked(cached.snapshot(commit), files))
    for path in (cached.record(commit), cached.ref):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(cached.record(commit), record.model_dump(mode="json"))
    if not model.is_pinned:
        write_text(cached.ref, commit)
    return Fetched(model, cached.snapshot(commit), cached.record(commit), record, downloaded=not had_all)


def _already_there(cached: CachedModel) -> Fetched | None:
    """A pinned model that the cache holds, with its checksums read again; None where anything is to be asked."""
    if not cached.model.is_pinned or cached.fault() is not None:
        return None
    commit = cached.model.revision
    directory, record = cached.snapshot(commit), FetchRecord.read(cached.record(commit))
    if record is None:
        return None
    sums = checksums([directory / name for name in record.files])
    for (name, file), found in zip(record.files.items(), sums, strict=True):
        if found != file.sha256:
            raise _damaged(directory / name, file.sha256)
    return Fetched(cached.model, directory, cached.record(commit), record, downloaded=False)


def _remote(sibling: Any) -> RemoteFile:
    """A file as the hub's client tells of it."""
    sha256 = None if sibling.lfs is None else str(sibling.lfs.sha256)
    return RemoteFile(sibling.rfilename, int(sibling.size or 0), sha256, str(sibling.blob_id))


def needed_files(model: HubModel, files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """The files that serving and training need, of those that a model has.

    Raises:
        UserError: it has no config.json or no safetensors.
    """
    needed = [file for file in files if _is_needed(PurePosixPath(file.name))]
    names = {file.name for file in needed}
    if "config.json" not in names or not any(name.endswith(WEIGHTS) for name in names):
        raise UserError(
            "this is no model that a run can use: it lacks config.json or weights in safetensors",
            value=model.text,
            expected="config.json, a tokenizer and *.safetensors",
            advice="fetch another model; other formats have to be converted to safetensors first",
        )
    return sorted(needed, key=lambda file: file.name)


def _is_needed(path: PurePosixPath) -> bool:
    """Folders below hold other formats, such as ONNX, or the files of the model's makers."""
    hidden = path.name.startswith((".", DUPLICATE))
    return len(path.parts) == 1 and path.suffix in NEEDED and not hidden


def _checked(directory: Path, files: Sequence[RemoteFile]) -> dict[str, FileRecord]:
    """The sizes and checksums of the files in a model directory, after they were compared with those of the hub.

    Raises:
        UserError: one differs.
    """
    sums = checksums([directory / file.name for file in files])
    for file, found in zip(files, sums, strict=True):
        path = directory / file.name
        same = found == file.sha256 if file.sha256 is not None else git_blob(path) == file.git_blob
        if not same:
            raise _damaged(path, file.sha256 or f"git blob {file.git_blob}")
    return {
        file.name: FileRecord(bytes=(directory / file.name).stat().st_size, sha256=found)
        for file, found in zip(files, sums, strict=True)
    }


def git_blob(path: Path) -> str:
    """The name that git gives to the content of a small file."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _damaged(path: Path, expected: str) -> UserError:
    return UserError(
        "a file in the hub's cache differs from its checksum: it was damaged on the way or on the disk",
        where=path,
        expected=expected,
        advice=f"rm {word(path.resolve())} {word(path)}, then the same command again",
        exit_code=ExitCode.RETRYABLE,
    )
