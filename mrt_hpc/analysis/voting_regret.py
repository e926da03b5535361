"""What thinking on loses to the better of thinking on and of voting, by the number of episodes (paper, Appendix E), for
``mrt-hpc analyze regret --against-voting``. The mean is over traces; its interval is clustered by problem.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mrt_hpc.analysis import intervals
from mrt_hpc.analysis.analysis_files import Analysis, DataTable, interval_cells, interval_text
from mrt_hpc.analysis.figures import LineFigure, Panel, line_of
from mrt_hpc.analysis.model_samples import SUITE_WITH, ModelSamples
from mrt_hpc.analysis.regret_curves import MEANT
from mrt_hpc.analysis.scaling import forced_majority, require_few_draws
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.mrt.regret import VOTES, regret_against_voting
from mrt_hpc.mrt.votes import RULE


@dataclass(frozen=True)
class VotingRegret:
    """Against voting over the first b episodes."""

    episodes: int
    """b."""
    regret: intervals.IntervalEstimate
    traces: int
    """Those with an area to be compared."""


def analyse_voting_regret(models: Sequence[ModelSamples]) -> Analysis:
    """Raises UserError where boundaries are not the ends of episodes, or have fewer than 8 forced answers."""
    by_model = {model.name: voting_regret(model) for model in models}
    rows = [
        (name, one.episodes, *interval_cells(one.regret), one.traces) for name, mine in by_model.items() for one in mine
    ]
    table = DataTable("regret_against_voting", ("model", "episodes", "regret", "low", "high", "traces"), tuple(rows))
    lines = tuple(line_of(n, [r.episodes for r in mine], [r.regret for r in mine]) for n, mine in by_model.items())
    label = "regret against voting (mean, 95 % interval)"
    panel = Panel("Regret against voting", "episodes", label, lines, whole_numbers=True)
    most = max((len(mine) for mine in by_model.values()), default=0)
    cells = [
        (name, *[interval_text(r.regret) for r in mine], *[""] * (most - len(mine))) for name, mine in by_model.items()
    ]
    columns = ("model", *(f"{b + 1} episodes" for b in range(most)))
    summary = DataTable("regret against voting", columns, tuple(cells))
    return Analysis((table,), (LineFigure("regret_against_voting", (panel,)),), summary, remarks=(RULE,))


def voting_regret(model: ModelSamples) -> list[VotingRegret]:
    """For b = 1 .. the most episodes of a trace."""
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
            found.append(VotingRegret(episodes, mean, sum(map(len, known))))
    return found
