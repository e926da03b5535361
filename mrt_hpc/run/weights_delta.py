"""Weights versions published as deltas: the exact changes of each tensor since the version before.

A delta's folder holds its changes and names its base by number and digest. A task starts with a whole model, applies
the deltas in order, and compares the result with the trainer's checksum of all tensors.
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
"""Higher levels gain a few per cent and take several times as long."""
UNSIGNED: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}


@dataclass(frozen=True)
class BitChanges:
    """The changed elements of an array."""

    count: int
    gap_width: int
    """Bytes of a gap before compression: 1, 2, 4 or 8."""
    gaps: bytes
    """Compressed: the number of unchanged elements before each changed one."""
    differences: bytes
    """Compressed: each element's change of bits, as a whole number."""

    @property
    def size(self) -> int:
        return len(self.gaps) + len(self.differences)


def bit_changes(old: Bytes, new: Bytes, width: int) -> BitChanges | None:
    """The changes from ``old`` to ``new``, both [bytes] with ``width`` bytes an element; None where they are equal.

    Raises:
        ValueError: different lengths, or not a whole number of elements.
    """
    if len(old) != len(new):
        raise ValueError(f"{len(old)} bytes and {len(new)} bytes cannot be compared")
    before, now = old.view(UNSIGNED[width]), new.view(UNSIGNED[width])
    positions = np.flatnonzero(before != now)
    if not len(positions):
        return None
    gaps = np.diff(positions, prepend=-1) - 1
    gap_width = next(w for w in UNSIGNED if int(gaps.max()) < 256**w)
    packed = _pack_bytes(gaps.astype(UNSIGNED[gap_width]))
    return BitChanges(len(positions), gap_width, packed, _pack_bytes(_fold_signs(now[positions] - before[positions])))


def apply_changes(array: Bytes, changes: BitChanges, width: int) -> None:
    """Turn the old bytes of ``array`` into the new ones in place."""
    elements = array.view(UNSIGNED[width])
    gaps = _unpack_bytes(changes.gaps, changes.count, changes.gap_width)
    folded = _unpack_bytes(changes.differences, changes.count, width)
    positions = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if len(positions) and not 0 <= positions[-1] < len(elements):
        raise ValueError(f"a change at element {positions[-1]} of {len(elements)}")
    elements[positions] += (folded >> 1) ^ np.negative(folded & 1)  # see _fold_signs


def _fold_signs(differences: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
    """[n] 0, -1, 1, -2, 2 ... become 0, 1, 2, 3, 4 ..., so that small differences stay small numbers."""
    sign = differences >> (differences.itemsize * 8 - 1)
    return (differences << 1) ^ np.negative(sign)


def _pack_bytes(values: npt.NDArray[np.unsignedinteger]) -> bytes:
    """Compress whole numbers: all lowest bytes first, then the next ones."""
    planes = np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T)
    return pa.Codec(CODEC, compression_level=LEVEL).compress(planes, asbytes=True)


def _unpack_bytes(packed: bytes, count: int, width: int) -> npt.NDArray[np.unsignedinteger]:
    try:
        unpacked = pa.Codec(CODEC).decompress(packed, decompressed_size=count * width, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"changes cannot be unpacked: {error}") from error
    if len(unpacked) != count * width:
        raise ValueError(f"{len(unpacked)} bytes were unpacked, where {count * width} are expected")
    planes = np.frombuffer(unpacked, np.uint8).reshape(width, count)
    return np.ascontiguousarray(planes.T).reshape(-1).view(UNSIGNED[width])


LARGEST_SHARE = 0.5
"""A delta with more than this share of the whole is not worth its chain: the version is published in full."""


class VersionKey(NamedTuple):
    """A weights version; the digest tells it from others of the same number."""

    version: int
    digest: str
    """Of its manifest."""


class TensorKind(NamedTuple):
    """A tensor without its values."""

    name: str
    dtype: str
    """As safetensors names it, e.g. ``BF16``."""
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TensorBytes:
    kind: TensorKind
    data: Bytes
    """[bytes]"""


class ContentsError(DamagedError):
    """The tensors of the result are not those that the trainer published."""


class BrokenChainError(DamagedError):
    """A weights version cannot be put together.

    Args:
        damage: in a link of its chain.
        versions: useless now: the one asked for, and those between it and the damage.
    """

    def __init__(self, damage: DamagedError, versions: Sequence[int]) -> None:
        super().__init__(damage.what, where=damage.where, expected=damage.expected)
        self.versions = tuple(versions)


