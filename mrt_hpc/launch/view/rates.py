"""How fast a run is: tokens per second and seconds per iteration, from its metrics, its groups and its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.errors import UserError
from mrt_hpc.launch.view.snapshot import Measured, Throughput
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.typed_file import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from mrt_hpc.launch.view.run_history import RunHistory, ShardCommitted
    from mrt_hpc.run.layout import RunLayout

LATEST = 5
"""The number of iterations that measure the present throughput."""
TIMED = 10
"""The number of iterations whose median gives the duration of the next one."""


@dataclass
class Metrics:
    """The metrics of a run's iterations; a file is read again only when it has changed."""

    layout: RunLayout
    _known: dict[int, tuple[int, IterationMetrics | str]] = field(default_factory=dict, init=False)
    """By iteration, when the file was changed, and what it holds or why it cannot be read."""

    def read(self, planned: int) -> list[IterationMetrics]:
        """The metrics that are there, in the order of iterations. A damaged file counts as not there."""
        found = [self._of(iteration) for iteration in range(planned)]
        return [one for one in found if isinstance(one, IterationMetrics)]

    @property
    def faults(self) -> list[str]:
        """A line for each file that cannot be read."""
        return [known for _, known in self._known.values() if isinstance(known, str)]

    def _of(self, iteration: int) -> IterationMetrics | str | None:
        path = self.layout.metrics(iteration)
        try:
            changed = path.stat().st_mtime_ns
            if (known := self._known.get(iteration)) is None or known[0] != changed:
                self._known[iteration] = (changed, IterationMetrics.read(path))
        except UnreadableError as error:
            self._known[iteration] = (changed, error.line)
        except OSError:
            return None
        return self._known[iteration][1]


def measured(metrics: IterationMetrics) -> Measured:
    """What the snapshot holds of an iteration."""
    gains = metrics.progress_by_episode
    return Measured(
        iteration=metrics.iteration,
        reward=metrics.reward_mean,
        progress=sum(gains) / len(gains) if gains else None,
        answered=metrics.answered_share,
        seconds=metrics.wall_seconds,
    )


def iteration_seconds(iterations: Sequence[IterationMetrics]) -> float | None:
    """The median duration of the latest iterations; None before the first one has ended."""
    known = [one.wall_seconds for one in iterations[-TIMED:] if one.wall_seconds is not None]
    return median(known) if known else None


@dataclass
class Costs:
    """The cost of groups and shards, by their manifests; each is read once."""

    _known: dict[Path, dict[str, Any]] = field(default_factory=dict, init=False)

    def of(self, directory: Path) -> dict[str, Any]:
        """What a group or a shard has cost; empty where its manifest cannot be read at the moment."""
        if directory not in self._known:
            try:
                self._known[directory] = dict(read_manifest(directory).about.get("statistics", {}))
            except (OSError, UserError):
                return {}
        return self._known[directory]


def tokens_of(cost: dict[str, Any]) -> int:
    """The sampled tokens of a group or a shard, branches included."""
    return int(cost.get("rollout_tokens", 0)) + int(cost.get("branch_tokens", 0))


def groups_there(layout: RunLayout, iteration: int) -> list[Path]:
    """The complete groups of an iteration that training has not passed."""
    return [path for path in list_directory(layout.groups(iteration)) if path.name.isdecimal()]


def throughput(
    layout: RunLayout,
    iterations: Sequence[IterationMetrics],
    groups: Iterable[Path],
    history: RunHistory,
    costs: Costs,
) -> Throughput:
    """The throughput of a run.

    Args:
        layout: of the run.
        iterations: their metrics.
        groups: of the current iteration.
        history: of the run.
        costs: of groups and shards.
    """
    latest = [one for one in iterations[-LATEST:] if one.generated_tokens]
    tokens = sum(one.generated_tokens or 0 for one in latest)
    sampling = _rate(tokens, sum(one.sampling_seconds or 0.0 for one in latest))
    return Throughput(
        sampling=sampling if sampling is not None else _of_groups([costs.of(group) for group in groups]),
        whole=_rate(tokens, sum(one.wall_seconds or 0.0 for one in latest)),
        training=_training(iterations[-LATEST:]),
        evaluation=_of_shards(layout, list(history.shards), costs),
    )


def _rate(tokens: float, seconds: float) -> float | None:
    return tokens / seconds if tokens and seconds else None


def _of_groups(costs: list[dict[str, Any]]) -> float | None:
    """Of groups of one iteration: all their tokens, over the time until the last of them was sampled."""
    seconds = [float(cost.get("seconds", {}).get("generation", 0.0)) for cost in costs]
    return _rate(sum(map(tokens_of, costs)), max(seconds, default=0.0))


def _training(iterations: Sequence[IterationMetrics]) -> float | None:
    """The positions that the updates computed, padding included, over the seconds of the updates."""
    told = [(one.trainer.get("positions", 0.0), one.trainer.get("seconds_update", 0.0)) for one in iterations]
    return _rate(sum(positions for positions, _ in told), sum(seconds for _, seconds in told))


def _of_shards(layout: RunLayout, shards: list[ShardCommitted], costs: Costs) -> float | None:
    """All tokens of these shards, over the time from the first begin to the last end."""
    if not shards:
        return None
    places = [layout.evaluation_shard(one.version, one.benchmark, one.shard) for one in shards]
    tokens = sum(tokens_of(costs.of(place)) for place in places)
    return _rate(tokens, max(one.ended for one in shards) - min(one.began for one in shards))
