"""The simulation of `benchmarks/bench_idle_share.py`, on runs small enough to be worked out by hand."""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import bench_idle_share as bench
import pytest


def simulated(staleness: int, lengths: Callable[[], int], in_flight: bool = False, **changes: Any) -> bench.Shares:
    """One server that runs one trace at a time, at 10 tokens a second; an update takes one second."""
    about = {"servers": 1, "slots": 1, "groups": 1, "rollouts": 1, "iterations": 12, "fixed_s": 0.1, "each_s": 0.0}
    scale = bench.Scale(**{**about, "trained_per_s": 1e9, "publish_s": 1.0, "load_s": 0.0, **changes})
    return bench.Simulation(scale, bench.Way("", staleness, in_flight=in_flight), lengths).run()


def test_one_version_of_staleness_hides_an_update_that_is_shorter_than_the_sampling() -> None:
    on_policy, loading = simulated(0, lambda: 40), simulated(1, lambda: 40, True, load_s=1.0)
    assert (on_policy.seconds, on_policy.idle, loading.idle) == pytest.approx((5.0, 1 / 5, 1 / 5))
    for in_flight in (False, True):
        found = simulated(1, lambda: 40, in_flight)
        assert (found.seconds, found.tokens_per_s, found.idle) == pytest.approx((4.0, 10.0, 0.0), abs=1e-9)


def test_in_flight_a_server_does_not_wait_for_its_longest_trace() -> None:
    """Two slots, and traces of 10 and 90 tokens in turn: while the long one is written, the other slot goes on."""
    scale = {"slots": 2, "groups": 4, "iterations": 30}
    drained, in_flight = (simulated(1, cycle((10, 90)).__next__, way, **scale) for way in (False, True))
    assert in_flight.tokens_per_s > 1.05 * drained.tokens_per_s
