"""When does progress pay? Networks in the worlds in text, with the real servers and the real trainer.

    python benchmarks/text_worlds.py --worlds asked12
    python benchmarks/study_worlds.py --part admission --worlds asked12
    python benchmarks/study_worlds.py --part pilots --worlds asked12
    python benchmarks/study_worlds.py --part runs --worlds asked12
    python benchmarks/study_worlds.py --part tables

Each update learns 8 new problems with 8 rollouts each, and what an arm has learnt is the share of right rollouts before
each update: no problem is seen twice, so no other evaluation is needed. ``gold_likelihood`` gives values; answers have
one form, so that it is exact. All arms of a seed have the same problems in the same order. The plan
(``results/worlds/plan.md``) says which comparisons count, and was written before the first run.

- ``admission`` samples groups of the starting model and measures the mean gradient of each arm for the decisions, which
  are whether a paragraph is right, beside the exact one of ``mrt_hpc/testing/worlds.py``;
- ``pilots`` runs each arm with each learning rate, with seeds that no other part uses;
- ``runs`` runs each arm with its best rate, two runs at a time, as most of a run keeps one core busy. What is kept of a
  run lies in ``runs/*.parquet``: it is not repeated, and a run that was cut short goes on;
- ``tables`` reads these files alone.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarking import RESULTS, ROOT, SMALL_WORLD, csv_text, options, submit, table, written
from text_worlds import LETTERS, WORLDS, TextWorld

from mrt_hpc import Batch, MrtOnline, RolloutAlgorithm, Run, open_run
from mrt_hpc.algorithms.grpo import Grpo
from mrt_hpc.analysis.intervals import t_quantile
from mrt_hpc.domains.small_world.equations import FORCED_TEXT
from mrt_hpc.mrt.regret import area_under_values
from mrt_hpc.run.atomic import replace_file
from mrt_hpc.testing import worlds as testing
from mrt_hpc.testing.worlds import World

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

UPDATES = 40
RATES = (1e-4, 2e-4, 4e-4)
REFERENCE = "constant"
"""The arm with which others are compared: GRPO with a number on the thought and its end, and a prover that it does not
need, so that all arms do the same work.
"""
OTHER_SEEDS = ", other seeds"
"""Of an arm that differs from another one in its seeds alone."""
SEEDS = {"asked12": 15, "asked3": 10, "ladder": 10, "product": 10, "trap": 10}
EXACT = dict(zip(WORLDS, testing.WORLDS, strict=True))
FACTS = b"run"
PILOT_SEEDS = (100, 101)
SHARES = (0.5, 1.0, 2.0)
"""Budgets of regret, in mean tokens of a trace of the starting model."""


def online(**fields: object) -> str:
    return json.dumps({"type": "mrt_online", **fields})


ARMS = {
    "grpo": '{"type": "grpo"}',
    "constant": online(credit="constant", alpha=0.2),
    f"constant{OTHER_SEEDS}": online(credit="constant", alpha=0.2),
    "permuted": online(credit="permuted"),
    "prefix": online(alpha=0.0, baseline="prefix"),
    "alpha 0.5": online(alpha=0.5),
    "alpha 1": online(),
    "alpha 2": online(alpha=2.0),
    "to go": online(credit="to_go"),
}
PRIMARY = ("constant", "alpha 1", "to go")
ARMS_OF = {
    "asked12": ("grpo", *PRIMARY, f"constant{OTHER_SEEDS}", "permuted", "prefix"),
    "asked3": PRIMARY,
    "ladder": (*PRIMARY, "permuted"),
    "product": PRIMARY,
    "trap": (*PRIMARY, "alpha 0.5", "alpha 2"),
}


@dataclass(frozen=True)
class Kept:
    """What is kept of a run of U updates."""

    rewards_U: NDArray[np.float64]  # the share of right rollouts before each update
    generated_U: NDArray[np.float64]  # tokens of each update
    prefilled_U: NDArray[np.float64]
    regrets_U: dict[float, NDArray[np.float64]]  # normalised, by share; not a number without a prover
    made: dict[str, str]  # how the run was made, by field of the recipe

    @classmethod
    def of_run(cls, path: Path, made: dict[str, str]) -> Kept:
        run = open_run(path)
        metrics = run.metrics().sort_by("iteration").to_pydict()
        lengths = np.array(metrics["tokens_per_rollout"])
        return cls(
            np.array(metrics["reward_mean"]), np.array(metrics["generated_tokens"], dtype=np.float64),
            np.array(metrics["prefilled_tokens"], dtype=np.float64),
            {share: regrets(run, share * lengths[0]) for share in SHARES}, made,
        )  # fmt: skip

    def write(self, path: Path) -> None:
        columns = {"reward": self.rewards_U, "generated": self.generated_U, "prefilled": self.prefilled_U}
        columns |= {f"regret_{share:g}": values for share, values in self.regrets_U.items()}
        rows = pa.table(columns).replace_schema_metadata({FACTS: json.dumps(self.made)})
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as temporary:
            pq.write_table(rows, temporary, compression="zstd")

    @classmethod
    def read(cls, path: Path, made: dict[str, str]) -> Kept:
        rows = pq.read_table(path)
        if json.loads(rows.schema.metadata[FACTS]) != made:
            raise SystemExit(f"{path} was made otherwise than {made}: take another --into")
        column = {name: rows.column(name).to_numpy() for name in rows.column_names}
        found = {float(name.removeprefix("regret_")): column[name] for name in column if name.startswith("regret_")}
        return cls(column["reward"], column["generated"], column["prefilled"], found, made)

    @property
    def accuracy(self) -> float:
        """In per cent, the mean over the updates."""
        return 100 * float(self.rewards_U.mean())

    def accuracy_for(self, tokens: float) -> float:
        """In per cent, the mean over the tokens up to a budget."""
        ends = np.cumsum(self.generated_U)
        spent_U = np.clip(tokens - (ends - self.generated_U), 0.0, self.generated_U)
        return 100 * float(self.rewards_U @ spent_U / spent_U.sum())

    @property
    def rate(self) -> float:
        return float(self.made["training.learning_rate"])

    @property
    def tokens(self) -> float:
        return float(self.generated_U.sum())


def regrets(run: Run, budget: float) -> NDArray[np.float64]:
    """[U] of the rollouts before each update."""
    found = []
    for iteration in run.iterations:
        values = run.batch(iteration)
        areas = [
            area_under_values(np.array(r.boundaries, dtype=np.float64), v, budget)
            for r, v in zip(values.rollouts, values.value_arrays, strict=True)
            if len(v) == len(r.boundaries)
        ]
        found.append(1.0 - float(np.mean(areas)) if areas else float("nan"))
    return np.array(found)


def algorithm_of(section: str) -> RolloutAlgorithm:
    fields = json.loads(section)
    return Grpo() if fields["type"] == "grpo" else MrtOnline(**fields)


# -- runs


def settings(world: TextWorld, arm: str, rate: float, given: argparse.Namespace) -> dict[str, str]:
    """What the runs of an arm have in common, by field of the recipe."""
    folder = given.worlds_folder.absolute() / world.name
    prover = json.dumps({"type": "gold_likelihood", "temperature": 1.0, "forced_text": FORCED_TEXT, "max_tokens": 24})
    return {
        "model": json.dumps({"type": "hugging_face", "path": str(folder / "model")}),
        "data": json.dumps({"type": "jsonl", "path": str(folder / "train.jsonl"), "verifier": "exact"}),
        "algorithm": ARMS[arm],
        **({} if arm == "grpo" else {"prover": prover}),
        "episodes": json.dumps(
            {"markers": [*LETTERS[1 : world.steps]], "min_paragraphs": 1, "max_episodes": world.steps}
        ),
        "sampling.problems_per_iteration": "8",
        "sampling.rollouts_per_problem": "8",
        "sampling.max_prompt_tokens": "128",
        "sampling.max_tokens": "192",
        "training.learning_rate": str(rate),
        "training.schedule": "constant",
        "schedule.iterations": str(given.updates),
        "schedule.iterations_per_job": str(given.updates),
        "evaluation.benchmarks": "[]",
    }


def kept(world: TextWorld, arm: str, rate: float, seed: int, part: str, given: argparse.Namespace) -> Kept:
    """Of a run: read, or run to its end."""
    name = f"{world.name}-{arm.replace(' ', '_').replace(',', '')}-{rate:g}-{seed}"
    file = given.into / part / f"{name}.parquet"
    changes = settings(world, arm, rate, given)
    made = {field: value for field, value in changes.items() if field not in ("model", "data")}
    if not file.exists():
        run = given.work.absolute() / part / name
        moved = 1000 if arm.endswith(OTHER_SEEDS) else 0
        submit(SMALL_WORLD / "grpo.yaml", run, {"seed": seed + moved, **changes})
        Kept.of_run(run, made).write(file)
    return Kept.read(file, made)


# -- admission


@dataclass(frozen=True)
class Decisions:
    """The rollouts of G groups of N as decisions: whether each of the K paragraphs is right; of `trap`, first whether
    it is a guess.
    """

    actions_BK: NDArray[np.float64]
    decided_BK: NDArray[np.bool_]
    groups_B: NDArray[np.int64]

    @classmethod
    def of(cls, world: TextWorld, batch: Batch) -> Decisions:
        found = [world.decisions(rollout.text) for rollout in batch.rollouts]
        size = max(map(len, found))
        actions = np.array([[*of, *[0.0] * (size - len(of))] for of in found], dtype=np.float64)
        decided = np.array([[k < len(of) for k in range(size)] for of in found])
        ids = {problem: number for number, problem in enumerate(dict.fromkeys(batch.problem_ids))}
        return cls(actions, decided, np.array([ids[problem] for problem in batch.problem_ids]))

    @cached_property
    def chances_K(self) -> NDArray[np.float64]:
        return (self.actions_BK * self.decided_BK).sum(axis=0) / self.decided_BK.sum(axis=0)

    def gradients(self, advantages_BK: NDArray[np.float64]) -> NDArray[np.float64]:
        """[G, K] the mean of each group."""
        each = advantages_BK * self.decided_BK * (self.actions_BK - self.chances_K)
        return np.array([each[self.groups_B == group].mean(axis=0) for group in range(self.groups_B.max() + 1)])


def expected_gradient(world: World, algorithm: RolloutAlgorithm) -> NDArray[np.float64]:
    """[K] of a class for the decisions of a world, by enumeration: all that moves its mean is the own reward and the
    credit, as baselines depend on the prefix alone.
    """
    total = np.zeros(len(world.starts))
    for thought, problem in product(world.thoughts(), range(world.problems)):
        values = np.array([world.value(thought[:n], problem) for n in range(len(thought) + 1)])
        chances = np.array(world.starts[: len(thought)])
        weight = float(np.prod(np.where(thought, chances, 1 - chances))) / world.problems
        total[: len(thought)] += weight * (values[-1] + credit_of(algorithm, values)) * (np.array(thought) - chances)
    return total


def credit_of(algorithm: RolloutAlgorithm, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[K] alpha times the credit, but for what has no mean gradient."""
    if not isinstance(algorithm, MrtOnline) or algorithm.credit in ("constant", "permuted"):
        return np.zeros(len(values) - 1)
    steps = np.diff(values) if algorithm.credit == "episode" else values[-1] - values[:-1]
    return algorithm.alpha * steps


