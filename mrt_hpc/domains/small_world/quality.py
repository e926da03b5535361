"""Measures the quality of the small world's traces beyond their reward: their form, and the arithmetic of their checks.
Traces of other data have no such measure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mrt_hpc.domains.small_world.equations import inspect_trace
from mrt_hpc.recipe.sections.data import Problems, SmallWorldProblems

if TYPE_CHECKING:
    from collections.abc import Iterable


def trace_quality(source: Problems, traces: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Shares of well-formed traces and of right checks.

    Args:
        source: where the problems come from.
        traces: (problem text, trace text) pairs.

    Returns:
        ``well_formed`` and ``right_checks`` in [0, 1]; empty where the problems are not the small world's.
    """
    if not isinstance(source, SmallWorldProblems):
        return {}
    found = [inspect_trace(problem, text) for problem, text in traces]
    checks = sum(q.checks for q in found)
    return {
        "well_formed": float(np.mean([q.well_formed for q in found])),
        "right_checks": sum(q.right_checks for q in found) / checks if checks else 0.0,
    }
