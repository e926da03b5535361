"""Run directories for tasks of trivial work with the whole life of a task around it, and what has become of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_cluster import Cluster, notes

from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import lock_text
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState, read_task
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.plan.jobs import Plan

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
RETRIES = 1


def run_directory(cluster: Cluster, name: str, the_plan: Plan) -> RunLayout:
    """As much of a run directory as a task reads."""
    layout = RunLayout(cluster.run_dir(name))
    recipe = load_recipe(QUICKSTART, (f"resilience.retries={RETRIES}", "resilience.heartbeat_limit_s=5.0"))
    layout.recipe_lock.write_text(lock_text(recipe))
    layout.plan.write_text(the_plan.model_dump_json())
    return layout


def started(layout: RunLayout, name: str) -> Callable[[], bool]:
    return lambda: any(note["job"] == name and note["what"] == "start" for note in notes(layout.root))


def stopped(layout: RunLayout, name: str) -> Callable[[], bool]:
    return lambda: read_task(layout, name, 0).state is TaskState.STOPPED


def await_start(layout: RunLayout, *names: str) -> None:
    for name in names:
        wait_until(started(layout, name), reason=f"the start of {name}", deadline_s=180)


def await_stop(layout: RunLayout, *names: str) -> None:
    """Slurm calls a job cancelled from the moment of the signal on, while its tasks still take their leave."""
    for name in names:
        wait_until(stopped(layout, name), reason=f"the last word of {name}", deadline_s=120)


def starts(layout: RunLayout) -> Counter[str]:
    return Counter(str(note["job"]) for note in notes(layout.root) if note["what"] == "start")
