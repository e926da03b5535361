"""``mrt-hpc explain``: why a run, or a task of it, waits or has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mrt_hpc.cli.completion import RUN, complete_task

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.launch.view.explain import Finding


@click.command(short_help="Say why a run or a task waits or has failed.")
@click.argument("run", type=RUN)
@click.argument("task", required=False, shell_complete=complete_task)
def explain(run: Path, task: str | None) -> None:
    """Say in a sentence why RUN, or one TASK of it, waits or has failed, and what to type next.

    TASK is the name of a job, as in `segment-000.trainer`, or one task of it, as in `segment-000.inference[3]`.

    \b
    Examples:
      mrt-hpc explain runs/quickstart
      mrt-hpc explain runs/quickstart segment-000.trainer
      mrt-hpc explain runs/quickstart 'segment-000.inference[3]'
    """
    from mrt_hpc.cli.status import QUEUE_WITHIN_S, open_run
    from mrt_hpc.launch.queued_jobs import look_at_queues
    from mrt_hpc.launch.view.explain import explain_job, explain_run
    from mrt_hpc.launch.view.run_history import RunHistory
    from mrt_hpc.launch.view.run_look import RunLook

    layout, plan = open_run(run)
    look, history = RunLook.at(layout, plan, look_at_queues(layout, QUEUE_WITHIN_S)), RunHistory.of(layout)
    history.update()
    if task is None:
        _print(explain_run(look, history))
        return
    for finding in explain_job(look, history, task):
        _print(finding)


def _print(finding: Finding) -> None:
    click.echo(finding.sentence)
    click.echo(f"  next:     {finding.next}")
    for detail in finding.details:
        click.echo(detail)
