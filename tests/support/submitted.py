"""The ids of a run's submissions."""

from mrt_hpc.attempt.ledger import current_submissions, submissions
from mrt_hpc.run.layout import RunLayout


def latest_ids(layout: RunLayout) -> dict[str, str]:
    return {s.job: s.job_id for s in submissions(layout)}


def current_ids(layout: RunLayout) -> list[str]:
    """The ids under which any task of the run may be queued or running."""
    return sorted({one.job_id for parts in current_submissions(layout).values() for one in parts})
