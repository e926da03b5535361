"""The tensors of a file of weights are found by its header, and no damaged file is taken."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mrt_hpc.run.manifest import DamagedError
from mrt_hpc.run.safetensors_file import stored_tensors, width_of


def test_the_tensors_of_a_file_are_found_where_they_lie(tmp_path: Path) -> None:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(5, dtype=np.float16)}
    save_file(tensors, path := tmp_path / "model.safetensors", {"format": "pt"})
    found = stored_tensors(path)
    assert {t.name: (t.dtype, t.shape) for t in found} == {"a": ("F32", (2, 3)), "b": ("F16", (5,))}
    content = path.read_bytes()
    assert {t.name: content[t.start : t.start + t.size] for t in found} == {n: t.tobytes() for n, t in tensors.items()}
    assert [width_of(t.dtype) * int(np.prod(t.shape)) for t in found] == [t.size for t in found]


def test_a_file_that_is_none_or_gone_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"no weights")
    for damaged in (path, tmp_path / "gone.safetensors"):
        with pytest.raises(DamagedError):
            stored_tensors(damaged)
