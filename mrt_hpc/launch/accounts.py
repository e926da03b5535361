"""What the queues of a run know of the resources that its jobs have held, as far as they keep an account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.analysis.spending import Accounts, Allocation
from mrt_hpc.errors import UserError
from mrt_hpc.launch.backend import QueueState
from mrt_hpc.launch.ledger import shown_submissions
from mrt_hpc.launch.queued_jobs import backend_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.launch.backend import Backend, QueuedAttempt
    from mrt_hpc.launch.ledger import Submission
    from mrt_hpc.run.layout import RunLayout

A_DAY_S = 86400.0
"""Seconds. The clock of the submitting machine may be wrong by minutes; an id comes again after months."""
NOT_LOST = frozenset({QueueState.COMPLETED, QueueState.RUNNING})
"""The states of an attempt that has not ended, or has ended well."""


def accounts(layout: RunLayout) -> tuple[Accounts, list[str]]:
    """Ask each queue for all attempts of all jobs that the run's ledger names.

    Returns:
        The accounts, and a sentence for each queue that has none to tell, and each submission that cannot be read.
    """
    sent, untold = shown_submissions(layout)
    found: list[Allocation] = []
    times = {one.job_id: one.time for one in sent}
    try:
        queues = [*_by_backend(layout, sent)]
    except UserError as error:
        return Accounts([], times), [
            *untold,
            f"accounting was not asked ({error.what}): the hours are those of the run's events",
        ]
    for backend, mine in queues:
        by_id = {one.job_id: one for one in mine}
        try:
            told = backend.allocations(list(by_id))
        except UserError as error:
            told = None
            untold.append(f"accounting was not reached ({error.what}): the hours are those of the run's own events")
        else:
            if told is None:
                untold.append("this cluster keeps no accounting: the hours are those of the run's own events")
        found += [_allocation(one, by_id) for one in told or () if _is_of_run(one, by_id)]
    return Accounts(found, times), untold


def _by_backend(layout: RunLayout, sent: list[Submission]) -> Iterator[tuple[Backend, list[Submission]]]:
    """The back end of each queue, with what was submitted to it; profiles of one queue share it."""
    queues: dict[str | None, tuple[Backend, list[Submission]]] = {}
    backends = {site: backend_of(layout, site) for site in {one.site for one in sent}}
    for one in sent:
        backend = backends[one.site]
        queues.setdefault(backend.queue, (backend, []))[1].append(one)
    yield from queues.values()


def _is_of_run(one: QueuedAttempt, sent: dict[str, Submission]) -> bool:
    """Whether an attempt is of the submission of its id, by their times: a cluster may have given the id to a job of
    long ago.
    """
    submission = sent.get(one.task_id.partition("_")[0])
    return submission is not None and one.began >= submission.time - A_DAY_S


def _allocation(one: QueuedAttempt, sent: dict[str, Submission]) -> Allocation:
    return Allocation(
        job=sent[one.task_id.partition("_")[0]].job,
        task_id=one.task_id,
        began=one.began,
        seconds=one.seconds,
        gpus=one.gpus,
        cpus=one.cpus,
        queued_s=one.queued_s,
        failed=one.state not in NOT_LOST,
    )
