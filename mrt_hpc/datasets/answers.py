"""Finds gold answers that a verifier cannot read: only an answer of the same text would equal them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from mrt_hpc.domains.base import Verifier
    from mrt_hpc.domains.pool import GraderPool


def unreadable_answers(
    answers: Sequence[str], verifier: Verifier, open_pool: Callable[[], AbstractContextManager[GraderPool]]
) -> set[str]:
    """The answers that the verifier cannot read.

    Where all answers can be read at once, as numbers can, no grader process is started.

    Args:
        answers: gold answers.
        verifier: that of the pool.
        open_pool: starts the grader processes, which are killed when an answer hangs.

    Raises:
        UserError: the grader processes cannot be started.
    """
    known = {answer: verifier.reads(answer) for answer in answers}
    unknown = [answer for answer, readable in known.items() if readable is None]
    if unknown:
        with open_pool() as pool:
            known |= dict(zip(unknown, pool.readable_all(unknown), strict=True))
    return {answer for answer, readable in known.items() if not readable}
