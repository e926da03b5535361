"""The trainer's benchmark at the stages of the recipes, each in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bench_trainer_gpu

from steps.record import Record

STAGES = {2: (("traces", "branches"), 0.64), 3: (("traces",), 0.24)}
"""The ZeRO stages of the recipes, each with its sets of sequences and its share of the time of the step."""


def run(record: Record) -> None:
    record.needs_gpu_unless_tiny()
    for stage, (sets, share) in STAGES.items():
        record.part(f"stage {stage}", updates, record, stage, sets, share)


def updates(record: Record, stage: int, sets: Sequence[str], share: float) -> dict[str, Any]:
    output = record.folder / f"benchmark-{stage}.json"
    command = [sys.executable, str(Path(bench_trainer_gpu.__file__)), "--shape", record.shape]
    command += ["--zero-stage", str(stage), "--sets", *sets, "--output", str(output)]
    command += ["--seconds", str(int(share * record.seconds))]
    if record.tiny:
        command += ["--device", "cpu", "--sequences", "2", "--rounds", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(ended.stderr[-4000:])
    return {"tables": ended.stdout.splitlines(), "updates": json.loads(output.read_text())}
