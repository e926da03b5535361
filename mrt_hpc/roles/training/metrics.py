"""The trainer's metrics of an iteration: time by phase, batch, update."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.algorithms.batch import Batch, Learnt
from mrt_hpc.analysis.measures import IterationMetrics, Phase
from mrt_hpc.mrt.progress import progress
from mrt_hpc.run.records import FinishReason, GroupStatistics
from mrt_hpc.training.update_statistics import UpdateStats

INFERENCE_PHASES = (Phase.GENERATION, Phase.LOADING, Phase.GRADING)
TRAINER_PHASES = (Phase.LOADING, Phase.OPTIMISATION, Phase.CHECKPOINT, Phase.PUBLISHING)


class Timeline:
    """The trainer's wall time of an iteration, by phase."""

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = {}
        self._start = time.monotonic()

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start

    @property
    def working_seconds(self) -> float:
        return sum(seconds for name, seconds in self.seconds.items() if name is not Phase.WAITING)

    @property
    def total(self) -> float:
        return time.monotonic() - self._start


OF_ROLLOUTS = frozenset({
    "mismatch_mean", "mismatch_max", "mismatch_kl", "importance_capped_share", "clip_fraction",
    "effective_sample_share",
})  # fmt: skip
"""Compared with the server's probabilities, which given samples lack."""


def iteration_metrics(
    iteration: int, data: Learnt, stats: UpdateStats, timeline: Timeline, quality: dict[str, float]
) -> IterationMetrics:
    """The trainer's measurements stand once, in a field or under ``trainer``; others than finite ones are left out."""
    if data.batch is None:
        measured: dict[str, Any] = {"tokens_per_rollout": float(np.mean([len(s.token_ids) for s in data.sequences]))}
    else:
        measured = {**rollout_measures(iteration, data.batch, quality), "signal_share": signal_share(data)}
    update: dict[str, Any] = {n: x for n, x in stats.as_dict().items() if x is not None and isfinite(x)}
    if data.batch is None:
        update = {name: value for name, value in update.items() if name not in OF_ROLLOUTS}
    named = update.keys() & IterationMetrics.model_fields.keys()
    return IterationMetrics(
        iteration=iteration,
        seconds=seconds_by_phase(timeline, data.batch.costs if data.batch is not None else []),
        wall_seconds=timeline.total,
        batch=data.digest,
        trained_branches=sum(branch.has_signal for branch in data.branches),
        dropped_branches=data.dropped_branches,
        trainer={name: value for name, value in update.items() if name not in named},
        **{name: update[name] for name in named},
        **measured,
    )


def rollout_measures(iteration: int, batch: Batch, quality: dict[str, float]) -> dict[str, Any]:
    rollouts = [r for r in batch.rollouts if not r.forced]  # rollouts that were forced to answer measure a prefix
    return {
        "reward_mean": batch.reward_mean,
        "tokens_per_rollout": float(np.mean([r.tokens for r in rollouts])),
        "problems": len({r.problem_id for r in rollouts}),
        "rollouts": len(rollouts),
        "unjudged": batch.unjudged,
        "branches": sum(c.branches for c in batch.costs),
        "generated_tokens": sum(c.rollout_tokens + c.branch_tokens for c in batch.costs),
        "branch_tokens": sum(c.branch_tokens for c in batch.costs),
        "prefilled_tokens": sum(c.prefilled_tokens for c in batch.costs),
        "sampling_seconds": max((c.seconds.get("generation", 0.0) for c in batch.costs), default=None),
        "progress_by_episode": progress_by_episode(batch.value_arrays),
        **progress_error(batch.progress_variances),
        "episodes_per_rollout": float(np.mean([len(r.boundaries) - 1 for r in rollouts])),
        "thrown_groups": sum(c.thrown_groups for c in batch.costs),
        "truncated_share": float(np.mean([r.finish_reason is FinishReason.LENGTH for r in rollouts])),
        "answered_share": float(np.mean([r.answer is not None for r in rollouts])),
        "staleness_mean": float(np.mean([iteration - r.weights_version for r in rollouts])),
        "mixed_weights_share": float(np.mean([bool(r.later_weights) for r in rollouts])),
        "quality": quality,
    }


def seconds_by_phase(timeline: Timeline, costs: Sequence[GroupStatistics]) -> dict[Phase, float]:
    """The trainer's wall time, split by what the whole run was doing.

    Its waiting is attributed to the slowest inference task's loading, generating and grading.
    """
    seconds = dict.fromkeys(Phase, 0.0)
    for phase in TRAINER_PHASES:
        seconds[phase] = timeline.seconds.get(phase, 0.0)
    slowest = max(
        (c.seconds for c in costs), key=lambda s: sum(s.get(name, 0.0) for name in INFERENCE_PHASES), default={}
    )
    left = timeline.seconds.get(Phase.WAITING, 0.0)
    for phase in INFERENCE_PHASES:
        explained = min(left, slowest.get(phase, 0.0))
        seconds[phase] += explained
        left -= explained
    seconds[Phase.WAITING] = left
    return seconds


def progress_by_episode(values: Sequence[NDArray[np.float64]]) -> tuple[float, ...]:
    """Mean progress of the first, second, ... episode over traces that have one."""
    gains = [progress(v) for v in values if v.size]
    longest = max((g.size for g in gains), default=0)
    return tuple(float(np.mean([g[j] for g in gains if g.size > j])) for j in range(longest))


def progress_error(variances: NDArray[np.float64]) -> dict[str, float]:
    """Standard error of one progress value, and the share of values with a known one; empty where there is none.
    Variances are unbiased, so some may be negative.
    """
    known = variances[np.isfinite(variances)]
    if not known.size:
        return {}
    return {"progress_error": max(0.0, float(known.mean())) ** 0.5, "progress_error_share": known.size / variances.size}


def signal_share(data: Learnt) -> float | None:
    """Of the batch's groups; None where the algorithm names its sequences otherwise."""
    groups = set() if data.batch is None else {*data.batch.problem_ids}
    named = {sequence.group for sequence in data.sequences}
    return len(data.groups_with_signal) / len(groups) if named <= groups else None
