"""The values of evaluated traces by token, from which regret and the other curves are computed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal

import numpy as np

from mrt_hpc.mrt.regret import TraceCurve, tokens_to_answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from mrt_hpc.run.groups import Sampled
    from mrt_hpc.run.records import Branch, Rollout


def valued_traces(
    parts: Sequence[Sampled], counted: Literal["sampled", "all"] = "sampled"
) -> dict[str, list[TraceCurve]]:
    """The traces of each problem with the values of all their prefixes; those that were not valued are left out.

    Args:
        parts: the shards of one version and benchmark.
        counted: the tokens of a boundary, see ``evaluation.regret_tokens``.
    """
    values: dict[tuple[str, int], list[float]] = defaultdict(list)
    for value in sorted((v for part in parts for v in part.values), key=lambda v: v.boundary):
        values[value.problem_id, value.sample].append(value.value)
    traces: dict[str, list[TraceCurve]] = defaultdict(list)
    branches = _branches_by_boundary(parts)
    for rollout in (r for part in parts for r in part.rollouts):
        if found := values.get((rollout.problem_id, rollout.sample)):
            tokens = np.array(rollout.boundaries, float) if counted == "sampled" else _to_answer(rollout, branches)
            traces[rollout.problem_id].append(TraceCurve(tokens, np.array(found)))
    return dict(traces)


def _branches_by_boundary(parts: Sequence[Sampled]) -> dict[tuple[str, int, int], list[Branch]]:
    found: dict[tuple[str, int, int], list[Branch]] = defaultdict(list)
    for branch in (b for part in parts for b in part.branches):
        found[branch.problem_id, branch.sample, branch.boundary].append(branch)
    return found


def _to_answer(rollout: Rollout, branches: Mapping[tuple[str, int, int], list[Branch]]) -> NDArray[np.float64]:
    """[k + 1] the tokens of prompt, prefix, the prover's text and the answers."""
    where = [(rollout.problem_id, rollout.sample, j) for j in range(len(rollout.boundaries))]
    drawn = [branches.get(key, []) for key in where]
    asked = [[b.prompt_tokens for b in these] for these in drawn]
    return tokens_to_answer(asked, [[len(b.token_ids) for b in these] for these in drawn])
