"""The parts of `tests/benchmarks/bench_against_trl.py` that need no TRL: arithmetic, and the exchange with a side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SIDE = """
import sys
sys.path.insert(0, {folder!r})
from step_worker import Measured, serve
print("a library writes this")
serve({{"step": lambda: Measured(2.0, 1000, {{"generation": 0.5}}), "fail": lambda: 1 / 0}})
"""


@pytest.fixture(scope="module")
def bench() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import bench_against_trl
    finally:
        sys.path.remove(str(BENCHMARKS))
    return bench_against_trl


def turn(bench: Any, scale: float, others: float = 0.0) -> Any:
    phases = {"generation": 1.0, "update": 0.5, "weights": 0.1}
    cpu = {"total": 3.0, "generation": 2.0}
    ours = bench.Measured(2.0, 1000, phases, cpu, 0.0)
    theirs = bench.Measured(4.0 * scale, 2000, phases | {"rewards": 1.0}, cpu, others)
    return bench.Turn(ours, theirs, bench.Measured(1.0, 1000, {"generation": 1.0}, {"total": 1.0}, 0.0))


def test_ratios_are_of_the_same_turn_and_by_generated_token(bench: Any) -> None:
    rows = bench.table([turn(bench, 1.0), turn(bench, 2.0), turn(bench, 4.0)])
    assert "| total | 2.0000 | 2.0000 | 2.0000 | 4.0000 | 0.50 (0.25 to 1.00) |" in rows
    assert "| generation | 1.0000 | 1.0000 | 0.5000 | 0.5000 | 2.00 (2.00 to 2.00) |" in rows
    assert "| generation and rewards | 1.0000 | 1.0000 | 1.0000 | 1.0000 | 1.00 (1.00 to 1.00) |" in rows
    assert (
        "| generation beside vLLM alone, processor time | 2.0000 | 2.0000 | 1.0000 | 1.0000 | 2.00 (2.00 to 2.00) |"
        in rows
    )


def test_a_turn_is_as_quiet_as_its_loudest_step(bench: Any) -> None:
    assert turn(bench, 1.0, others=0.7).others == 0.7


def test_a_side_answers_among_what_libraries_write(bench: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SIDE.format(folder=str(BENCHMARKS))]
    with bench.side("ours", command, {}, tmp_path / "log") as side:
        found = side.measure()
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            side.measure("fail")
    assert (found.seconds, found.tokens, found.phases) == (2.0, 1000, {"generation": 0.5})
    assert found.cpu["total"] >= 0.0
