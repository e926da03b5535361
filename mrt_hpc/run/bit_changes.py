"""What has changed between two arrays of bits, exactly: which elements, and by how much.

Nothing is rounded: elements are taken for whole numbers of their width, so that it holds for every number format, NaNs
and zeros of both signs included. Changed positions are stored as gaps, and values as differences with the sign in the
lowest bit. The bytes of each rank lie together before they are compressed, so that the high ones, nearly all zero, take
no room.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mrt_hpc.run.safetensors_file import Bytes

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
    differences = _unfold_signs(_unpack_bytes(changes.differences, changes.count, width))
    positions = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if len(positions) and not 0 <= positions[-1] < len(elements):
        raise ValueError(f"a change at element {positions[-1]} of {len(elements)}")
    elements[positions] += differences


def _fold_signs(differences: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
    """[n] 0, -1, 1, -2, 2 ... become 0, 1, 2, 3, 4 ..., so that small differences stay small numbers."""
    sign = differences >> (differences.itemsize * 8 - 1)
    return (differences << 1) ^ np.negative(sign)


def _unfold_signs(folded: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
    return (folded >> 1) ^ np.negative(folded & 1)


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
