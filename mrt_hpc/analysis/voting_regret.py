"""What thinking on loses to the better of thinking on and of voting, by the number of episodes (paper, Appendix E), for
``mrt-hpc analyze regret --against-voting``. The mean is over traces; its interval is clustered by problem.
"""

from collections.abc import Sequence

import numpy as np

from mrt_hpc.analysis import intervals
from mrt_hpc.analysis.analysis_files import (
    Analysis,
    Curve,
    CurvePoint,
    DataTable,
    figure_of_curves,
    interval_text,
    table_of_curves,
)
from mrt_hpc.analysis.model_samples import SUITE_WITH, ModelSamples
from mrt_hpc.analysis.regret_curves import MEANT
from mrt_hpc.analysis.scaling import forced_majority, require_few_draws
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.mrt.regret import VOTES, regret_against_voting
from mrt_hpc.mrt.votes import RULE


def analyse_voting_regret(models: Sequence[ModelSamples]) -> Analysis:
    """Raises UserError where boundaries are not the ends of episodes, or have fewer than 8 forced answers."""
    curves = [voting_regret(model) for model in models]
    table = table_of_curves("regret_against_voting", ("model", "episodes", "regret", "low", "high", "traces"), curves)
    label = "regret against voting (mean, 95 % interval)"
    figure = figure_of_curves(table.name, "Regret against voting", "episodes", label, curves, whole_numbers=True)
    most = max(len(curve.points) for curve in curves)
    cells = [
        (curve.model, *map(interval_text, curve.estimates), *[""] * (most - len(curve.points))) for curve in curves
    ]
    columns = ("model", *(f"{b + 1} episodes" for b in range(most)))
    return Analysis((table,), (figure,), DataTable("regret against voting", columns, tuple(cells)), remarks=(RULE,))


def voting_regret(model: ModelSamples) -> Curve:
    """Against voting over the first b episodes, for b = 1 .. the most of a trace; beside it the traces with an area to
    be compared.
    """
    model.require_boundaries(*MEANT)
    if model.fewest_forced < VOTES[-1]:
        raise UserError(
            f"{model.name}: regret against voting needs {VOTES[-1]} answers that were forced at each prefix",
            value=model.fewest_forced,
            where=model.source,
            expected=f"an evaluation whose prover draws at least {VOTES[-1]} branches",
            advice=Advice(
                "mrt-hpc eval {source} --suite {suite_with}", source=model.source, suite_with=SUITE_WITH[MEANT[0]]
            ),
        )
    require_few_draws(model)
    votes = {
        problem: [np.array([[forced_majority(b, p) for p in VOTES] for b in trace.boundaries]) for trace in traces]
        for problem, traces in model.problems.items()
    }
    most = max(len(trace) for traces in votes.values() for trace in traces) - 1
    found = []
    for episodes in range(1, most + 1):
        by_trace = [[regret_against_voting(trace, episodes) for trace in traces] for traces in votes.values()]
        known = [[regret for regret in traces if regret is not None] for traces in by_trace]
        if any(known):
            mean = intervals.clustered_mean([regrets for regrets in known if regrets])
            found.append(CurvePoint((episodes,), given=mean, more=(sum(map(len, known)),)))
    return Curve((model.name,), tuple(found))
