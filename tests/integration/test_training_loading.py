"""A model that is partitioned while it is made is the model that is loaded whole, to the byte, on every rank."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from training_support import run_ranks, tiny_model

if TYPE_CHECKING:
    from pathlib import Path


def test_a_partitioned_model_is_the_whole_one(tmp_path: Path) -> None:
    """Weights, and what belongs to none: the frequencies of positions are in 32 bits in any precision."""
    models = [tiny_model(tmp_path / f"tied-{tied}", tied=tied, hidden=33) for tied in (True, False)]
    run_ranks("training_loading_worker.py", [str(tmp_path), *map(str, models)], 2, tmp_path, timeout_s=120)
    for rank in range(2):
        seen = json.loads((tmp_path / f"seen-{rank}.json").read_text())
        assert len(seen) == 6
        for case, tensors in seen.items():
            assert any(name.endswith("inv_freq") for name in tensors)
            assert [name for name, is_same in tensors.items() if not is_same] == [], case
