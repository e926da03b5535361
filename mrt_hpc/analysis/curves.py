"""The values of evaluated traces by token, from which regret and efficiency are computed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.analysis.model_samples import Counted, EvaluatedTrace, ModelSamples, evaluated_problems
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.regret import TraceCurve, tokens_to_answer

if TYPE_CHECKING:
    from mrt_hpc.run.groups import Sampled


def curve_of(trace: EvaluatedTrace, counted: Counted = "sampled") -> TraceCurve:
    """The values of one trace by token.

    Raises:
        ValueError: a boundary has no value, or no branch where all tokens are counted.
    """
    values = [boundary.value for boundary in trace.boundaries if boundary.value is not None]
    if len(values) < len(trace.boundaries):
        raise ValueError(f"{len(values)} values do not match {len(trace.boundaries)} boundaries")
    tokens = np.array([b.tokens for b in trace.boundaries], float) if counted == "sampled" else _to_answer(trace)
    return TraceCurve(tokens, np.array(values))


def _to_answer(trace: EvaluatedTrace) -> NDArray[np.float64]:
    """[k + 1] the tokens of prompt, prefix, the prover's text and the answers."""
    forced = [boundary.forced for boundary in trace.boundaries]
    return tokens_to_answer([[f.asked for f in here] for here in forced], [[f.tokens for f in here] for here in forced])


def curves_of(model: ModelSamples) -> dict[str, list[TraceCurve]]:
    """The values of all traces by problem.

    Raises:
        UserError: a trace has no values, or no forced answers where their tokens are counted.
    """
    model.require_values()
    if model.counted == "all" and model.fewest_forced == 0:
        raise UserError(
            f"{model.name}: no answers were forced at its prefixes, so their tokens cannot be counted",
            where=model.source,
            expected="regret_tokens: sampled, or a prover that draws branches",
            advice="mrt-hpc fields evaluation.regret_tokens",
        )
    return {problem: [curve_of(trace, model.counted) for trace in traces] for problem, traces in model.problems.items()}


def valued_traces(
    parts: Iterable[Sampled], counted: Counted = "sampled", *, adds_stages: bool = False
) -> dict[str, list[TraceCurve]]:
    """The traces of each problem with the values of all their prefixes; those that were not valued are left out.

    Args:
        parts: the shards of one version and benchmark.
        counted: the tokens of a boundary.
        adds_stages: whether the tokens of earlier rounds count too, see ``ModeSettings.adds_stages``.
    """
    valued = {
        problem: [curve_of(trace, counted) for trace in traces if any(b.value is not None for b in trace.boundaries)]
        for problem, traces in evaluated_problems(parts, adds_stages=adds_stages).items()
    }
    return {problem: curves for problem, curves in valued.items() if curves}
