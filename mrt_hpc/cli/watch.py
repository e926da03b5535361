"""``mrt-hpc status --watch`` and ``--json``: a live view of a run, and the same as data."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.live import Live

from mrt_hpc.cli.run_view import view
from mrt_hpc.cli.status import QUEUE_WITHIN_S, open_run
from mrt_hpc.errors import UserError, word
from mrt_hpc.launch.queued_jobs import look_at_queues
from mrt_hpc.launch.view.queue_looks import QueueLooks
from mrt_hpc.launch.view.run_look import ENDED, RunState, end_in_words
from mrt_hpc.launch.view.snapshot_reader import SnapshotReader
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.launch.view.snapshot import Snapshot

LOOK_EVERY_S = 2.0
"""The seconds between two looks at the run directory."""
SHARE_OF_TIME = 0.05
"""The largest share of the time that looks may take: those at a run of thousands of tasks are further apart."""


def print_json(run: Path) -> None:
    """Print the snapshot of a run as one JSON object; each queue is asked once, and need not answer."""
    layout, plan = open_run(run)
    snapshot = SnapshotReader.of(layout, plan).read(look_at_queues(layout, QUEUE_WITHIN_S))
    click.echo(snapshot.model_dump_json(indent=2))


def watch(run: Path) -> None:
    """Show a run until it has ended, or until the user stops looking.

    Raises:
        UserError: the output is no terminal, or the record of a task is damaged.
    """
    if not sys.stdout.isatty():
        raise UserError(
            "--watch needs a terminal, and the output goes to a file or a pipe",
            advice=f"mrt-hpc status {word(run)} --json prints the same as data",
        )
    layout, plan = open_run(run)
    console = Console()
    with QueueLooks(layout) as queues, Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        watcher = Watcher(SnapshotReader.of(layout, plan), queues, live)
        try:
            wait_until(watcher.has_ended, reason="the end of the run", deadline_s=inf, longest_pause_s=LOOK_EVERY_S)
        except KeyboardInterrupt:
            live.stop()
            click.echo(f"the run was not touched; to look again: mrt-hpc status {word(run)} --watch")
            return
    click.echo(end_in_words(layout, watcher.state))


@dataclass
class Watcher:
    """Shows one snapshot after the other."""

    reader: SnapshotReader
    queues: QueueLooks
    live: Live
    state: RunState = RunState.RUNNING
    _next_look: float = field(default=0.0, init=False)

    def has_ended(self) -> bool:
        """Show the run as it is now, unless that was just done, and return whether it has ended."""
        began = time.monotonic()
        if began < self._next_look:
            return False
        snapshot = self.reader.read(self.queues.latest())
        self._show(snapshot)
        took = time.monotonic() - began
        self._next_look = time.monotonic() + max(LOOK_EVERY_S, took / SHARE_OF_TIME)
        self.state = snapshot.state
        return self.state in ENDED

    def _show(self, snapshot: Snapshot) -> None:
        self.live.update(view(snapshot, self.live.console.width), refresh=True)
