"""Manifests: what makes a directory whole. Weights versions, checkpoints, groups and evaluation shards all have one.

A manifest lists every file with its size and SHA-256, says where the directory came from and where it belongs, and is
sealed by a checksum of its own. It is the last thing written before the directory takes its place in one step, so a
directory under its own name is complete; whether it is still what was written, ``verify`` says.

Where it belongs is its run and its path there, which say the iteration and the position of a group, the number of a
weights version or a checkpoint, the benchmark and the shard of an evaluation. A reader compares them with the place
where it reads: a whole directory of another run, iteration or position is as wrong as a damaged one.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mrt_hpc.errors import ExitCode, UserError, word
from mrt_hpc.run.access import share_as_directory
from mrt_hpc.run.atomic import checksum, checksums, commit_directory, make_folder, temporary_sibling, tree, write_json
from mrt_hpc.run.layout import IDENTITY
from mrt_hpc.run.retries import error_number
from mrt_hpc.run.typed_file import file_bytes

MANIFEST = "MANIFEST.json"
PLACE = "place"
"""The entry of a manifest that says where its directory belongs."""
LONGEST_IDENTITY = 200
"""Bytes of the file with the name of a run."""
FileSum = tuple[int, str]
"""Bytes of a file, and their SHA-256."""
SMALL_BYTES = 2**20
"""Files that have less together are small."""
NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""The errors that mean damage. Other errors of the system come from the filesystem, not from the file, and are raised
unchanged.
"""


class DamagedError(UserError):
    """The content is not what was written. Errors of the filesystem are never converted to this one: a file that cannot
    be read at this moment may be whole.

    Args:
        what: what is wrong with it.
        where: the file or directory.
        expected: what it should be.
    """

    def __init__(self, what: str, *, where: object, expected: str | None = None) -> None:
        super().__init__(what, where=where, expected=expected, exit_code=ExitCode.RETRYABLE)


def is_of_the_filesystem(error: BaseException) -> bool:
    """Whether an error comes from the filesystem, and not from the file that was to be read."""
    return error_number(error) is not None and not isinstance(error, NOT_THERE)


def unreadable(path: Path, error: Exception) -> UserError:
    """The error for a file that cannot be read at this moment, and may be whole."""
    return UserError(
        f"the file cannot be read at the moment: {error!r}",
        where=path,
        advice=f"nothing, if the filesystem recovers; otherwise: mv {word(path)} {word(path)}.unreadable",
        exit_code=ExitCode.RETRYABLE,
    )


@dataclass(frozen=True)
class Manifest:
    """The content of a complete directory."""

    files: dict[str, FileSum]
    """Relative path to (bytes, SHA-256)."""
    about: dict[str, Any]
    """Its origin: version, iteration, attempt, time."""

    @property
    def digest(self) -> str:
        """The identity of the content: SHA-256 over names, sizes and checksums, without ``about``."""
        return json_digest(sorted(self.files.items()))


