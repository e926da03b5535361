"""Grading for tests without an event loop."""

import asyncio
from collections.abc import Sequence

from mrt_hpc.domains.grader_queue import GraderPool, Pair, Verdict


def grade_all(pool: GraderPool, pairs: Sequence[Pair]) -> list[Verdict]:
    return asyncio.run(pool.grade(pairs))
