"""The shrunk quickstart with inference, trainer and evaluation on a GPU, one after the other, so that one GPU is
enough.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.run.layout import RunLayout

ROOT = Path(__file__).parents[2]
CHANGES = [
    "schedule={iterations: 2, iterations_per_job: 1, coupling: sequential}", "serving.dtype=bfloat16",
    "training.precision=bf16", "training.zero_stage=3", "resources.inference.gpus=1", "resources.trainer.gpus=1",
    "resources.evaluation.gpus=1", "evaluation.benchmarks.0.problems.problems=20",
]  # fmt: skip

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no GPU: nvidia-smi is not there"),
]


def test_a_run_on_a_gpu_reaches_its_report(tmp_path: Path) -> None:
    sets = [part for change in CHANGES for part in ("--set", change)]
    command = [sys.executable, "-m", "mrt_hpc", "submit", str(ROOT / "recipes/quickstart.yaml")]
    result = subprocess.run(
        [*command, "--run", str(tmp_path / "run"), *sets], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    layout = RunLayout(tmp_path / "run")
    assert layout.report.is_file()
    metrics = IterationMetrics.read(layout.metrics(1))
    assert metrics.mismatch_mean == pytest.approx(1.0, abs=0.05)  # trainer and server agree on the GPU as well