@dataclass(frozen=True)
class WeightsDelta:
    """The changes from a base to a weights version, in memory."""

    base: VersionKey
    contents: str
    """See :func:`contents_of`."""
    changes: Mapping[str, BitChanges]
    """By tensor; only those that have changed."""

    def write(self, directory: Path) -> None:
        parts: dict[str, dict[str, int]] = {}
        with (directory / CHANGES).open("wb") as stream:
            for name, change in self.changes.items():
                sizes = len(change.gaps), len(change.differences)
                parts[name] = asdict(_Part(change.count, change.gap_width, stream.tell(), *sizes))
                stream.write(change.gaps)
                stream.write(change.differences)
        index = {"base": self.base._asdict(), "contents": self.contents, "tensors": parts}
        write_json(directory / DELTA, index, durable=False)


@dataclass(frozen=True)
class _Part:
    """A tensor's place in the file of changes."""

    count: int
    gap_width: int
    start: int
    gaps: int
    """Bytes of the compressed gaps, which come first."""
    differences: int
    """Bytes of the compressed differences, which follow."""


@dataclass(frozen=True)
class StoredDelta:
    """A published delta."""

    directory: Path
    base: VersionKey
    contents: str
    parts: Mapping[str, _Part]

    @staticmethod
    def read(directory: Path) -> "StoredDelta":
        """Read the index of a delta whose files were verified."""
        path = directory / DELTA
        try:
            index: dict[str, Any] = json.loads(path.read_bytes())
            base = VersionKey(int(index["base"]["version"]), str(index["base"]["digest"]))
            parts = {name: _Part(**fields) for name, fields in index["tensors"].items()}
            return StoredDelta(directory, base, str(index["contents"]), parts)
        except (*NOT_THERE, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"no readable index of a delta: {error!r}", where=path) from error

    def apply(self, name: str, data: Bytes, width: int) -> None:
        """Change a tensor of the base, [bytes] with ``width`` bytes an element, in place into that of this version.

        Raises:
            DamagedError: the changes do not fit it, or are gone.
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
    """The checksum of all tensors with names, number formats and shapes; their files do not matter."""
    with ThreadPoolExecutor(CHECKSUMS_AT_ONCE) as pool:
        sums = pool.map(lambda tensor: (tensor.kind, _blake3(tensor.data)), tensors)
        return _checksum_of_all(sums)


def _blake3(data: Bytes) -> str:
    """Takes a fourth of the time of SHA-256, with which a delta took longer to load than a whole model."""
    return blake3(data.data).hexdigest()


def _checksum_of_all(sums: Iterable[tuple[TensorKind, str]]) -> str:
    return hashlib.sha256(json.dumps(sorted((*kind, digest) for kind, digest in sums)).encode()).hexdigest()


def delta_between(base: VersionKey, old: Sequence[TensorBytes], new: Sequence[TensorBytes]) -> WeightsDelta | None:
    """The changes between two versions; None where other tensors, or changes of more than :data:`LARGEST_SHARE`, make a
    delta not worth it.
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
    """The parts of a weights version."""

    key: VersionKey
    start: Path
    """The folder of a whole model."""
    links: tuple[StoredDelta, ...]
    """Applied in this order; empty where ``start`` is the version itself."""
    versions: tuple[int, ...]
    held: VersionKey | None
    """The version of ``start`` where it was put together before; None where it is published."""


def chain_to(
    layout: RunLayout,
    version: int,
    held: Mapping[VersionKey, Path] | None = None,
    read: Callable[[Sequence[Path]], Iterable[str]] = checksums,
) -> Chain:
    """The chain of a published version, verified.

    Args:
        held: versions that were put together before; the chain starts at the nearest.
        read: gives the SHA-256 of each file, in order.

    Raises:
        BrokenChainError: the version, or a link of its chain, is damaged or missing.
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
                    what = f"weights version {wanted.version} is not the one that this delta was made of"
                    raise DamagedError(what, where=directory, expected=f"digest {wanted.digest}")
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
    """Fill a folder with the model of a chain of at least one link.

    Args:
        directory: empty, or with another version that nothing reads: overwriting takes less time than new files.
        go_on: called before each tensor; raises where the model is not wanted any more.
        at_once: tensors in parallel.

    Raises:
        ContentsError: the tensors are not those that were published.
        DamagedError: a file that was verified before is damaged now.
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
    """Write all but the values of the tensors, and remove files that are not the model's."""
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
    """Write a tensor with the changes of all links, by plain writes: a full disk is then an error. Returns its kind and
    BLAKE3 checksum.
    """
    go_on()
    data = tensor.read()
    for link in links:
        link.apply(tensor.name, data, width_of(tensor.dtype))
    with (directory / tensor.file.name).open("r+b") as stream:
        stream.seek(tensor.start)
        stream.write(data.data)
    return TensorKind(tensor.name, tensor.dtype, tensor.shape), _blake3(data)


def tensor_kinds(directory: Path) -> list[TensorKind]:
    """The tensors of a model's files, by name."""
    files = weights_files(directory)
    return sorted(TensorKind(tensor.name, tensor.dtype, tensor.shape) for file in files for tensor in file.tensors)
