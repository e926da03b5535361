"""The ids of a run's submissions, and their age."""

import json
import time

from mrt_hpc.attempt.ledger import current_submissions, submissions
from mrt_hpc.run.layout import RunLayout


def latest_ids(layout: RunLayout) -> dict[str, str]:
    return {s.job: s.job_id for s in submissions(layout)}


def current_ids(layout: RunLayout) -> list[str]:
    """The ids under which any task of the run may be queued or running."""
    return sorted({one.job_id for parts in current_submissions(layout).values() for one in parts})


def age(layout: RunLayout, seconds: float = 3600.0) -> None:
    """Let all submissions of a run have been so long ago."""
    for entry in layout.jobs.glob("queued-*.json"):
        entry.write_text(json.dumps({**json.loads(entry.read_text()), "time": time.time() - seconds}))
