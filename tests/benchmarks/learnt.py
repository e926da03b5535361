"""What the learning study keeps of a run: a small table, so that its figures can be made again without the run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mrt_hpc.analysis.model import EvaluationSummary, IterationMetrics
from mrt_hpc.plan.compile import evaluated_versions
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.roles.report import collected_tokens
from mrt_hpc.run.atomic import replacing

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from mrt_hpc.run.layout import RunLayout

FACTS = b"learnt"
"""The key of what is not of one problem, in the metadata of the file."""


@dataclass(frozen=True)
class Learnt:
    """One run with E evaluations on P problems."""

    versions_E: list[int]
    """Evaluated weights versions."""
    tokens_E: NDArray[np.float64]
    """Generated before each of them, branches and collection counted."""
    trace_tokens_E: NDArray[np.float64]
    """Mean length of an evaluated trace with its answer."""
    problems_P: list[str]
    accuracies_EP: NDArray[np.float64]
    regrets_EP: dict[int, NDArray[np.float64]]
    """Normalised, by budget in tokens."""

    @classmethod
    def of_run(cls, layout: RunLayout, benchmark: str) -> Learnt:
        """Of a finished run.

        Raises:
            FileNotFoundError: it is not finished.
        """
        versions = evaluated_versions(read_recipe_lock(layout.recipe_lock))
        found = [EvaluationSummary.read(layout.evaluation_summary(v, benchmark)) for v in versions]
        problems = sorted(found[0].per_problem)
        return cls(
            versions,
            collected_tokens(layout) + tokens_before(layout, versions),
            np.array([e.tokens_per_rollout for e in found], dtype=np.float64),
            problems,
            np.array([[e.per_problem[p] for p in problems] for e in found]),
            {budget: np.array([[e.regret[budget][p] for p in problems] for e in found]) for budget in found[0].regret},
        )

    def write(self, path: Path) -> None:
        """One column a measure, one row a problem: lists over evaluations."""
        facts = {
            "versions": self.versions_E,
            "tokens": self.tokens_E.tolist(),
            "trace_tokens": self.trace_tokens_E.tolist(),
        }
        columns: dict[str, object] = {"problem": self.problems_P, "accuracy": rows(self.accuracies_EP)}
        columns |= {f"regret_{budget}": rows(regrets) for budget, regrets in self.regrets_EP.items()}
        table = pa.table(columns).replace_schema_metadata({FACTS: json.dumps(facts)})
        with replacing(path) as temporary:
            pq.write_table(table, temporary, compression="zstd")

    @classmethod
    def read(cls, path: Path) -> Learnt:
        """What ``write`` wrote."""
        table = pq.read_table(path)
        facts = json.loads(table.schema.metadata[FACTS])
        budgets = [int(name.removeprefix("regret_")) for name in table.column_names if name.startswith("regret_")]

        def measure(name: str) -> NDArray[np.float64]:
            return np.array(table.column(name).to_pylist(), dtype=np.float64).T

        return cls(
            facts["versions"],
            np.array(facts["tokens"]),
            np.array(facts["trace_tokens"]),
            table.column("problem").to_pylist(),
            measure("accuracy"),
            {budget: measure(f"regret_{budget}") for budget in budgets},
        )

    def at(self, measures_EP: NDArray[np.float64], tokens: float) -> NDArray[np.float64]:
        """[P] a measure after so many tokens, linearly between evaluations."""
        place = np.interp(tokens, self.tokens_E, np.arange(len(self.tokens_E)))
        below = min(int(place), len(self.tokens_E) - 2)
        share = place - below
        return (1 - share) * measures_EP[below] + share * measures_EP[below + 1]

    def tokens_to(self, accuracy: float) -> float:
        """Tokens until the accuracy is reached, linearly between evaluations of which the best so far counts.

        Infinite where it never is.
        """
        best_E = np.maximum.accumulate(self.accuracies_EP.mean(axis=1))
        if best_E[-1] < accuracy:
            return float("inf")
        at = int(np.argmax(best_E >= accuracy))
        if at == 0:
            return float(self.tokens_E[0])
        share = (accuracy - best_E[at - 1]) / (best_E[at] - best_E[at - 1])
        return float(self.tokens_E[at - 1] + share * (self.tokens_E[at] - self.tokens_E[at - 1]))


def tokens_before(layout: RunLayout, versions: list[int]) -> NDArray[np.float64]:
    """Generated in all iterations before each weights version."""
    iterations = [IterationMetrics.read(layout.metrics(i)) for i in range(versions[-1])]
    each = [float(m.generated_tokens or 0) for m in iterations]
    return np.concatenate([[0.0], np.cumsum(each)])[versions]


def rows(measures_EP: NDArray[np.float64]) -> list[list[float]]:
    """[P][E], rounded to what is a hundredth of their noise."""
    return [[round(float(m), 5) for m in of_problem] for of_problem in measures_EP.T]
