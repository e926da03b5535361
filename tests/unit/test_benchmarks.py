"""Parts of benchmarks that need no GPU and no TRL: counted operations, the table beside TRL, and the idle share."""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import bench_against_trl
import bench_idle_share as bench
import pytest
from bench_against_trl import Measured, Turn
from paper_sequences import SMALLER, batches_of, branched, config_of, flops, sampled

from mrt_hpc.recipe.choices import Batching

CONFIG = config_of("tiny")
TRACES = sampled(4, SMALLER, CONFIG.vocab_size, 0)
SETS = {"traces": TRACES, "branches": branched(TRACES[:2], SMALLER, CONFIG.vocab_size, 1)}


@pytest.mark.parametrize("batching", list(Batching))
@pytest.mark.parametrize("name", SETS)
def test_the_flops_are_those_of_the_formula(name: str, batching: Batching) -> None:
    """Counted position by position: with that at place n of its sequence, the square grows by 2 n + 1."""
    ids = [tuple([*s.prompt_ids, *s.token_ids][: s.width]) for s in SETS[name]]
    prefixes = [tokens[: n + 1] for tokens in ids for n in range(len(tokens))]
    computed = list(set(prefixes)) if batching is Batching.SHARED else prefixes
    attention = 64 * 64 * 2 + 64 * 32 * 2 + 64 + 32 + 32  # query, output, key and value, and three biases
    layers = 2 * (attention + 3 * 64 * 192 + 2 * 64)
    squares = sum(2 * len(prefix) - 1 for prefix in computed)
    expected = 6 * (len(computed) * layers + sum(s.trained_tokens for s in SETS[name]) * 2048 * 64 + 2 * 64 * squares)
    assert flops(CONFIG, SETS[name], batches_of(SETS[name], batching, 100_000)) == expected
    one, two, three = (flops(config_of("tiny", layers), TRACES, []) for layers in (1, 2, 3))
    assert two - one == three - two > 0, "the layers that there are"


def turn(scale: float) -> Turn:
    phases = {"generation": 1.0, "update": 0.5, "weights": 0.1}
    cpu = {"total": 3.0, "generation": 2.0}
    theirs = Measured(4.0 * scale, 2000, phases | {"rewards": 1.0}, cpu, 0.0)
    alone = Measured(1.0, 1000, {"generation": 1.0}, {"total": 1.0}, 0.0)
    return Turn(Measured(2.0, 1000, phases, cpu, 0.0), theirs, alone)


def test_ratios_are_of_the_same_turn_and_by_generated_token() -> None:
    rows = bench_against_trl.table([turn(1.0), turn(2.0), turn(4.0)])
    for row in (
        "total | 2.0000 | 2.0000 | 2.0000 | 4.0000 | 0.50 (0.25 to 1.00)",
        "generation | 1.0000 | 1.0000 | 0.5000 | 0.5000 | 2.00 (2.00 to 2.00)",
        "generation and rewards | 1.0000 | 1.0000 | 1.0000 | 1.0000 | 1.00 (1.00 to 1.00)",
        "generation beside vLLM alone, processor time | 2.0000 | 2.0000 | 1.0000 | 1.0000 | 2.00 (2.00 to 2.00)",
    ):
        assert f"| {row} |" in rows


# -- the simulation of `benchmarks/bench_idle_share.py`, on runs small enough to be worked out by hand


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
