"""What has changed between two arrays of bits is found exactly, whatever the bits stand for."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mrt_hpc.run.bit_changes import UNSIGNED, apply_changes, bit_changes
from mrt_hpc.run.manifest import DamagedError
from mrt_hpc.run.safetensors_file import Bytes, SafetensorsFile, weights_files, width_of


def elements(width: int, count: int, seed: int) -> Bytes:
    """Random bits: NaNs, infinities and zeros of both signs are among them."""
    return np.random.default_rng(seed).integers(0, 256, width * count, np.uint8)


def assert_comes_back(old: Bytes, new: Bytes, width: int) -> None:
    found = bit_changes(old, new, width)
    assert (found is None) == np.array_equal(old, new)
    if found is not None:
        apply_changes(old, found, width)
    assert np.array_equal(old, new)


@given(
    st.sampled_from(sorted(UNSIGNED)), st.integers(0, 2000), st.sampled_from([0.0, 0.001, 0.02, 0.5, 1.0]),
    st.integers(0, 2**31),
)  # fmt: skip
def test_the_new_bits_come_back(width: int, count: int, share: float, seed: int) -> None:
    old, draw = elements(width, count, seed), np.random.default_rng(seed + 1)
    new, chosen = old.copy(), draw.random(count) < share
    new.reshape(-1, width)[chosen] = draw.integers(0, 256, (int(chosen.sum()), width), np.uint8)
    assert_comes_back(old, new, width)


def test_far_apart_changes_come_back() -> None:
    for gap in (200, 300, 70_000):
        old = np.zeros(2 * (gap + 2), np.uint8)
        new = old.copy()
        new[[0, -1]] = 255
        assert_comes_back(old, new, 2)


def test_changes_of_a_longer_array_are_refused() -> None:
    long = elements(2, 100, seed=0)
    found = bit_changes(long, long ^ 1, 2)
    assert found is not None
    with pytest.raises(ValueError, match="of 50"):
        apply_changes(elements(2, 50, seed=0), found, 2)
    with pytest.raises(ValueError, match="cannot be compared"):
        bit_changes(long, long[:2], 2)


def test_a_file_of_weights_is_read_as_bytes(tmp_path: Path) -> None:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(5, dtype=np.float16)}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (file,) = weights_files(tmp_path)
    assert {t.name: (t.dtype, t.shape) for t in file.tensors} == {"a": ("F32", (2, 3)), "b": ("F16", (5,))}
    assert {t.name: t.read().tobytes() for t in file.tensors} == {n: t.tobytes() for n, t in tensors.items()}
    assert [width_of(t.dtype) * int(np.prod(t.shape)) for t in file.tensors] == [t.size for t in file.tensors]
    whole = file.head + b"".join(t.read().tobytes() for t in file.tensors)
    assert whole == file.path.read_bytes()


def test_a_file_that_is_cut_short_or_none_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": np.arange(6, dtype=np.float32)}, path)
    tensor = SafetensorsFile.read(path).tensors[0]
    for content, read in ((path.read_bytes()[:-1], tensor.read), (b"no weights", partial(SafetensorsFile.read, path))):
        path.write_bytes(content)
        with pytest.raises(DamagedError):
            read()
    path.unlink()
    with pytest.raises(DamagedError):
        tensor.read()