def decided_advantages(
    algorithm: RolloutAlgorithm, batch: Batch, world: TextWorld, decided_BK: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """[B, K] what a class gives to the tokens of each decision's episode."""
    found = np.zeros(decided_BK.shape)
    learnt = algorithm.learnt(batch).sequences
    for row, (rollout, sequence) in enumerate(zip(batch.rollouts, learnt, strict=True)):
        starts = rollout.credited[:-1]
        for k in np.flatnonzero(decided_BK[row]):
            found[row, k] = sequence.advantages[starts[min(world.episode_of(k), len(starts) - 1)]]
    return found


def admission(world: TextWorld, given: argparse.Namespace) -> list[tuple[object, ...]]:
    """A row for each arm: the sum of its mean gradient over the decisions, measured and exact, and the signal to noise
    of a batch of 8 groups.
    """
    run = given.work.absolute() / "admission" / world.name
    changes = settings(world, "alpha 1", RATES[0], given)
    changes |= {"schedule.iterations": "1", "schedule.iterations_per_job": "1"}
    submit(SMALL_WORLD / "grpo.yaml", run, {**changes, "sampling.problems_per_iteration": str(given.groups)})
    batch = open_run(run).batch(0)
    found = Decisions.of(world, batch)
    exact = replace(EXACT[world.name], starts=tuple(found.chances_K))
    rows: list[tuple[object, ...]] = []
    for arm in ARMS_OF[world.name]:
        algorithm = algorithm_of(ARMS[arm])
        gradients_GK = found.gradients(decided_advantages(algorithm, batch, world, found.decided_BK))
        mean_K, error_K = gradients_GK.mean(axis=0), gradients_GK.std(axis=0, ddof=1) / len(gradients_GK) ** 0.5
        expected_K = expected_gradient(exact, algorithm)
        off = np.abs(mean_K - expected_K) / error_K
        noise = float((error_K**2).sum()) * len(gradients_GK)
        signal = max(0.0, float((mean_K**2 - error_K**2).sum()))
        whole_error = gradients_GK.sum(axis=1).std(ddof=1) / len(gradients_GK) ** 0.5
        rows.append((
            world.name, arm, f"{mean_K.sum():.4f}", f"{whole_error:.4f}",
            f"{expected_K.sum():.4f}", f"{off.max():.1f}", f"{(signal / noise * 8) ** 0.5:.2f}",
        ))  # fmt: skip
    return rows


# -- tables


def all_kept(cases: Sequence[tuple[TextWorld, str, float, int, str]], given: argparse.Namespace) -> list[Kept]:
    with ThreadPoolExecutor(given.at_once) as pool:
        return list(pool.map(lambda case: kept(*case, given), cases))


def best_rates(world: TextWorld, given: argparse.Namespace) -> dict[str, float]:
    """The rate of most accuracy of each arm, over the pilot seeds."""
    tuned = [arm for arm in ARMS_OF[world.name] if not arm.endswith(OTHER_SEEDS)]
    cases = [(world, arm, rate, seed, "pilots") for seed in PILOT_SEEDS for arm in tuned for rate in RATES]
    accuracies = {case: pilot.accuracy for case, pilot in zip(cases, all_kept(cases, given), strict=True)}
    means = {
        (arm, rate): np.mean([accuracies[world, arm, rate, seed, "pilots"] for seed in PILOT_SEEDS])
        for arm, rate in product(tuned, RATES)
    }
    return {arm: max(RATES, key=lambda rate: float(means[arm, rate])) for arm in tuned}


def runs_of_arms(world: TextWorld, given: argparse.Namespace) -> dict[str, list[Kept]]:
    """Seed by seed, so that what is there is whole when it is cut short."""
    rates, arms = best_rates(world, given), ARMS_OF[world.name]
    cases = [
        (world, arm, rates[arm.removesuffix(OTHER_SEEDS)], seed, "runs")
        for seed, arm in product(range(SEEDS[world.name]), arms)
    ]
    found = all_kept(cases, given)
    return {arm: found[i :: len(arms)] for i, arm in enumerate(arms)}


def told(differences_S: Sequence[float]) -> str:
    """Mean and 95 % interval by t over the seeds."""
    values, count = np.array(differences_S), len(differences_S)
    half = t_quantile(count - 1) * float(values.std(ddof=1)) / count**0.5 if count > 1 else float("inf")
    return f"{values.mean():+.1f} ({values.mean() - half:+.1f} to {values.mean() + half:+.1f})"


def differences(world: TextWorld, given: argparse.Namespace) -> list[tuple[object, ...]]:
    """A row for each arm: what it has learnt, and its difference to the reference, seed by seed."""
    runs = runs_of_arms(world, given)
    rows: list[tuple[object, ...]] = []
    for arm, mine in runs.items():
        pairs = [*zip(mine, runs[REFERENCE], strict=True)]
        regret_of = [
            told([100 * float(np.mean(a.regrets_U[share] - b.regrets_U[share])) for a, b in pairs]) for share in SHARES
        ]
        rows.append((
            world.name, arm, f"{mine[0].rate:g}", f"{np.mean([run.accuracy for run in mine]):.1f}",
            told([a.accuracy - b.accuracy for a, b in pairs]),
            told([a.accuracy_for(t) - b.accuracy_for(t) for a, b in pairs for t in [min(a.tokens, b.tokens)]]),
            *regret_of,
        ))  # fmt: skip
    return rows


ADMISSION = ("world", "arm", "measured", "standard error", "exact", "most errors off", "signal to noise")
DIFFERENCES = (
    "world", "arm", "rate", "accuracy, %", "equal updates", "equal tokens", *(f"regret at {s:g} C" for s in SHARES),
)  # fmt: skip


def write_rows(name: str, head: Sequence[str], rows: Sequence[Sequence[object]], given: argparse.Namespace) -> None:
    written(csv_text(head, rows), given.into, f"{name}.csv")
    written("\n".join(table(head, rows, words=2)), given.into, f"{name}.md")


def main() -> None:
    given = options(
        __doc__, part=["tables"], worlds=[*WORLDS], at_once=2, updates=UPDATES, groups=96,
        into=RESULTS / "worlds", work=ROOT / "runs" / "worlds-study", worlds_folder=ROOT / "runs" / "text-worlds",
    )  # fmt: skip
    worlds = [WORLDS[name] for name in given.worlds]
    if "admission" in given.part:
        write_rows("admission", ADMISSION, [row for world in worlds for row in admission(world, given)], given)
    for world in worlds:
        if "pilots" in given.part:
            best_rates(world, given)
        if "runs" in given.part:
            runs_of_arms(world, given)
    if "tables" in given.part:
        write_rows("differences", DIFFERENCES, [row for world in worlds for row in differences(world, given)], given)


if __name__ == "__main__":
    main()
