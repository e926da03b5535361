"""`benchmarks/gpu/first_day.py` with tiny shapes on a CPU: the steps that do not need a GPU find what they should."""

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from bench_trainer_gpu import VARIANTS
from conftest import ROOT

pytestmark = pytest.mark.nightly  # it rehearses a script for GPUs
STEPS = ("facts", "attention", "parking", "benchmark", "saving")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("first_day") / "day.json"
    command = [sys.executable, str(ROOT / "benchmarks/gpu/first_day.py"), "--tiny", "--output", str(output), "--steps"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run([*command, *STEPS], env=environment, capture_output=True, timeout=600, check=False)
    found: dict[str, Any] = json.loads(output.read_text())["steps"]
    assert ended.returncode == 0, json.dumps(found, indent=1)
    return found


def test_each_step_ends(steps: dict[str, Any]) -> None:
    assert {name: step["status"] for name, step in steps.items()} == dict.fromkeys(STEPS, "done")
    assert steps["facts"]["parts"]["driver check"]["refused"]


def test_every_way_of_attention_is_as_near_to_32_bits_as_rounding(steps: dict[str, Any]) -> None:
    compared = [part for part in steps["attention"]["parts"].values() if "nats_max" in part]
    assert len(compared) == 2 * 3 * 6  # kernels, kinds of models, ways
    assert max(part["gradient_error"] for part in compared) < 0.03
    assert max(part["nats_max"] for part in compared) < 0.1
    assert all(part.get("same_bits_again", True) for part in compared)
    lone = [part for part in steps["attention"]["parts"].values() if "output_error" in part]
    assert max(max(part["output_error"], *part["gradient_error"]) for part in lone) < 0.02


def test_the_benchmark_has_a_table_for_each_stage_and_set_of_the_recipes(steps: dict[str, Any]) -> None:
    measured = steps["benchmark"]["parts"]
    sets = {stage: list(part["updates"]) for stage, part in measured.items()}
    assert sets == {"stage 2": ["traces", "branches"], "stage 3": ["traces"]}
    for part in measured.values():
        variants = [variant for of_set in part["updates"].values() for variant in of_set]
        assert all(variant["seconds"] and not variant["problem"] for variant in variants)
        rows = [line for line in part["tables"] if line.startswith("| ") and not re.search("tokens/s|---", line)]
        assert len(rows) == len(variants) == len(part["updates"]) * len(VARIANTS)
    *_, packed, shared = measured["stage 2"]["updates"]["branches"]
    assert shared["flops"] < 0.7 * packed["flops"]


def test_parked_engines_and_a_resumed_trainer_come_back_to_the_bit(steps: dict[str, Any]) -> None:
    turns = [turn for part in steps["parking"]["parts"].values() for turn in part["turns"]]
    assert len(turns) == 9 and all(turn["same_bits"] and turn["parked_gib"] > 0 for turn in turns)
    saved = steps["saving"]["parts"]
    assert saved["publish"]["same_bits"] and saved["update that goes on"]["changed"]
    assert saved["resume"]["same_bits"] and saved["resume"]["same_bits_after_update"]
