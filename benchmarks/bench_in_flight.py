"""Tokens a second of an inference task that drains its server before it takes over new weights, and of one that does
not, at equal staleness.

    python benchmarks/bench_in_flight.py --rounds 3

The inference role itself runs, on the small world. Its model has hardly been trained, so it ends a trace by chance, and
the longest trace of an iteration takes several times the mean. In place of a trainer a thread publishes the next
weights version a given time after an iteration is whole, and takes no processor time from the server. Each way runs in
turn, in a run directory of its own; the first iteration, which fills the server, is not counted.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarking import options, spread, table, turns
from run_of import read_events, run_of, task_of
from warm_start import ModelSize, WarmStartSettings, warm_start

from mrt_hpc.recipe.sections import WeightSwap
from mrt_hpc.roles import inference, prepare
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import complete_groups, read_group
from mrt_hpc.run.leases import Heart
from mrt_hpc.run.manifest import MANIFEST
from mrt_hpc.run.retries import wait_until
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.run.weights import publish, take_over

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout

TRAINER, INFERENCE, ATTEMPT = "segment-000.trainer", "segment-000.inference", "a"
ITERATION_DEADLINE_S = 600.0
MODEL, LONGEST_PROMPT = "model", 64


@dataclass(frozen=True)
class Load:
    iterations: int = 12
    groups: int = 16
    rollouts: int = 4
    max_tokens: int = 448
    slots: int = 64  # sequences that the server runs at once
    staleness: int = 1  # the recipe's max_staleness
    warm_start: int = 3  # steps of the model's supervised training: the more, the likelier is a trace's end
    update: float = 1.0  # seconds from the last group of an iteration to the next weights version


@dataclass(frozen=True)
class Measured:
    """One run, without its first iteration."""

    tokens: int
    seconds: float
    lengths: tuple[int, ...] = field(repr=False)
    mixed: float  # share of the traces that several weights versions have sampled
    staleness: float  # mean lag of the oldest weights of a trace behind those that are trained

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def make_run(root: Path, load: Load, swap: WeightSwap) -> RunLayout:
    changes = {
        "name": f"in-flight-{swap}",
        "model": f"{{type: hugging_face, path: {root / MODEL}}}",
        "sampling.problems_per_iteration": load.groups,
        "sampling.rollouts_per_problem": load.rollouts,
        "sampling.max_tokens": load.max_tokens,
        "serving.max_concurrent_sequences": load.slots,
        "schedule.iterations": load.iterations,
        "schedule.iterations_per_job": load.iterations,
        "schedule.max_staleness": load.staleness,
        "schedule.weight_swap": swap.value,
        "training.keep_weights": load.iterations + 2,
    }
    layout = run_of(root / swap.value, *(f"{k}={v}" for k, v in changes.items()), recipe="small_world/grpo")
    prepare.run(task_of(layout, "prepare"))
    return layout


def publish_after_each_iteration(layout: RunLayout, load: Load) -> None:
    """Stand where the trainer stands; every version holds the first weights."""
    first = layout.weights_version(0)
    write_task(layout, TRAINER, 0, TaskRecord(TaskState.RUNNING, attempt=ATTEMPT))
    with Heart(layout.heart(TRAINER, 0), ATTEMPT, limit_s=20.0):
        for iteration in range(load.iterations):
            wait_until(
                lambda i=iteration: len(complete_groups(layout.groups(i))) == load.groups,  # type: ignore[misc]
                reason=f"iteration {iteration}",
                deadline_s=ITERATION_DEADLINE_S,
                longest_pause_s=0.05,
            )
            time.sleep(load.update)  # it stands for the work of an update
            publish(layout, iteration + 1, lambda directory: take_over(first, directory, without=[MANIFEST]))


def run_once(load: Load, swap: WeightSwap) -> Measured:
    size = ModelSize(longest=load.max_tokens + LONGEST_PROMPT)
    with tempfile.TemporaryDirectory(prefix="bench-in-flight-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        warm_start(WarmStartSettings(steps=load.warm_start, size=size), root / MODEL, lambda _: None)
        layout = make_run(root, load, swap)
        trainer = threading.Thread(target=publish_after_each_iteration, args=(layout, load), daemon=True)
        trainer.start()
        inference.run(task_of(layout, INFERENCE))
        trainer.join()
        return measured(layout, load)


def measured(layout: RunLayout, load: Load) -> Measured:
    """Read from the run directory what was sampled, and when."""
    commits = read_events(layout.events, EventKind.GROUP_COMMITTED)
    start = max(e["time"] for e in commits if e["iteration"] == 0)
    counted = [e for e in commits if e["time"] > start]
    rollouts = [
        r for i in range(load.iterations) for g in range(load.groups) for r in read_group(layout.group(i, g)).rollouts
    ]
    return Measured(
        tokens=sum(e["rollout_tokens"] for e in counted),
        seconds=max(e["time"] for e in counted) - start,
        lengths=tuple(len(r.token_ids) for r in rollouts),
        mixed=statistics.mean(bool(r.later_weights) for r in rollouts),
        staleness=statistics.mean(r.iteration - r.weights_version for r in rollouts),
    )


def report(found: dict[WeightSwap, list[Measured]]) -> str:
    rows = []
    for swap, runs in found.items():
        rates = [run.rate for run in runs]
        ratios = [run.rate / base.rate for run, base in zip(runs, found[WeightSwap.DRAIN], strict=True)]
        mixed, lag = (statistics.mean(getattr(run, name) for run in runs) for name in ("mixed", "staleness"))
        middle = f"{statistics.median(rates):,.0f} ({max(rates):,.0f})"
        rows.append((swap, middle, spread(ratios), f"{mixed:.0%}", f"{lag:.2f}"))
    head = ("weight_swap", "tokens/s, median (best)", "ratio to drain (extremes)", "of several versions", "staleness")
    return "\n".join(table(head, rows))


def main() -> None:
    given = options(__doc__, rounds=3, load=Load)
    load = given.load
    found = turns({swap: partial(run_once, load, swap) for swap in WeightSwap}, given.rounds)
    lengths = sorted(length for runs in found.values() for run in runs for length in run.lengths)
    middle, high = lengths[len(lengths) // 2], lengths[len(lengths) * 95 // 100]
    print(f"\n{load}\ntokens of a trace: median {middle}, 95th percentile {high}\n\n{report(found)}")


if __name__ == "__main__":
    main()
