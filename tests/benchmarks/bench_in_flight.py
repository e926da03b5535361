"""Tokens a second of an inference task that drains its server before it takes over new weights, and of one that does
not, at equal staleness.

    python tests/benchmarks/bench_in_flight.py --rounds 3

The inference role itself runs, with its server, graders, leases and commits, on the small world. Its model has hardly
been trained, so it ends a trace by chance, and the lengths have a long tail: the longest of an iteration takes several
times the mean. In place of a trainer a thread publishes the next weights version a given time after an iteration is
whole. It takes no processor time from the server, so what is measured is the inference task alone, as on GPUs of its
own. Each way runs in turn, in a run directory of its own; the first iteration, which fills the server, is not counted.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.domains.small_world.model import ModelSize
from mrt_hpc.domains.small_world.warm_start import WarmStartSettings, warm_start
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.sections import WeightSwap
from mrt_hpc.roles import inference, prepare
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.groups import complete_groups, read_group
from mrt_hpc.run.heartbeats import Heart
from mrt_hpc.run.manifest import MANIFEST
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.run.weights import publish, take_over
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout

RECIPE = Path(__file__).parents[2] / "recipes" / "small_world" / "grpo.yaml"
TRAINER, INFERENCE, ATTEMPT = "segment-000.trainer", "segment-000.inference", "a"
ITERATION_DEADLINE_S = 600.0
MODEL, LONGEST_PROMPT = "model", 64


@dataclass(frozen=True)
class Load:
    """What one run samples."""

    iterations: int
    groups: int
    rollouts: int
    max_tokens: int
    slots: int
    staleness: int
    """The recipe's max_staleness."""
    warm_start: int
    """Steps of the model's supervised training: the more, the likelier is a trace's end."""
    update_s: float
    """Seconds from the last group of an iteration to the next weights version."""


@dataclass(frozen=True)
class Measured:
    """One run, without its first iteration."""

    tokens: int
    seconds: float
    lengths: tuple[int, ...]
    mixed: float
    """Share of the traces that several weights versions have sampled."""
    staleness: float
    """Mean lag of the oldest weights of a trace behind those that are trained."""

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def make_run(root: Path, load: Load, swap: WeightSwap) -> RunLayout:
    """A run directory with weights version 0."""
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
    recipe = load_recipe(RECIPE, tuple(f"{field}={value}" for field, value in changes.items()))
    layout = create_or_open(root / swap.value, recipe, compile_plan(recipe, LocalSite()))
    prepare.run(load_task(layout, "prepare", 0, Placement(0, 1, 0, ATTEMPT)))
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
            time.sleep(load.update_s)  # it stands for the work of an update
            publish(layout, iteration + 1, lambda directory: take_over(first, directory, without=[MANIFEST]))


def run_once(root: Path, load: Load, swap: WeightSwap) -> Measured:
    """Sample all iterations in one way."""
    size = ModelSize(longest=load.max_tokens + LONGEST_PROMPT)
    warm_start(WarmStartSettings(steps=load.warm_start, size=size), root / MODEL, lambda _: None)
    layout = make_run(root, load, swap)
    trainer = threading.Thread(target=publish_after_each_iteration, args=(layout, load), daemon=True)
    trainer.start()
    inference.run(load_task(layout, INFERENCE, 0, Placement(0, 1, 0, ATTEMPT)))
    trainer.join()
    return measured(layout, load)


def measured(layout: RunLayout, load: Load) -> Measured:
    """Read from the run directory what was sampled, and when."""
    commits = [e for e in read_events(layout.events, EventKind.SHARD_COMMITTED) if e.get("what") == "group"]
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


def table(found: dict[WeightSwap, list[Measured]]) -> str:
    """A row for each way; ratios are of runs of the same turn."""
    lines = [
        "| weight_swap | tokens/s, median (best) | ratio to drain (extremes) | of several versions | staleness |",
        "|---|---:|---:|---:|---:|",
    ]
    for swap, runs in found.items():
        rates = [run.rate for run in runs]
        ratios = [run.rate / base.rate for run, base in zip(runs, found[WeightSwap.DRAIN], strict=True)]
        mixed, lag = (statistics.mean(getattr(run, name) for run in runs) for name in ("mixed", "staleness"))
        lines.append(
            f"| {swap} | {statistics.median(rates):,.0f} ({max(rates):,.0f}) | {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}) | {mixed:.0%} | {lag:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="turns of all ways")
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=448)
    parser.add_argument("--slots", type=int, default=64, help="sequences that the server runs at once")
    parser.add_argument("--staleness", type=int, default=1, help="max_staleness of all ways")
    parser.add_argument("--warm-start", type=int, default=3, help="steps of the model's supervised training")
    parser.add_argument("--update", type=float, default=1.0, help="seconds of an update")
    options = parser.parse_args()
    load = Load(
        iterations=options.iterations, groups=options.groups, rollouts=options.rollouts, max_tokens=options.max_tokens,
        slots=options.slots, staleness=options.staleness, warm_start=options.warm_start, update_s=options.update,
    )  # fmt: skip
    found: dict[WeightSwap, list[Measured]] = {swap: [] for swap in WeightSwap}
    for turn in range(options.rounds):
        for swap in list(WeightSwap)[:: -1 if turn % 2 else 1]:
            root = Path(tempfile.mkdtemp(prefix="bench-in-flight-"))
            try:
                found[swap].append(run_once(root, load, swap))
            finally:
                shutil.rmtree(root, ignore_errors=True)
            print(f"turn {turn}, {swap}: {found[swap][-1].rate:,.0f} tokens/s", flush=True)
    lengths = sorted(length for runs in found.values() for run in runs for length in run.lengths)
    print(f"\n{load}")
    print(
        f"tokens of a trace: median {lengths[len(lengths) // 2]}, 95th percentile {lengths[len(lengths) * 95 // 100]}"
    )
    print("\n" + table(found))


if __name__ == "__main__":
    main()
