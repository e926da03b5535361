"""What the learning study keeps of a run: a small table, so that its figures can be made again without the run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from learning_curves import LearningCurve

from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.archive import sampled_manifest, sampled_positions
from mrt_hpc.run.atomic import replace_file
from mrt_hpc.run.layout import COLLECTION

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from mrt_hpc.run.layout import RunLayout

FACTS = b"learnt"  # the key of what is not of one problem, in the metadata of the file


class Spending(StrEnum):
    """What is counted, where runs are compared that have spent as much."""

    STEPS = "optimiser steps"
    GENERATED = "generated tokens"
    ALL = "generated and prefilled tokens"


@dataclass(frozen=True)
class Learnt:
    """One run with E evaluations on P problems."""

    versions_E: list[int]  # evaluated weights versions
    generated_E: NDArray[np.float64]  # tokens sampled before each of them, branches and collection counted
    prefilled_E: NDArray[np.float64]
    """Prompt tokens before each of them that were in no prefix cache: of rollouts, branches and looks."""
    trace_tokens_E: NDArray[np.float64]  # mean length of an evaluated trace with its answer
    problems_P: list[str]
    accuracies_EP: NDArray[np.float64]
    regrets_EP: dict[int, NDArray[np.float64]]  # normalised, by budget in tokens

    made: dict[str, str]  # how the run was made, by setting: what is compared was made alike

    @classmethod
    def of_run(cls, layout: RunLayout, benchmark: str, made: dict[str, str]) -> Learnt:
        """Of a finished run.

        Raises:
            FileNotFoundError: it is not finished.
        """
        versions = read_recipe_lock(layout.recipe_lock).evaluated_versions
        found = [EvaluationSummary.read(layout.evaluation_summary(v, benchmark)) for v in versions]
        problems = sorted(found[0].per_problem)
        return cls(
            versions, *spent_before(layout, versions),
            np.array([e.tokens_per_rollout for e in found], dtype=np.float64), problems,
            np.array([[e.per_problem[p] for p in problems] for e in found]),
            {budget: np.array([[e.regret[budget][p] for p in problems] for e in found]) for budget in found[0].regret},
            made,
        )  # fmt: skip

    def write(self, path: Path) -> None:
        """One column a measure, one row a problem: lists over evaluations."""
        facts = {
            "versions": self.versions_E,
            "generated": self.generated_E.tolist(),
            "prefilled": self.prefilled_E.tolist(),
            "trace_tokens": self.trace_tokens_E.tolist(),
            "made": self.made,
        }
        columns: dict[str, object] = {"problem": self.problems_P, "accuracy": rows(self.accuracies_EP)}
        columns |= {f"regret_{budget}": rows(regrets) for budget, regrets in self.regrets_EP.items()}
        table = pa.table(columns).replace_schema_metadata({FACTS: json.dumps(facts)})
        with replace_file(path) as temporary:
            pq.write_table(table, temporary, compression="zstd")

    @classmethod
    def read(cls, path: Path) -> Learnt:
        table = pq.read_table(path)
        facts = json.loads(table.schema.metadata[FACTS])
        budgets = [int(name.removeprefix("regret_")) for name in table.column_names if name.startswith("regret_")]

        def measure(name: str) -> NDArray[np.float64]:
            return np.array(table.column(name).to_pylist(), dtype=np.float64).T

        return cls(
            facts["versions"], *(np.array(facts[name]) for name in ("generated", "prefilled", "trace_tokens")),
            table.column("problem").to_pylist(), measure("accuracy"),
            {budget: measure(f"regret_{budget}") for budget in budgets}, facts["made"],
        )  # fmt: skip

    def spent(self, of: Spending) -> NDArray[np.float64]:
        """[E] what each evaluated version had cost."""
        if of is Spending.STEPS:
            return np.array(self.versions_E, dtype=np.float64)
        return self.generated_E if of is Spending.GENERATED else self.generated_E + self.prefilled_E

    def curve(self, measures_EP: NDArray[np.float64], of: Spending) -> LearningCurve:
        """A measure by what was spent."""
        return LearningCurve(self.spent(Spending.STEPS), self.spent(of), measures_EP)

    def spent_to(self, accuracy: float, of: Spending) -> float:
        """What it costs to reach an accuracy on the curve; infinite where it never does."""
        updates_U = np.linspace(0, self.versions_E[-1], 100 * self.versions_E[-1] + 1)
        curve, problems = self.curve(self.accuracies_EP, of), len(self.problems_P)
        reached_U = curve.mean_at(updates_U, np.full((1, problems), 1 / problems))[:, 0] >= accuracy
        if not reached_U.any():
            return float("inf")
        return float(np.interp(updates_U[reached_U.argmax()], curve.updates_E, curve.spent_E))


def spent_before(layout: RunLayout, versions: list[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Tokens generated and prefilled before each weights version, the collection of version 0 counted."""
    positions = sampled_positions(layout, COLLECTION)
    costs = [sampled_manifest(layout, COLLECTION, position).about["statistics"] for position in positions]
    iterations = [IterationMetrics.read(layout.metrics(i)) for i in range(versions[-1])]
    generated = [sum(c["rollout_tokens"] + c["branch_tokens"] for c in costs)]
    prefilled = [sum(c["prefilled_tokens"] for c in costs)]
    generated += [m.generated_tokens or 0 for m in iterations]
    prefilled += [m.prefilled_tokens or 0 for m in iterations]
    return tuple(np.cumsum(spent, dtype=np.float64)[versions] for spent in (generated, prefilled))


def rows(measures_EP: NDArray[np.float64]) -> list[list[float]]:
    """[P][E], rounded to what is a hundredth of their noise."""
    return [[round(float(m), 5) for m in of_problem] for of_problem in measures_EP.T]
