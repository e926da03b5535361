"""``mrt-hpc plan`` with several recipes or ``--sweep``: what a family takes before any of it is spent."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from mrt_hpc.cli.options import site_of_command
from mrt_hpc.cli.plan import print_missing, print_objections, rates_and_hours, say
from mrt_hpc.cli.submit import Sweep
from mrt_hpc.cli.terminal import Terminal, echo, echo_json, table_of
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.hours import expected_uses, plan_cost
from mrt_hpc.plan.jobs import Plan
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.site import SiteSettings

HOURS = ("gpu_hours", "core_hours")


@dataclass(frozen=True)
class FamilyHours:
    runs: int
    jobs: int
    tasks: int
    gpu_hours: float | None
    """Expected; None where not known, as of a job whose problems are not there."""
    core_hours: float | None
    limit_gpu_hours: float
    """Of the time limits, if each job runs once."""

    @classmethod
    def run_hours(cls, plan: Plan, recipe: Recipe, site: SiteSettings) -> "FamilyHours":
        _, expected = rates_and_hours(plan, recipe, site)
        uses = expected_uses(plan, expected) if len(expected) == len(plan.jobs) else None
        gpu, core = (None if uses is None else sum(getattr(use, name) for use in uses) for name in HOURS)
        return cls(1, len(plan.jobs), plan.tasks, gpu, core, plan_cost(plan, site.limits.node_gpus).gpu_hours)

    @classmethod
    def total_hours(cls, parts: Sequence["FamilyHours"]) -> "FamilyHours":
        """What is not known of one is not known of all."""
        columns = zip(*map(astuple, parts), strict=True)
        total: list[Any] = [None if None in column else sum(column) for column in columns]
        return cls(*total)

    @property
    def cells(self) -> tuple[str, ...]:
        hours = (self.gpu_hours, self.core_hours, self.limit_gpu_hours)
        counts = (f"{count:,}" for count in (self.runs, self.jobs, self.tasks))
        return (*counts, *("?" if each is None else f"{each:,.1f}" for each in hours))


def print_sweep(sweep: Sweep, site: str | None, *, as_json: bool) -> None:
    chosen = site_of_command(site, *(layout for _, layout in sweep.members))
    plans = [compile_plan(recipe, chosen.site) for recipe, _ in sweep.members]
    arms: dict[str, list[FamilyHours]] = {}
    for member, (recipe, _), plan in zip(sweep.family.members, sweep.members, plans, strict=True):
        arms.setdefault(member.arm, []).append(FamilyHours.run_hours(plan, recipe, chosen.site))
    hours = {name: FamilyHours.total_hours(parts) for name, parts in arms.items()}
    whole = FamilyHours.total_hours([*hours.values()])
    if as_json:
        echo_json({"arms": {name: asdict(each) for name, each in hours.items()}, "all": asdict(whole)})
        return
    _print_hours(hours, whole, sweep.root)
    firsts = {member.recipe: number for number, member in reversed([*enumerate(sweep.family.members)])}
    console = Terminal(sys.stdout)
    with console.capture() as captured:
        for number in firsts.values():  # one run of each recipe
            recipe, plan = sweep.members[number][0], plans[number]
            print_missing(console, recipe, "submit")
            print_objections(console, plan, recipe, chosen, "submit")
    echo("\n".join(dict.fromkeys(captured.get().splitlines())))


def _print_hours(hours: Mapping[str, FamilyHours], whole: FamilyHours, root: Path) -> None:
    columns = ("runs", "jobs", "tasks", "GPU-h", "core-h", "GPU-h of the limits")
    table = table_of(f"{root.name}: {whole.runs} runs", "arm", *columns, right=columns)
    for name, each in hours.items():
        table.add_row(name, *each.cells)
    table.add_section()
    table.add_row("all", *whole.cells)
    console = Terminal(sys.stdout)
    console.print(table)
    say(
        console,
        "GPU-h and core-h are expected; those of the limits are for jobs that run once.",
        "An evaluation that runs share, as that of version 0 with one seed, is counted in each and sampled once.",
        f"Family: {root}. The same command without --sweep, for one recipe, shows jobs and memory of a run.",
    )
