"""The simulation of `tests/benchmarks/bench_idle_share.py`, on runs small enough to be worked out by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / "benchmarks" / "bench_idle_share.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("bench_idle_share", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def one_server(bench: Any, **changes: Any) -> Any:
    """One server that runs one trace at a time, at 10 tokens a second; an update takes one second."""
    about = {"servers": 1, "slots": 1, "groups": 1, "rollouts": 1, "iterations": 12, "fixed_s": 0.1, "each_s": 0.0}
    return bench.Scale(**{**about, "trained_per_s": 1e9, "publish_s": 1.0, "load_s": 0.0, **changes})


def test_strictly_on_policy_a_server_waits_for_each_update(bench: Any) -> None:
    found = bench.Simulation(one_server(bench), bench.Way("", 0), lambda: 40).run()
    assert found.seconds == pytest.approx(5.0), "four of sampling, and one of training"
    assert found.idle == pytest.approx(1 / 5)


@pytest.mark.parametrize("in_flight", [False, True])
def test_one_version_of_staleness_hides_an_update_that_is_shorter_than_the_sampling(
    bench: Any, in_flight: bool
) -> None:
    found = bench.Simulation(one_server(bench), bench.Way("", 1, in_flight=in_flight), lambda: 40).run()
    assert found.seconds == pytest.approx(4.0)
    assert found.idle == pytest.approx(0.0, abs=1e-9)
    assert found.tokens_per_s == pytest.approx(10.0)


def test_loading_stops_the_server(bench: Any) -> None:
    found = bench.Simulation(one_server(bench, load_s=1.0), bench.Way("", 1, in_flight=True), lambda: 40).run()
    assert found.idle == pytest.approx(1 / 5), "one second of loading, four of sampling"


def test_in_flight_a_server_does_not_wait_for_its_longest_trace(bench: Any) -> None:
    """Two slots, and traces of 10 and 90 tokens in turn: while the long one is written, the other slot goes on."""
    scale = one_server(bench, slots=2, groups=4, iterations=30)

    def lengths() -> Any:
        turn = iter([10, 90] * 1000)
        return lambda: next(turn)

    drained = bench.Simulation(scale, bench.Way("", 1), lengths()).run()
    in_flight = bench.Simulation(scale, bench.Way("", 1, in_flight=True), lengths()).run()
    assert in_flight.tokens_per_s > 1.05 * drained.tokens_per_s
