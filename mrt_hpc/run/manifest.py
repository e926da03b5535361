"""Manifests make a directory whole: weights versions, checkpoints, groups and evaluation shards all have one.

A manifest lists every file with size and SHA-256, and is sealed by its own checksum. It is written last, so a directory
under its own name is complete. It names the run and the path there, which readers compare: a whole directory of another
run, iteration or position is as wrong as a damaged one.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from mrt_hpc.errors import Advice, ExitCode, UserError, retryable_error
from mrt_hpc.recipe.ownership import file_bytes
from mrt_hpc.run.access import share_as_directory
from mrt_hpc.run.atomic import checksum, checksums, commit_directory, make_folder, temporary_sibling, tree, write_json
from mrt_hpc.run.layout import IDENTITY
from mrt_hpc.run.retries import error_number, filesystem_advice

MANIFEST = "MANIFEST.json"
PLACE = "place"
"""Entry of a manifest: where its directory belongs."""
LONGEST_IDENTITY = 200
"""Bytes of the file with the name of a run."""
FileSum = tuple[int, str]
"""Bytes and SHA-256 of a file."""
SMALL_BYTES = 2**20
"""Total bytes below which files count as small."""
NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""The errors that mean damage; other system errors are raised unchanged."""


class DamagedError(UserError):
    """The content is not what was written. Filesystem errors are never converted to this: a file that cannot be read
    now may be whole.
    """

    def __init__(self, what: str, *, where: object, expected: str | None = None) -> None:
        super().__init__(what, where=where, expected=expected, exit_code=ExitCode.RETRYABLE)


def is_of_the_filesystem(error: BaseException) -> bool:
    """Whether the filesystem, not the file, caused an error."""
    return error_number(error) is not None and not isinstance(error, NOT_THERE)


def unreadable(path: Path, error: Exception) -> UserError:
    """The error for a file that cannot be read now and may be whole."""
    return retryable_error(
        f"the file cannot be read at the moment: {error!r}", where=path, advice=filesystem_advice(error)
    )


@dataclass(frozen=True)
class Manifest:
    files: dict[str, FileSum]
    """Relative path to (bytes, SHA-256)."""
    about: dict[str, Any]
    """Origin: version, iteration, attempt, time."""

    @property
    def digest(self) -> str:
        """SHA-256 over names, sizes and checksums, without ``about``."""
        return json_digest(sorted(self.files.items()))


def json_digest(value: Any) -> str:
    """SHA-256 of a value's JSON with sorted names."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def commit_whole(path: Path, write: Callable[[Path], None], **about: Any) -> bool:
    """Fill a directory, add its manifest, and make it appear as ``path`` in one step.

    Returns:
        False if ``path`` existed; the new directory is then removed.
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
    """Add a manifest of all files in ``directory``: the last write before the commit, which syncs it.

    Args:
        written: size and checksum by relative path, of files that need not be read.
        about: the origin.
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
    """Sums of files that this process has just written and that are in memory: small ones are read in turn, as threads
    would take longer to start.
    """
    paths = {name: directory / name for name in sorted(names)}
    sizes = [path.stat().st_size for path in paths.values()]
    digests = checksums([*paths.values()]) if sum(sizes) > SMALL_BYTES else map(checksum, paths.values())
    return dict(zip(paths, zip(sizes, digests, strict=True), strict=True))


def place_of(path: Path) -> list[str]:
    """The name of the run (or folder of results), and the path there. Empty outside any."""
    for root in path.parents:
        try:
            name = file_bytes(root / IDENTITY, LONGEST_IDENTITY).decode().strip()
        except NOT_THERE:
            continue
        except ValueError as error:
            raise UserError(
                f"the name of the run cannot be read: {error}",
                where=root / IDENTITY,
                advice=Advice(
                    "grep -A2 {place} {path} shows the name; write it into that file", place=PLACE, path=path / MANIFEST
                ),
            ) from error
        return [name, path.relative_to(root).as_posix()]
    return []


def refuse_misplaced(manifest: Manifest, path: Path) -> None:
    """Refuse a directory of another run, iteration, position, number or benchmark. ``path`` is where it stands, also
    where an archive holds it.
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
            advice=Advice(
                "where {identity} was deleted: echo {written} > RUN/{identity}", identity=IDENTITY, written=written[0]
            ),
        )
    if written and written[1:] == here[1:]:
        _refuse_other_name(path, here[0], here[1], written[0])
    expected = f"{here[1]} of the run {here[0]}; it is {' of the run '.join(reversed(written)) or 'of no run'}"
    raise DamagedError("it is whole, and belongs to another place", where=path, expected=expected)


def _refuse_other_name(path: Path, here: str, place: str, name: str) -> None:
    """Refuse a run's name that no part of it has: the parts are whole, and that file is not."""
    root, names = path.parents[len(PurePosixPath(place).parts) - 1], set()
    for part in [*root.glob("weights/v*"), *root.glob("checkpoints/step*"), *islice(root.glob("*/*/groups/*"), 1)]:
        with suppress(DamagedError):
            names.add(str((read_manifest(part, anywhere=True).about.get(PLACE) or [""])[0]))
    if names != {name}:
        return
    raise UserError(
        "the file with the name of the run was damaged: all parts of the run have another name",
        value=here,
        where=root / IDENTITY,
        expected=name,
        advice=Advice(
            "echo {name} > {run}, and the same command again; nothing else is damaged", name=name, run=root / IDENTITY
        ),
    )


def read_manifest(directory: Path, *, anywhere: bool = False) -> Manifest:
    """The manifest of a complete directory.

    Args:
        anywhere: the directory may belong elsewhere, as when a run takes over another's.

    Raises:
        DamagedError: missing, unreadable, changed, or of another place.
    """
    path = directory / MANIFEST
    try:
        content = file_bytes(path)
    except (*NOT_THERE, ValueError) as error:
        raise DamagedError(f"no readable manifest: {error!r}", where=path) from error
    return parse_manifest(content, path, None if anywhere else directory)


def parse_manifest(text: bytes, where: Path, place: Path | None) -> Manifest:
    """A manifest from ``where``, of a directory at ``place``; None for any."""
    try:
        content = json.loads(text)
        seal = content.pop("seal")
        files = {_require_inside(name): (int(size), str(digest)) for name, (size, digest) in content["files"].items()}
        manifest = Manifest(files, dict(content["about"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"no readable manifest: {error!r}", where=where) from error
    if seal != json_digest(content):
        raise DamagedError("the manifest is damaged: its seal does not fit", where=where)
    if place is not None:
        refuse_misplaced(manifest, place)
    return manifest


def _require_inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} leads out of the directory")
    return name


def verify(
    directory: Path, read: Callable[[Sequence[Path]], Iterable[str]] = checksums, *, anywhere: bool = False
) -> Manifest:
    """Compare every file with the manifest.

    Args:
        read: gives the SHA-256 of each file, in order.
        anywhere: as in :func:`read_manifest`.

    Raises:
        DamagedError: names the first file missing, cut short or changed; or another place.
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
    what = "file differs from the manifest: it is damaged or was changed"
    return DamagedError(what, where=file, expected=f"{size} bytes, SHA-256 {digest}")
