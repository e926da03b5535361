"""Run directories of the recipes as they are made on this machine, attempts at their tasks, and what these leave."""

import secrets
from pathlib import Path
from typing import Any

from basics import RECIPES, resources

from mrt_hpc import Experiment, Recipe, RunLayout, Site
from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.plan.compile import compile_plan, evaluation_plan
from mrt_hpc.plan.jobs import Job, Role
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.atomic import create_text, make_durable, write_json
from mrt_hpc.run.event_stream import EventStream
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.run.weights import publish
from mrt_hpc.submit.create import create_or_open


def run_of(root: Path, *changes: str, recipe: str | Experiment = "quickstart", site: Site | None = None) -> RunLayout:
    """The directory of a run of a recipe, also of an evaluation's, or of a recipe file with these changes; nothing has
    begun.
    """
    wanted = load_recipe(RECIPES / f"{recipe}.yaml", changes) if isinstance(recipe, str) else recipe
    compiled = compile_plan if isinstance(wanted, Recipe) else evaluation_plan
    return create_or_open(root, wanted, compiled(wanted, site or LocalSite()))


def bare_run(root: Path) -> RunLayout:
    """A run directory with the name that `submit` gives each run, and nothing else: tests write the parts of the run
    that they need.
    """
    layout = RunLayout(root)
    make_durable(root)
    create_text(layout.identity, f"{secrets.token_hex(16)}\n")
    return layout


def forget_claims(layout: RunLayout) -> None:
    """The claims of this process, which lives on where a command would have ended."""
    for claim in layout.jobs.glob("local-*.json"):
        claim.unlink()


def task_of(layout: RunLayout, job: str, index: int = 0, rank: int = 0, attempt: str = "a") -> Task:
    return load_task(layout, job, index, Placement(rank, 1, 0, attempt))


def say(layout: RunLayout, job: str, state: TaskState, index: int = 0) -> None:
    """The state of a task in attempt ``a``, whose heart has just begun to beat."""
    write_task(layout, job, index, TaskRecord(state, attempt="a"))
    write_json(layout.heart(job, index), {"attempt": "a", "beat": 1})


def read_events(directory: Path, kind: EventKind | None = None) -> list[dict[str, Any]]:
    """All events of a run (of one kind), by time."""
    return [recorded.event for recorded in EventStream(directory).new() if kind in (None, recorded.kind)]


def publish_some(layout: RunLayout, *versions: int) -> None:
    for version in versions:
        publish(layout, version, lambda directory: (directory / "model.safetensors").write_text("weights") and None)


def job_of(name: str, role: Role, tasks: int = 1) -> Job:
    return Job(name=name, role=role, tasks=tasks, resources=resources())
