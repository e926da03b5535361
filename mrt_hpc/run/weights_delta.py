"""Weights versions that are published as deltas: what has changed in each tensor since the version before, to the bit.

The folder of a delta holds its changes and names its base, the version that it was made of, by number and digest. A
task puts the version together: it starts with a whole model, applies the deltas that follow one after the other, and
compares the result with a checksum of all tensors, which the trainer took of what it holds.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from blake3 import blake3

from mrt_hpc.run.atomic import CHECKSUMS_AT_ONCE, checksums, write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import MANIFEST, NOT_THERE, DamagedError, verify
from mrt_hpc.run.safetensors_file import SUFFIX, Bytes, SafetensorsFile, StoredTensor, weights_files, width_of
from mrt_hpc.run.weights import CHANGES, DELTA, is_delta

# -- bit changes -------------------------------------------------------------------------------------------------------
# What has changed between two arrays of bits, exactly: which elements, and by how much. Nothing is rounded: elements
# are taken for whole numbers of their width, so that it holds for every number format, NaNs and zeros of both signs
# included.
#
# Changed positions are stored as gaps, and values as differences with the sign in the lowest bit: an element that moves
# to a neighbouring floating-point number differs by 1 or -1 as a whole number. The bytes of each rank lie together
# before they are compressed, so that the high ones, nearly all zero, take no room.


CODEC = "zstd"
LEVEL = 1
"""The level of compression: higher ones gain a few per cent and take several times as long."""
UNSIGNED: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}
"""The unsigned whole numbers by their width in bytes."""


@dataclass(frozen=True)
class BitChanges:
    """The elements of an array that have changed."""

    count: int
    """How many."""
    gap_width: int
    """Bytes of a gap between two changed positions before compression: 1, 2, 4 or 8."""
    gaps: bytes
    """Compressed: for each changed element, the number of unchanged ones between it and the changed one before."""
    differences: bytes
    """Compressed: for each changed element, how much its bits changed as a whole number."""

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.gaps) + len(self.differences)


def bit_changes(old: Bytes, new: Bytes, width: int) -> BitChanges | None:
    """What makes ``new`` of ``old``; None where they are equal.

    Args:
        old: [bytes] before.
        new: [bytes] now.
        width: bytes of an element: 1, 2, 4 or 8.

    Raises:
        ValueError: the two have different lengths, or not a whole number of elements.
    """
    if len(old) != len(new):
        raise ValueError(f"{len(old)} bytes and {len(new)} bytes cannot be compared")
    before, now = old.view(UNSIGNED[width]), new.view(UNSIGNED[width])
    positions = np.flatnonzero(before != now)
    if not len(positions):
        return None
    gaps = np.diff(positions, prepend=-1) - 1
    gap_width = next(w for w in UNSIGNED if int(gaps.max()) < 256**w)
    packed = _packed(gaps.astype(UNSIGNED[gap_width]))
    return BitChanges(len(positions), gap_width, packed, _packed(_folded(now[positions] - before[positions])))


def apply_changes(array: Bytes, changes: BitChanges, width: int) -> None:
    """Make the new bytes of the old ones, in their place.

    Args:
        array: [bytes] those before the change; afterwards the new ones.
        changes: of :func:`bit_changes`.
        width: bytes of an element.

    Raises:
        ValueError: the changes do not fit the array.
    """
    elements = array.view(UNSIGNED[width])
    gaps = _unpacked(changes.gaps, changes.count, changes.gap_width)
    differences = _unfolded(_unpacked(changes.differences, changes.count, width))
    positions = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if len(positions) and not 0 <= positions[-1] < len(elements):
        raise ValueError(f"a change at element {positions[-1]} of {len(elements)}")
    elements[positions] += differences


def _folded(differences: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
    """[n] 0, -1, 1, -2, 2 ... as 0, 1, 2, 3, 4 ...: small ones of both signs become small numbers."""
    sign = differences >> (differences.itemsize * 8 - 1)
    return (differences << 1) ^ np.negative(sign)


def _unfolded(folded: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
    """The inverse of :func:`_folded`."""
    return (folded >> 1) ^ np.negative(folded & 1)


def _packed(values: npt.NDArray[np.unsignedinteger]) -> bytes:
    """Compress whole numbers: first all their lowest bytes, then all that stand next."""
    planes = np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T)
    return pa.Codec(CODEC, compression_level=LEVEL).compress(planes, asbytes=True)


def _unpacked(packed: bytes, count: int, width: int) -> npt.NDArray[np.unsignedinteger]:
    """The inverse of :func:`_packed`.

    Raises:
        ValueError: it is no compressed sequence of that many numbers.
    """
    try:
        unpacked = pa.Codec(CODEC).decompress(packed, decompressed_size=count * width, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"changes cannot be unpacked: {error}") from error
    if len(unpacked) != count * width:
        raise ValueError(f"{len(unpacked)} bytes were unpacked, where {count * width} are expected")
    planes = np.frombuffer(unpacked, np.uint8).reshape(width, count)
    return np.ascontiguousarray(planes.T).reshape(-1).view(UNSIGNED[width])


LARGEST_SHARE = 0.5
"""A delta that takes more than this share of the whole is not worth its chain: the version is published in full."""


class VersionKey(NamedTuple):
    """A weights version, and not another one of the same number."""

    version: int
    digest: str
    """The digest of its manifest."""


class TensorKind(NamedTuple):
    """What a tensor is, apart from its values."""

    name: str
    dtype: str
    """The name of its number format in safetensors, as in ``BF16``."""
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TensorBytes:
    """A tensor in memory."""

    kind: TensorKind
    data: Bytes
    """[bytes] Its values."""


class ContentsError(DamagedError):
    """The tensors that were put together are not those that the trainer published."""


class BrokenChainError(DamagedError):
    """A weights version cannot be put together.

    Args:
        damage: what is wrong with a link of its chain.
        versions: the versions that are of no use therefore: the one asked for, and those between it and the damage.
    """

    def __init__(self, damage: DamagedError, versions: Sequence[int]) -> None:
        super().__init__(damage.what, where=damage.where, expected=damage.expected)
        self.versions = tuple(versions)


@dataclass(frozen=True)
class WeightsDelta:
    """The changes that make a weights version of its base, in memory."""

    base: VersionKey
    contents: str
    """The checksum of all tensors of the version, see :func:`contents_of`."""
    changes: Mapping[str, BitChanges]
    """The changes by the names of the tensors that have changed."""

    def write(self, directory: Path) -> None:
        """Fill the folder of the delta."""
        parts: dict[str, dict[str, int]] = {}
        with (directory / CHANGES).open("wb") as stream:
            for name, change in self.changes.items():
                parts[name] = asdict(_Part.of(change, stream.tell()))
                stream.write(change.gaps)
                stream.write(change.differences)
        index = {"base": self.base._asdict(), "contents": self.contents, "tensors": parts}
        write_json(directory / DELTA, index, durable=False)


@dataclass(frozen=True)
class _Part:
    """Where the changes of a tensor stand in the file of changes."""

    count: int
    gap_width: int
    start: int
    gaps: int
    """Bytes of the compressed gaps, which stand first."""
    differences: int
    """Bytes of the compressed differences, which follow."""

    @staticmethod
    def of(change: BitChanges, start: int) -> "_Part":
        return _Part(change.count, change.gap_width, start, len(change.gaps), len(change.differences))


@dataclass(frozen=True)
class StoredDelta:
    """A delta that was published."""

    directory: Path
    base: VersionKey
    contents: str
    parts: Mapping[str, _Part]

    @staticmethod
    def read(directory: Path) -> "StoredDelta":
        """Read the index of a delta whose files were verified.

        Raises:
            DamagedError: it is no such index.
        """
        path = directory / DELTA
        try:
            index: dict[str, Any] = json.loads(path.read_bytes())
            base = VersionKey(int(index["base"]["version"]), str(index["base"]["digest"]))
            parts = {name: _Part(**fields) for name, fields in index["tensors"].items()}
            return StoredDelta(directory, base, str(index["contents"]), parts)
        except (*NOT_THERE, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"no readable index of a delta: {error!r}", where=path) from error

    def apply(self, name: str, data: Bytes, width: int) -> None:
        """Change a tensor of the base, in its place, into that of this version.

        Args:
            name: of the tensor.
            data: [bytes] its values.
            width: bytes of an element.

        Raises:
            DamagedError: the changes do not fit it, or are not there any more.
        """
        if (part := self.parts.get(name)) is None:
            return
        try:
            packed = np.fromfile(self.directory / CHANGES, np.uint8, part.gaps + part.differences, offset=part.start)
            gaps, differences = packed[: part.gaps].tobytes(), packed[part.gaps :].tobytes()
            apply_changes(data, BitChanges(part.count, part.gap_width, gaps, differences), width)
        except (*NOT_THERE, ValueError) as error:  # another task may have set it aside meanwhile
            raise DamagedError(
                f"the changes of tensor {name} cannot be applied: {error}", where=self.directory
            ) from error


def contents_of(tensors: Sequence[TensorBytes]) -> str:
    """The checksum of all tensors with their names, number formats and shapes, in whichever files they stand."""
    with ThreadPoolExecutor(CHECKSUMS_AT_ONCE) as pool:
        sums = pool.map(lambda tensor: (tensor.kind, _blake3(tensor.data)), tensors)
        return _checksum_of_all(sums)


def _blake3(data: Bytes) -> str:
    """A checksum in a fourth of the time of SHA-256. With SHA-256, a delta took longer to load than a whole model."""
    return blake3(data.data).hexdigest()


def _checksum_of_all(sums: Iterable[tuple[TensorKind, str]]) -> str:
    return hashlib.sha256(json.dumps(sorted((*kind, digest) for kind, digest in sums)).encode()).hexdigest()


def delta_between(base: VersionKey, old: Sequence[TensorBytes], new: Sequence[TensorBytes]) -> WeightsDelta | None:
    """What has changed from the tensors of one version to those of the next; None where it is not worth a delta:
    other tensors, or changes that take more than :data:`LARGEST_SHARE` of the whole.
    """
    if [tensor.kind for tensor in old] != [tensor.kind for tensor in new]:
        return None
    with ThreadPoolExecutor(CHECKSUMS_AT_ONCE) as pool:
        of_each = list(pool.map(lambda a, b: bit_changes(a.data, b.data, width_of(b.kind.dtype)), old, new))
    changes = {tensor.kind.name: change for tensor, change in zip(new, of_each, strict=True) if change is not None}
    if sum(change.size for change in changes.values()) > LARGEST_SHARE * sum(len(tensor.data) for tensor in new):
        return None
    return WeightsDelta(base, contents_of(new), changes)


@dataclass(frozen=True)
class Chain:
    """What a weights version is put together of."""

    key: VersionKey
    """The key of the version."""
    start: Path
    """The folder of a whole model."""
    links: tuple[StoredDelta, ...]
    """The deltas to apply to it, in this order; none where ``start`` is the version itself."""
    versions: tuple[int, ...]
    """Those of the links."""
    held: VersionKey | None
    """The version that ``start`` is, where it was put together before; None where it is published."""


def chain_to(
    layout: RunLayout,
    version: int,
    held: Mapping[VersionKey, Path] | None = None,
    read: Callable[[Sequence[Path]], Iterable[str]] = checksums,
) -> Chain:
    """What a published version is put together of. All that is read of the run directory is verified.

    Args:
        layout: of the run.
        version: its number.
        held: the folders of versions that were put together before: the chain starts at the nearest of them.
        read: gives the SHA-256 of each file, in their order.

    Raises:
        BrokenChainError: the version, or a link of its chain, is damaged or not there.
    """
    there, links, versions = held or {}, list[StoredDelta](), [version]
    try:
        top = wanted = VersionKey(version, verify(layout.weights_version(version), read).digest)
        while wanted not in there and is_delta(directory := layout.weights_version(wanted.version)):
            link = StoredDelta.read(directory)
            if link.base.version >= wanted.version:
                raise DamagedError(f"a delta of the later version {link.base.version}", where=directory)
            links.append(link)
            wanted = link.base
            if wanted not in there:
                versions.append(wanted.version)
                if verify(layout.weights_version(wanted.version), read).digest != wanted.digest:
                    versions.pop()  # that version is sound: training has gone back in the meantime
                    raise DamagedError(
                        f"weights version {wanted.version} is not the one that this delta was made of",
                        where=directory,
                        expected=f"digest {wanted.digest}",
                    )
    except DamagedError as damage:
        raise BrokenChainError(damage, versions) from damage
    return Chain(
        top,
        there[wanted] if wanted in there else layout.weights_version(wanted.version),
        tuple(reversed(links)),
        tuple(reversed(versions[: len(links)])),
        wanted if wanted in there else None,
    )


def put_together(
    chain: Chain, directory: Path, *, go_on: Callable[[], None] = lambda: None, at_once: int = CHECKSUMS_AT_ONCE
) -> None:
    """Fill a folder with the model that a chain stands for.

    Args:
        chain: with at least one link.
        directory: an empty folder; or one that holds another version, which nothing reads any more: its files are
            written over, which takes less time than new ones.
        go_on: called before each tensor; raises where the model is not wanted any more.
        at_once: the number of tensors that are read, changed and written in parallel.

    Raises:
        ContentsError: the tensors are not those that were published.
        DamagedError: a file that was verified before is damaged now.
        OSError: the folder's disk is full.
    """
    files = weights_files(chain.start)
    try:
        _begin_files(chain.start, files, directory)
    except NOT_THERE as error:
        raise DamagedError(f"a file is not there any more: {error}", where=chain.start) from error
    largest_first = sorted((t for file in files for t in file.tensors), key=lambda t: t.size, reverse=True)
    write = partial(_write_tensor, links=chain.links, directory=directory, go_on=go_on)
    with ThreadPoolExecutor(max(1, at_once)) as pool:
        contents = _checksum_of_all(pool.map(write, largest_first))
    if contents != (published := chain.links[-1].contents):
        raise ContentsError(
            "the tensors that were put together are not those that were published",
            where=chain.links[-1].directory,
            expected=f"contents {published}",
        )


def _begin_files(start: Path, files: Sequence[SafetensorsFile], directory: Path) -> None:
    """Make all files of a model but for the values of its tensors, and remove those that are not of it."""
    small = {file.name for file in start.iterdir() if file.is_file() and file.suffix != SUFFIX} - {MANIFEST}
    names = small | {file.path.name for file in files}
    for path in directory.iterdir():
        if path.name not in names:
            path.unlink()
    for name in small:  # configuration, tokenizer, the index of the files of weights
        shutil.copyfile(start / name, directory / name)
    for file in files:
        _begin_file(file, directory / file.path.name)


def _begin_file(file: SafetensorsFile, path: Path) -> None:
    path.touch()
    with path.open("r+b") as stream:
        stream.write(file.head)
        stream.truncate(file.path.stat().st_size)


def _write_tensor(
    tensor: StoredTensor, links: Sequence[StoredDelta], directory: Path, go_on: Callable[[], None]
) -> tuple[TensorKind, str]:
    """Write a tensor with the changes of all links into its file. Plain writes, so that a full disk is an error.

    Returns:
        The kind of the tensor, and its BLAKE3 checksum.
    """
    go_on()
    data = _changed(tensor, links)
    with (directory / tensor.file.name).open("r+b") as stream:
        stream.seek(tensor.start)
        stream.write(data.data)
    return TensorKind(tensor.name, tensor.dtype, tensor.shape), _blake3(data)


def _changed(tensor: StoredTensor, links: Sequence[StoredDelta]) -> Bytes:
    """[size] A tensor of the start, with the changes of all links."""
    data = tensor.read()
    for link in links:
        link.apply(tensor.name, data, width_of(tensor.dtype))
    return data


def tensor_kinds(directory: Path) -> list[TensorKind]:
    """The tensors of a model's files, by name.

    Raises:
        DamagedError: a file is no file of weights.
    """
    files = weights_files(directory)
    return sorted(TensorKind(tensor.name, tensor.dtype, tensor.shape) for file in files for tensor in file.tensors)
