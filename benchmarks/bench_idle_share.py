"""The share of their time in which inference GPUs are idle, simulated for ways of overlapping generation and training.

Lengths of traces are drawn from a log-normal law with a given median and 95th percentile, for eight A100 that are
divided in several ways; or lengths, rates and sizes are those of a run:

    python benchmarks/bench_idle_share.py --output benchmarks/results/idle-share
    python benchmarks/bench_idle_share.py --run runs/mrt-online

A server writes one token of each of its n running sequences in ``fixed + each * n`` seconds. The mean rate of a run's
servers is taken for that of full servers, so the idle shares of a run are lower bounds. The ways:

- ``drain``: a task samples its groups of one iteration, waits for the longest trace, and loads the newest weights. With
  ``max_staleness: 0`` it then waits for the trainer, with 1 it samples the next iteration meanwhile.
- ``in flight``: a task claims the next group of any iteration that ``max_staleness`` allows as soon as it has room, and
  new weights replace the old ones while traces are being written.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarking import options, written
from benchmarking import table as markdown

from mrt_hpc.analysis.measures import IterationMetrics, Phase
from mrt_hpc.recipe.lock import read_lock
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import ServerLayout
from mrt_hpc.run.archive import read_sampled, sampled_positions
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

GPUS, INFERENCE_GPUS = 8, (4, 3, 2)
TRAINED_PER_S = 5900.0  # tokens a second that a rank of the trainer computes
NORMAL_95 = 1.6448536269514722  # the 95th percentile of the standard normal law


@dataclass(frozen=True)
class Scale:
    """A run: its size and the rates of its GPUs. The defaults are the 1.5-billion recipe on eight A100."""

    servers: int = 4
    slots: int = 128  # sequences that a server runs at once
    groups: int = 64  # groups of one iteration
    rollouts: int = 4  # traces of one group
    iterations: int = 60
    fixed_s: float = 0.010  # seconds of a step of a server that do not depend on its sequences: reading the weights
    each_s: float = 0.00019  # seconds that each sequence adds to a step: reading its cache
    trained_per_s: float = 4 * TRAINED_PER_S  # tokens a second that all ranks of the trainer compute together
    publish_s: float = 9.0
    load_s: float = 5.0

    def step_s(self, running: int) -> float:
        return self.fixed_s + self.each_s * running


@dataclass(frozen=True)
class Way:
    """How generation and training overlap."""

    name: str
    staleness: int
    in_flight: bool = False


WAYS = (
    Way("drain, max_staleness 0", 0),
    Way("drain, max_staleness 1", 1),
    Way("in flight, max_staleness 1", 1, in_flight=True),
    Way("in flight, max_staleness 2", 2, in_flight=True),
)


@dataclass(order=True)
class Trace:
    """A trace that is being sampled; traces are ordered by the progress of their server at which they end."""

    ends: float
    iteration: int = field(compare=False)
    tokens: int = field(compare=False)


@dataclass
class Server:
    """One inference task. ``progress`` counts the tokens that a sequence that was always running would have."""

    running: list[Trace] = field(default_factory=list)  # the running traces, as a heap
    version: int = 0
    iteration: int = -1  # the iteration of the current round; only while draining
    quota: int = 0  # groups that are left of the round; only while draining
    progress: float = 0.0
    paused_until: float = 0.0
    idle_s: float = 0.0
    tokens: int = 0


@dataclass(frozen=True)
class Shares:
    """What a simulation found, over all but the first iterations."""

    idle: float  # the share of the servers' time in which no sequence ran
    tokens_per_s: float
    seconds: float  # the mean seconds of an iteration


class Simulation:
    """All servers and the trainer, from event to event."""

    def __init__(self, scale: Scale, way: Way, lengths: Callable[[], int]) -> None:
        self.scale, self.way, self.lengths = scale, way, lengths
        self.servers = [Server() for _ in range(scale.servers)]
        self.now, self.newest, self.training_ends = 0.0, 0, math.inf
        self.unclaimed = {i: scale.groups for i in range(scale.iterations)}
        self.unfinished = {i: scale.groups * scale.rollouts for i in range(scale.iterations)}
        self.tokens = dict.fromkeys(range(scale.iterations), 0)
        self.published: list[float] = []

    def run(self) -> Shares:
        """Simulate until the last iteration is trained on."""
        warm_up = self.scale.iterations // 6
        began, idle, tokens = 0.0, 0.0, 0
        while self.newest < self.scale.iterations - self.way.staleness - 1:
            for server in self.servers:
                self._fill(server)
            self._train()
            self._advance(min([self.training_ends, *map(self._next_event, self.servers)]))
            if self.newest == warm_up and not began:
                began, idle = self.now, sum(server.idle_s for server in self.servers)
                tokens = sum(server.tokens for server in self.servers)
        elapsed = self.now - began
        idle = sum(server.idle_s for server in self.servers) - idle
        tokens = sum(server.tokens for server in self.servers) - tokens
        steps = [b - a for a, b in zip(self.published[warm_up:], self.published[warm_up + 1 :], strict=False)]
        return Shares(idle / elapsed / self.scale.servers, tokens / elapsed, statistics.mean(steps))

    def _fill(self, server: Server) -> None:
        """Load weights and claim groups, as far as the way lets the server."""
        if self.now < server.paused_until:
            return
        if server.version < self.newest and (self.way.in_flight or not (server.running or server.quota)):
            server.version, server.paused_until = self.newest, self.now + self.scale.load_s
            if self.scale.load_s:
                return
        while len(server.running) + self.scale.rollouts <= self.scale.slots:
            iteration = self._claim(server)
            if iteration is None:
                return
            self.unclaimed[iteration] -= 1
            for _ in range(self.scale.rollouts):
                length = self.lengths()
                heapq.heappush(server.running, Trace(server.progress + length, iteration, length))

    def _claim(self, server: Server) -> int | None:
        """The iteration whose next group the server takes, or None."""
        allowed = [i for i, left in self.unclaimed.items() if left and i <= server.version + self.way.staleness]
        if self.way.in_flight:
            return allowed[0] if allowed else None
        if not server.quota and not server.running and allowed:
            server.iteration = allowed[0]
            at_work = sum(1 for other in self.servers if not other.quota and not other.running)
            server.quota = math.ceil(self.unclaimed[server.iteration] / max(1, at_work))
        if not server.quota or not self.unclaimed[server.iteration]:
            server.quota = 0
            return None
        server.quota -= 1
        return server.iteration

    def _train(self) -> None:
        """Start to train on the next iteration once all its traces are there."""
        if math.isinf(self.training_ends) and not self.unfinished[self.newest]:
            self.training_ends = self.now + self.tokens[self.newest] / self.scale.trained_per_s + self.scale.publish_s

    def _next_event(self, server: Server) -> float:
        if self.now < server.paused_until:
            return server.paused_until
        if not server.running:
            return math.inf
        left = server.running[0].ends - server.progress
        return self.now + left * self.scale.step_s(len(server.running))

    def _advance(self, until: float) -> None:
        """Let time pass up to an event, and take the traces that end with it."""
        assert math.isfinite(until), "nothing can happen any more"
        for server in self.servers:
            if not server.running or self.now < server.paused_until:
                server.idle_s += until - self.now
                continue
            server.progress += (until - self.now) / self.scale.step_s(len(server.running))
            while server.running and server.running[0].ends <= server.progress + 1e-6:
                self._finished(server, heapq.heappop(server.running))
        self.now = until
        if until >= self.training_ends:
            self.newest, self.training_ends = self.newest + 1, math.inf
            self.published.append(until)

    def _finished(self, server: Server, trace: Trace) -> None:
        server.tokens += trace.tokens
        self.tokens[trace.iteration] += trace.tokens
        self.unfinished[trace.iteration] -= 1


def log_normal(median: float, high: float, longest: int, seed: int) -> Callable[[], int]:
    """Lengths with this median and 95th percentile, cut at the longest."""
    draws, sigma = random.Random(seed), math.log(high / median) / NORMAL_95
    return lambda: min(longest, max(1, round(median * math.exp(sigma * draws.gauss(0, 1)))))


def recorded(layout: RunLayout, measured: Sequence[IterationMetrics]) -> list[int]:
    groups = (
        read_sampled(layout, metrics.iteration, position)
        for metrics in measured
        for position in sorted(sampled_positions(layout, metrics.iteration))
    )
    return [len(rollout.token_ids) for group in groups for rollout in group.rollouts]


def recorded_scale(layout: RunLayout, measured: Sequence[IterationMetrics]) -> Scale:
    """The sizes of a run, and the rates that it has reached."""
    recipe = read_lock(layout.recipe_lock)
    assert isinstance(recipe, Recipe), "an evaluation on its own trains nothing"
    inference, slots = recipe.resources.inference, recipe.serving.max_concurrent_sequences
    servers = inference.tasks * ServerLayout.of(recipe.serving, inference.gpus, inference.nodes).servers
    tokens = [one.tokens_per_rollout * (one.rollouts or 0) for one in measured]
    rate = sum(tokens) / sum(one.sampling_seconds or 0.0 for one in measured) / servers
    slower = slots / rate / Scale().step_s(slots)
    return Scale(
        servers=servers, slots=slots, groups=recipe.sampling.problems_per_iteration,
        rollouts=recipe.sampling.rollouts_per_problem,
        fixed_s=Scale.fixed_s * slower, each_s=Scale.each_s * slower,
        trained_per_s=sum(tokens) / sum(one.seconds[Phase.OPTIMISATION] for one in measured),
        publish_s=statistics.mean(one.seconds[Phase.PUBLISHING] for one in measured),
        load_s=statistics.mean(one.seconds[Phase.LOADING] for one in measured),
    )  # fmt: skip


def table(scale: Scale, lengths: Callable[[int], Callable[[], int]], seeds: int) -> str:
    """Simulate each way with several seeds; a line a way."""
    rows = []
    for way in WAYS:
        found = [Simulation(scale, way, lengths(seed)).run() for seed in range(seeds)]
        columns = zip(*(vars(one).values() for one in found), strict=True)
        idle, rate, seconds = (statistics.mean(values) for values in columns)
        rows.append((way.name, f"{idle:.1%}", f"{rate:,.0f}", f"{seconds:.0f}"))
    return "\n".join(markdown(("way", "idle", "tokens/s of all servers", "seconds an iteration"), rows))


def simulated(given: argparse.Namespace) -> str:
    law = given.median, given.high, given.longest
    told = f"a median of {given.median:,.0f} tokens and a 95th percentile of {given.high:,.0f}"
    scene = "eight A100, 1.5 billion parameters, 256 traces an iteration"
    parts = [f"# Simulated: {scene} with {told}, cut at {given.longest:,}"]
    for servers in INFERENCE_GPUS:
        scale = Scale(servers=servers, trained_per_s=(GPUS - servers) * TRAINED_PER_S)
        parts.append(f"## {servers} inference GPUs and {GPUS - servers} trainer GPUs")
        parts.append(table(scale, lambda seed: log_normal(*law, seed), given.seeds))
    return "\n\n".join(parts)


def of_run(layout: RunLayout, seeds: int) -> str:
    """The table of a run, with lengths drawn from its own.

    Raises:
        SystemExit: it has no traces.
    """
    measured = [IterationMetrics.read(path) for path in sorted(layout.root.glob("iterations/*/metrics.json"))]
    known = recorded(layout, measured)
    if not known:
        raise SystemExit(f"no traces are kept in {layout.root}; name a run that has trained")
    return table(recorded_scale(layout, measured), lambda seed: partial(random.Random(seed).choice, known), seeds)


def main() -> None:
    given = options(__doc__, run=Path, median=6000.0, high=16000.0, longest=16384, seeds=5, output=Path)
    written(simulated(given) if given.run is None else of_run(RunLayout(given.run), given.seeds), given.output)


if __name__ == "__main__":
    main()
