"""``mrt-hpc logs``: the ends of logs, or all logs of a run as they are written."""

import time
from collections import deque
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli import options
from mrt_hpc.cli.options import RunPath, RunUse
from mrt_hpc.cli.status import open_run
from mrt_hpc.cli.terminal import echo
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import wait_until

if TYPE_CHECKING:
    from mrt_hpc.plan.jobs import Plan
    from mrt_hpc.view.logs import LogFollower, LogLine
    from mrt_hpc.view.run_look import RunLook
    from mrt_hpc.view.snapshot_reader import QueueLooks

READ_EVERY_S = 1.0
"""Between two looks at the logs."""
LOOK_EVERY_S = 5.0
"""Between two looks at the records of tasks, which say whether the run goes on."""


@click.command(short_help="Show the logs of a run.")
@click.argument("run", type=RunPath(RunUse.LOOKS))
@click.argument("role", required=False, type=click.Choice(options.ROLES))
@click.option(
    "-n", "--lines", type=click.IntRange(min=1), default=30, show_default=True, help="Lines from the end of each log."
)
@click.option("--all", "everything", is_flag=True, help="All logs of the role, not only the newest.")
@click.option("--server", is_flag=True, help="The logs of the vLLM servers, not those of the role itself.")
@click.option("-f", "--follow", is_flag=True, help="All logs as they are written, until the run has ended.")
def logs(run: Path, role: str | None, lines: int, everything: bool, server: bool, follow: bool) -> None:
    """Show the end of the newest log of RUN (of one ROLE), or follow all its logs, those of its servers included.

    With --follow each line begins with task, attempt and process, and what has failed comes first, with its traceback.

    \b
    Examples:
      mrt-hpc logs runs/quickstart
      mrt-hpc logs runs/quickstart trainer -n 100
      mrt-hpc logs runs/quickstart inference --server
      mrt-hpc logs runs/quickstart --follow
    """
    if follow:
        _follow(run, role, lines)
        return
    from mrt_hpc.attempt.run_progress import write_time
    from mrt_hpc.view.logs import AT_ONCE, log_files, tail

    layout, _ = open_run(run)
    faults: list[str] = []
    found = [log for log in log_files(layout, role, faults) if log.path.stat().st_size]
    for fault in faults:
        echo(fault, err=True)
    paths = sorted((log.path for log in found if log.is_own is not server), key=write_time)
    if not paths:
        words = [run, *([role] if role else []), *([] if server else ["--server"])]
        others = Advice("mrt-hpc logs {words}", words=words)
        what = "no such log can be read" if faults else "the run has no such log yet"
        advice = others if found else Advice("mrt-hpc explain {run}", run=run)
        raise UserError(what, where=layout.logs, value=role, advice=advice)
    for path in paths if everything else paths[-1:]:
        echo(f"==> {path}", "bold")
        echo("".join(deque(tail(path, AT_ONCE).splitlines(keepends=True), maxlen=lines)), end="")


def _follow(run: Path, role: str | None, lines: int) -> None:
    """Until the run has ended, or the user stops reading."""
    from mrt_hpc.view.logs import LogFollower
    from mrt_hpc.view.run_look import end_in_words
    from mrt_hpc.view.snapshot_reader import QueueLooks

    layout, plan = open_run(run)
    with QueueLooks(layout) as queues:
        reading = _Reading(layout, plan, LogFollower(layout, role, lines), queues)
        reading.print_failure(role)
        try:
            wait_until(reading.is_over, reason="the end of the run", deadline_s=inf, longest_pause_s=READ_EVERY_S)
        except KeyboardInterrupt:
            echo(Advice("the run was not touched; to read on: mrt-hpc logs {run} --follow", run=run), err=True)
            return
    echo(end_in_words(layout, reading.look.state), err=True)


class _Reading:
    def __init__(self, layout: RunLayout, plan: "Plan", follower: "LogFollower", queues: "QueueLooks") -> None:
        self.layout, self.plan, self.follower, self.queues = layout, plan, follower, queues
        self.look = self._look()
        self._next_look = time.monotonic() + LOOK_EVERY_S

    def _look(self) -> "RunLook":
        from mrt_hpc.view.run_look import RunLook

        return RunLook.load_records(self.layout, self.plan, self.queues.latest())

    def print_failure(self, role: str | None) -> None:
        from mrt_hpc.view.explain import failure_text

        for fault in self.look.unread_logs:
            echo(fault, err=True)
        if (text := failure_text(self.look, role)) is not None:
            echo(text, "red")

    def is_over(self) -> bool:
        """Prints the new lines."""
        ended = self.look.has_ended
        self._print(self.follower.new_lines())
        if ended:
            self._print(self.follower.last_lines())
            return True
        if time.monotonic() >= self._next_look:
            self.look = self._look()
            self._next_look = time.monotonic() + LOOK_EVERY_S
        return False

    def _print(self, lines: "Iterable[LogLine]") -> None:
        for line in lines:
            records = self.look.records.get(line.log.job, ())
            attempt = records[line.log.index].attempt if line.log.index < len(records) else ""
            echo(line.log.prefix(attempt), "cyan", end="")
            echo(line.text)
