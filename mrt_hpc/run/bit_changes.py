"""What has changed between two arrays of bits, exactly: which elements, and by how much. Nothing is rounded: elements
are taken for whole numbers of their width, so that it holds for every number format, NaNs and zeros of both signs
included.

Changed positions are stored as gaps, and values as differences with the sign in the lowest bit: an element that moves
to a neighbouring floating-point number differs by 1 or -1 as a whole number. The bytes of each rank lie together
before they are compressed, so that the high ones, nearly all zero, take no room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from mrt_hpc.run.safetensors_file import Bytes

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