def json_digest(value: Any) -> str:
    """SHA-256 of what JSON writes of a value, with the names of objects sorted."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def commit_whole(path: Path, write: Callable[[Path], None], **about: Any) -> bool:
    """Fill a directory with ``write(directory)``, add its manifest, and make it appear as ``path`` in one step.

    Returns:
        False if ``path`` already existed; the new directory is then removed.
    """
    make_folder(path.parent)
    temporary = temporary_sibling(path)
    temporary.mkdir()
    try:
        write(temporary)
        share_as_directory(temporary)
        write_manifest(temporary, **{PLACE: place_of(path), **about})
        return commit_directory(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_manifest(directory: Path, written: Mapping[str, FileSum] | None = None, **about: Any) -> Manifest:
    """Add a manifest of all files in ``directory``; the last thing written before its commit, which syncs it.

    Args:
        directory: what the manifest is of.
        written: size and checksum of files that their writers know already, by relative path: these are not read.
        about: where the directory came from.

    Raises:
        DamagedError: a file of ``written`` has another size.
    """
    files = dict(written or {})
    for name, (size, digest) in files.items():
        if (found_size := (directory / name).stat().st_size) != size:
            raise DamagedError(
                f"{found_size} bytes of a file arrived", where=directory / name, expected=f"{size}, {digest}"
            )
    there = {p.relative_to(directory).as_posix() for p in tree(directory)[1]}
    files |= _sums_of_written(directory, there - files.keys())
    content = {"about": about, "files": files}
    write_json(directory / MANIFEST, {**content, "seal": json_digest(content)}, durable=False)
    return Manifest(files, about)


def _sums_of_written(directory: Path, names: Set[str]) -> dict[str, FileSum]:
    """Size and checksum of files that this process has written just now, which are in the memory of its node: small
    ones are read one after the other, as threads would take longer to start.
    """
    paths = {name: directory / name for name in sorted(names)}
    sizes = [path.stat().st_size for path in paths.values()]
    digests = checksums([*paths.values()]) if sum(sizes) > SMALL_BYTES else map(checksum, paths.values())
    return dict(zip(paths, zip(sizes, digests, strict=True), strict=True))


def place_of(path: Path) -> list[str]:
    """Where a directory belongs: the name of its run (or folder of results), and its path there. Empty outside any."""
    for root in path.parents:
        try:
            name = file_bytes(root / IDENTITY, LONGEST_IDENTITY).decode().strip()
        except NOT_THERE:
            continue
        except ValueError as error:
            raise UserError(
                f"the name of the run cannot be read: {error}",
                where=root / IDENTITY,
                advice=f"grep -A2 {PLACE} {path / MANIFEST} shows the name; write it into that file",
            ) from error
        return [name, path.relative_to(root).as_posix()]
    return []


def refuse_misplaced(manifest: Manifest, path: Path) -> None:
    """Refuse a directory that belongs to another place than the one at which it is read.

    Args:
        manifest: of the directory.
        path: of the directory, or of the one that an archive has it of.

    Raises:
        DamagedError: it is of another run, iteration, position, number or benchmark.
        UserError: the file with the name of the run is gone.
    """
    said = manifest.about.get(PLACE)
    written, here = [*map(str, said)] if isinstance(said, list) else [], place_of(path)
    if written == here:
        return
    if not here:
        raise UserError(
            f"this is a part of the run {written[0]}, and no folder above it says that it is that run",
            where=path,
            expected=f"a file {IDENTITY} with that name in the run directory",
            advice=f"where {IDENTITY} was deleted: echo {written[0]} > RUN/{IDENTITY}",
        )
    raise DamagedError(
        "it is whole, and belongs to another place",
        where=path,
        expected=f"{here[1]} of the run {here[0]}; it is {' of the run '.join(reversed(written)) or 'of no run'}",
    )


def read_manifest(directory: Path, *, anywhere: bool = False) -> Manifest:
    """The manifest of a complete directory.

    Args:
        directory: what it is of.
        anywhere: whether the directory may belong to another place, as what a run takes over from another one does.

    Raises:
        DamagedError: it is missing, unreadable, not as it was written, or of another place.
    """
    path = directory / MANIFEST
    try:
        content = file_bytes(path)
    except (*NOT_THERE, ValueError) as error:
        raise DamagedError(f"no readable manifest: {error!r}", where=path) from error
    manifest = parse_manifest(content, path)
    if not anywhere:
        refuse_misplaced(manifest, directory)
    return manifest


def parse_manifest(text: bytes, where: Path) -> Manifest:
    """The manifest that a file holds.

    Raises:
        DamagedError: it is unreadable, or not as it was written.
    """
    try:
        content = json.loads(text)
        seal = content.pop("seal")
        files = {_inside(name): (int(size), str(digest)) for name, (size, digest) in content["files"].items()}
        manifest = Manifest(files, dict(content["about"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"no readable manifest: {error!r}", where=where) from error
    if seal != json_digest(content):
        raise DamagedError("the manifest is damaged: its seal does not fit", where=where)
    return manifest


def _inside(name: str) -> str:
    """Check that a relative path stays inside its directory."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} leads out of the directory")
    return name


def verify(
    directory: Path, read: Callable[[Sequence[Path]], Iterable[str]] = checksums, *, anywhere: bool = False
) -> Manifest:
    """Compare every file with the manifest.

    Args:
        directory: what is verified.
        read: gives the SHA-256 of each file, in their order.
        anywhere: as in :func:`read_manifest`.

    Raises:
        DamagedError: naming the first file that is missing, cut short or changed; or it is of another place.
    """
    manifest = read_manifest(directory, anywhere=anywhere)
    files = [directory / name for name in manifest.files]
    try:
        for file, (size, digest) in zip(files, manifest.files.values(), strict=True):
            if not file.is_file() or file.stat().st_size != size:
                raise _differs(file, size, digest)
        for file, (size, digest), digest_found in zip(files, manifest.files.values(), read(files), strict=True):
            if digest_found != digest:
                raise _differs(file, size, digest)
    except NOT_THERE as error:  # another task has moved or removed the directory meanwhile
        raise DamagedError(f"a file of it is gone: {error!r}", where=directory) from error
    return manifest


def _differs(file: Path, size: int, digest: str) -> DamagedError:
    return DamagedError(
        "file differs from the manifest: it is damaged or was changed",
        where=file,
        expected=f"{size} bytes, SHA-256 {digest}",
    )
