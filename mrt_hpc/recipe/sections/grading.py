"""The pool that compares answers with the gold answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mrt_hpc.recipe.base import Gib, Seconds, Section


class Grading(Section):
    """The pool that compares answers with the gold answer."""

    processes: Annotated[int, Field(ge=1, le=1024)] = 1
    """The number of grader processes of an array task, on each of its nodes."""
    time_limit_s: Seconds = 2.0
    """The maximum number of processor seconds for one answer. A slower answer scores 0."""
    memory_limit_gib: Gib = 2.0
    """The maximum memory of a grader process, GiB. An answer that needs more scores 0."""
    strict: bool = True
    """Whether an answer to a gold number must be evaluated, in training and evaluation: a sum, a factorial, a power or
    an equation of two numbers scores 0 even where it comes to the right value, and so does a fraction for an integer.
    """
