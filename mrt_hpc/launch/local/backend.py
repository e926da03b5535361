"""The back end without a queue: tasks are processes of the submitting command."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mrt_hpc.errors import UserError
from mrt_hpc.launch.backend import Backend, Objections
from mrt_hpc.launch.local.processes import run_plan
from mrt_hpc.launch.local.slots import beyond_machine, machine_slots
from mrt_hpc.launch.python_look import no_tasks_here
from mrt_hpc.launch.run_progress import failed

if TYPE_CHECKING:
    from mrt_hpc.launch.backend import Order
    from mrt_hpc.launch.local.site import LocalSite
    from mrt_hpc.plan.jobs import Plan

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that stop the run, even if the shell started the command with these signals ignored."""


@dataclass(frozen=True)
class LocalBackend(Backend):
    """Runs a plan on this machine."""

    site: LocalSite
    place: ClassVar[str] = "this machine"

    @property
    def queue(self) -> str | None:
        """No queue."""
        return None

    def objections(self, plan: Plan) -> Objections:
        """Refuse tasks that can never start here; doubt plans that ask for more cores or memory than there are."""
        doubts = beyond_machine(plan, self.site)
        if (no_python := no_tasks_here()) is not None:
            return Objections(doubts, (no_python.what,), no_python)
        try:
            machine_slots(plan, self.site)
        except UserError as error:
            return Objections(doubts, (f"{error.what}; {error.advice}",), error)
        return Objections(doubts)

    def submit(self, order: Order) -> None:
        """Run the plan to its end, and show how far it is.

        Raises:
            UserError: a task failed.
        """
        for number in STOPS:
            signal.signal(number, signal.default_int_handler)
        order.tell(f"run directory: {order.layout.root}")
        retries = order.recipe.resilience.retries
        with order.display(order.layout) as show:
            well = run_plan(order.plan, order.layout, self.site, retries, show)
        if not well:
            raise failed(order.plan, order.layout)
        order.tell(f"done; the report: {order.layout.report}")
