"""The memory that a plan predicts, beside that of real updates."""

import json
from pathlib import Path

import pytest
from memory_worker import TINY, write_model
from training_support import run_ranks

from mrt_hpc.plan.memory import ModelShape

pytestmark = pytest.mark.nightly  # other work on the machine moves the peak and takes its memory
SHAPE = ModelShape(512, 1536, 4, 8, 2, 64, 16384, tied=False)


@pytest.mark.parametrize(("stage", "ranks", "tokens"), [
    (1, 1, 1024), (2, 2, 64)
], ids=["logits are the peak", "the exchange is the peak"])  # fmt: skip
def test_the_peak_of_an_update_is_as_predicted(
    stage: int, ranks: int, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "262144")  # freed blocks go back at once: the peak is what is in use
    write_model(tmp_path / "model", SHAPE)
    write_model(tmp_path / "tiny", TINY)
    training = {"zero_stage": stage, "max_tokens_per_micro_batch": tokens}
    case = {"models": str(tmp_path), "model": "model", "precision": "bf16", "training": training}
    case["lengths"] = [tokens] * ranks
    run_ranks("memory_worker.py", [str(tmp_path), json.dumps(case)], ranks, tmp_path)
    found = json.loads((tmp_path / "memory-0.json").read_text())
    assert found["predicted"] == pytest.approx(found["peak"], rel=0.15)
