"""The numbers that roles write down and that the report reads back: one JSON file each, whole or absent.

The module has their names, units and round trip, and reads those of a run; ``rows`` computes with them, and ``report``
shows them.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from mrt_hpc.errors import UserError, word
from mrt_hpc.plan.jobs import EvaluationUnit
from mrt_hpc.run.atomic import create_text, write_json
from mrt_hpc.run.evaluation_settings import EvaluationSettings, has_samples, passed_over, versions_evaluated
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.typed_file import read_typed, readable

FEW_ANSWERS = 0.1
"""Share of traces with an answer below which something is wrong with prompts, tags or limits."""


MISMATCH_KL = 0.05
"""KL divergence from the sampling to the trained policy, nats a token, above which training is off-policy: in bfloat16,
two implementations of one model are at 0.001, and a version of staleness adds up to 0.01.
"""
CAPPED_SHARE = 0.05
"""Share of importance weights above their cap, above which the cap decides what is learnt."""


class Record(BaseModel):
    """A frozen record with a file of its own. An unknown field is an error: a misspelt one must not vanish."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    def write(self, path: Path) -> None:
        """Write the record to ``path`` in one step."""
        write_json(path, self.model_dump(mode="json"))

    def create(self, path: Path) -> bool:
        """Write the record to ``path`` unless a file is there; False where one is."""
        return create_text(path, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """The record in ``path``.

        Raises:
            FileNotFoundError: there is none.
            UnreadableError: it is no file, or holds something else.
        """
        advice = f"rm -r {word(path)}, and run the task that writes it again"
        return read_typed(path, cls, f"the record of {cls.__name__}", advice=advice)


class Phase(StrEnum):
    """The phases in which a process of a run spends its time."""

    GENERATION = "generation"
    """Sampling traces and the prover's branches, which are in the server together."""
    GRADING = "grading"
    """Comparing answers with the gold answer."""
    WAITING = "waiting"
    """Waiting for another role: a weights version or a shard."""
    LOADING = "loading"
    """Weights into the server, shards into the trainer."""
    OPTIMISATION = "optimisation"
    """Forward, backward and update."""
    CHECKPOINT = "checkpoint"
    """Writing the resumable state."""
    PUBLISHING = "publishing"
    """Writing the weights version."""


class EvaluationSummary(Record):
    """One weights version on one benchmark: ``evals/v000012/NAME/summary.json``. P problems, n samples each."""

    version: int
    benchmark: str
    problems: int
    """P."""
    samples: int
    """n, completions a problem."""
    accuracy: float
    """pass@1: the mean over problems of the mean reward of their samples."""
    low: float
    """Lower end of the 95 % interval of ``accuracy``."""
    high: float
    """Upper end of it."""
    per_problem: dict[str, float]
    """[P] mean reward of each problem's samples, by problem id."""
    pass_at_k: dict[int, float] = {}
    """Unbiased pass@k for k = 1, 2, 4 .. n."""
    pass_by_problem: dict[str, tuple[float, ...]] = {}
    """[P][K] pass@k of each problem, by problem id, in the order of ``pass_at_k``."""
    majority_by_problem: dict[str, tuple[float, ...]] = {}
    """[P][K] maj@k of each problem, the same; empty without answers."""
    tokens_per_rollout: float | None = None
    """Mean number of tokens of a sample, or of all its rounds together; those that a mode inserts included."""
    truncated_share: float | None = None
    """Share of completions cut off by the token limit."""
    answered_share: float | None = None
    """Share of completions in which an answer was found, right or wrong."""
    quality: dict[str, float] = {}
    """Shares in [0, 1] that describe the traces beyond their reward, as ``well_formed`` and ``right_checks`` of the
    small world."""
    regret: dict[int, dict[str, float]] = {}
    """Normalised regret of each problem, by budget in tokens and problem id; empty where prefixes were not valued."""
    regret_tokens: Literal["sampled", "all"] = "sampled"
    """Which tokens ``regret`` counts: the sampled ones of the trace alone, or prompt, closing text and answer too."""
    stages: dict[str, float] = {}
    """Accuracy by stage, where a sample has several: by round of revision, or by budget. The last stage is that of
    ``accuracy`` and all other numbers; empty where a sample is one completion."""
    stages_by_problem: dict[str, tuple[float, ...]] = {}
    """[P][stages] mean reward of each problem in each stage, by problem id, in the order of ``stages``."""
    graders: tuple[str, ...] = ()
    """The digests of the graders whose verdicts it holds: more than one where mrt-hpc or math-verify was changed
    between two parts of the evaluation."""
    settings: str | None = None
    """The digest of the settings of the evaluation."""

    @field_validator("graders", mode="before")
    @classmethod
    def _digests(cls, graders: object) -> object:
        """Version 0.2.0 wrote how many graders there are: one has no known digest, and several differ."""
        if not isinstance(graders, int):
            return graders
        return [f"grader {number} of {graders}" for number in range(1, graders + 1)] if graders > 1 else []

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        """Check that each problem has a number for each k, and for each stage."""
        for rows, columns in (
            (self.pass_by_problem, self.pass_at_k),
            (self.majority_by_problem, self.pass_at_k),
            (self.stages_by_problem, self.stages),
        ):
            if short := [problem for problem, row in rows.items() if len(row) != len(columns)]:
                raise ValueError(f"problem {short[0]} has {len(rows[short[0]])} numbers, and not {len(columns)}")
        return self


class IterationMetrics(Record):
    """What was measured in one iteration: ``iterations/000012/metrics.json``. Iteration i publishes version i + 1."""

    iteration: int
    reward_mean: float | None = None
    """Mean reward of the rollouts trained on; None where given samples are learnt."""
    tokens_per_rollout: float
    """The mean number of sampled tokens of a rollout, its answer included: those after the prefix where it begins with
    one. Of given samples, their mean length."""
    seconds: dict[Phase, float] = {}
    """The trainer's wall time by what the run was doing: while the trainer waits, the slowest inference task loads,
    generates and grades."""
    wall_seconds: float | None = None
    """The seconds from one published weights version to the next."""
    sampling_seconds: float | None = None
    """Wall time that the slowest inference task sampled, whether the trainer waited for it or not."""
    batch: str | None = None
    """The digest of the groups trained on, which shows whether the run directory contains the same groups."""
    problems: int | None = None
    rollouts: int | None = None
    branches: int | None = None
    trained_branches: int | None = None
    """Those of them that were learnt from: of boundaries where some are right and some are wrong."""
    dropped_branches: int = 0
    """Those of them that should have been learnt from, and were not sampled as the recipe says."""
    generated_tokens: int | None = None
    """Sampled in this iteration, branches included."""
    prefilled_tokens: int | None = None
    """Prompt tokens of its rollouts, branches and looks that were in no prefix cache."""
    progress_by_episode: tuple[float, ...] = ()
    """Mean progress V_{j+1} - V_j of episode j over the traces that have one."""
    progress_error: float | None = None
    """Standard error of one progress value, from its branches: the root of the mean variance that the prover and
    its planner reached, over the values that have it."""
    progress_error_share: float | None = None
    """The share of them. A boundary with a single branch has none: where a planner draws one because little is open,
    the standard error of all lies below that of the share."""
    episodes_per_rollout: float | None = None
    signal_share: float | None = None
    """Share of the groups whose rewards differ, so that the outcome gives a gradient."""
    truncated_share: float | None = None
    """Share of rollouts cut off by the token limit."""
    answered_share: float | None = None
    """Share of rollouts in which an answer was found, right or wrong."""
    staleness_mean: float | None = None
    """Weights versions that the rollouts lag behind the trained one, mean; from the oldest that sampled a token."""
    mixed_weights_share: float | None = None
    """Share of rollouts that several weights versions have sampled; see ``schedule.weight_swap``."""
    quality: dict[str, float] = {}
    """The quality of the rollouts, as in EvaluationSummary."""
    skipped_steps: int | None = None
    """The number of optimiser steps that were skipped, because their loss or gradient was not finite."""
    loss: float | None = None
    grad_norm: float | None = None
    """The gradient norm before clipping."""
    learning_rate: float | None = None
    entropy: float | None = None
    """The entropy of the policy, nats per token."""
    kl_reference: float | None = None
    """The KL divergence to the reference policy, nats per token."""
    clip_fraction: float | None = None
    """Share of the tokens whose importance ratio is clipped."""
    mismatch_mean: float | None = None
    """Mean ratio of the sampled tokens' probabilities, the trainer's over the server's: 1 when they agree."""
    mismatch_max: float | None = None
    trainer: dict[str, float] = {}
    """What else the trainer measured, by the names of :class:`mrt_hpc.training.update_statistics.UpdateStats`."""

    @property
    def warnings(self) -> list[str]:
        """What looks wrong with the iteration, a sentence each, with what to look at."""
        where = f"iteration {self.iteration}"
        sentences = (few_answers(self.answered_share, where), sampler_mismatch(self.trainer, where))
        return [warning for warning in sentences if warning is not None]


def graders_of(*evaluations: EvaluationSummary) -> set[str]:
    """The digests of all graders that have judged these evaluations; verdicts of more than one are not compared."""
    return {grader for evaluation in evaluations for grader in evaluation.graders}


def several_graders(graders: Collection[str], what: str) -> str | None:
    """A warning where several graders have judged the samples of an evaluation; None where one has.

    Args:
        graders: their digests.
        what: the evaluation, in words.
    """
    if len(graders) < 2:
        return None
    judged = f"{what}: {len(graders)} versions of the grader have judged the samples, which are not compared"
    return f"{judged}; mrt-hpc regrade RUN judges all of a run by one"


def few_answers(share: float | None, where: str) -> str | None:
    """Return a warning if nearly no trace has an answer; None if enough have one, or nothing is known.

    Args:
        share: of the traces in which an answer was found.
        where: what they are traces of, as ``iteration 3``.
    """
    if share is None or share >= FEW_ANSWERS:
        return None
    return (
        f"an answer was found in {share:.0%} of the traces of {where}, and a trace without one has reward 0: compare a "
        "sample trace in the inference log of the first iteration with prompt.thought_start and prompt.thought_end "
        "(empty for a model that writes no tags), prompt.instruction and sampling.max_tokens"
    )


def sampler_mismatch(trainer: Mapping[str, float], where: str) -> str | None:
    """Return a warning if the trainer's log-probabilities are far from those of the server that sampled; None if they
    are near, or nothing is known.

    Args:
        trainer: what the trainer measured, by name.
        where: what it measured, as ``iteration 3``.
    """
    divergence, capped = trainer.get("mismatch_kl", 0.0), trainer.get("importance_capped_share", 0.0)
    if divergence <= MISMATCH_KL and capped <= CAPPED_SHARE:
        return None
    return (
        f"the policy that the trainer holds is far from the one that sampled {where}: a KL divergence of "
        f"{divergence:.3g} nats a token (too much above {MISMATCH_KL:g}), and {capped:.1%} of the importance weights "
        f"above training.importance_cap (too much above {CAPPED_SHARE:.0%}); compare serving.dtype with "
        "training.precision, and take a lower schedule.max_staleness or training.learning_rate"
    )


class RunCost(Record):
    """The resources that the run has used."""

    wall_seconds: float | None = None
    """The seconds from the first task's start to the last one's end."""
    generated_tokens: int | None = None
    """Sampled for training: rollouts, branches, and traces that training starts from; those of evaluations not."""
    gpu_hours: float | None = None
    """Allocated, idle time included."""
    cpu_hours: float | None = None
    """Core hours, allocated."""
    sampled_tokens_per_second: float | None = None
    """The tokens per second of one inference task, while it samples."""
    trained_tokens_per_second: float | None = None
    """The tokens per second of one rank of the trainer, while it updates."""


class RunFile(Record):
    """One thing of the run directory and where it is."""

    what: str
    path: str


class RunSummary(Record):
    """All values that the report shows."""

    recipe: str
    algorithm: str
    model: str
    iterations_planned: int
    prover: str | None = None
    settings: dict[str, str] = {}
    """Further lines of the setup table, as in ``group size: 8``."""
    iterations: tuple[IterationMetrics, ...] = ()
    evaluations: tuple[EvaluationSummary, ...] = ()
    missing: tuple[str, ...] = ()
    """What should be there and is not, a sentence each."""
    cost: RunCost = RunCost()
    files: tuple[RunFile, ...] = ()
    versions: dict[str, str] = {}
    """The versions of the packages that matter."""
    upload: str | None = None
    """How many offline W&B directories are not uploaded; None where none is."""
    upload_command: str | None = None
    """What to type on the login node to upload them."""

    @property
    def iterations_done(self) -> int:
        """Iterations with metrics."""
        return len(self.iterations)


# -- collect -----------------------------------------------------------------------------------------------------------
# Reads the measurements of the roles of a run, and lists what is missing.


@dataclass(frozen=True)
class Measurements:
    """The planned measurements that a run directory contains."""

    iterations: tuple[IterationMetrics, ...]
    """All iterations, in order."""
    evaluations: tuple[EvaluationSummary, ...]
    """Sorted by benchmark as planned, then by version."""
    missing: tuple[str, ...]
    """A sentence for each gap."""
    unmade: tuple[str, ...] = ()
    """A sentence for each gap that will stay: what cannot be made any more."""
    unreadable: tuple[str, ...] = ()
    """A line for each file that is there and cannot be read."""


def read_measurements(
    layout: RunLayout, iterations_planned: int, versions: Iterable[int], settings: Mapping[str, EvaluationSettings]
) -> Measurements:
    """The metrics of all planned iterations and the summaries of all planned evaluations that are there, and those of
    further versions that were made with the same settings.

    Args:
        layout: the run directory.
        iterations_planned: how many.
        versions: weights versions that are to be evaluated.
        settings: what each benchmark has to be evaluated with; summaries of other settings count as not there.
    """
    iterations, unreadable = readable(map(layout.metrics, range(iterations_planned)), IterationMetrics.read)
    absent = sorted(set(range(iterations_planned)).difference(metrics.iteration for metrics in iterations))
    missing = [f"metrics of iterations {as_ranges(absent)} of {iterations_planned}"] if absent else []
    wanted, pruned = set(versions), set(passed_over(layout))
    evaluations, unmade = [], []
    for benchmark, asked in settings.items():
        summaries, faults = _summaries(layout, benchmark, wanted, asked)
        unreadable += faults
        evaluations += summaries
        absent = sorted(wanted.difference(summary.version for summary in summaries))
        if waited_for := [version for version in absent if version not in pruned]:
            missing.append(f"evaluation on {benchmark} of weights versions {as_ranges(waited_for)}")
        if gone := [version for version in absent if version in pruned]:
            unmade.append(
                f"evaluation on {benchmark} of weights versions {as_ranges(gone)}, which had been pruned before it was "
                "asked for"
            )
    return Measurements(tuple(iterations), tuple(evaluations), tuple(missing), tuple(unmade), tuple(unreadable))


def _summaries(
    layout: RunLayout, benchmark: str, wanted: Iterable[int], settings: EvaluationSettings
) -> tuple[list[EvaluationSummary], list[str]]:
    """The summaries of the wanted versions and of any others that were evaluated with these settings, in order of
    versions; and a line for each that cannot be read.
    """
    versions = sorted({*wanted, *versions_evaluated(layout)})
    paths = [layout.evaluation_summary(version, benchmark) for version in versions]
    summaries, faults = readable(paths, EvaluationSummary.read)
    return [summary for summary in summaries if summary.settings == settings.summarised], faults


def read_summary(layout: RunLayout, version: int, benchmark: str) -> EvaluationSummary:
    """The summary of a weights version on a benchmark.

    Raises:
        FileNotFoundError: there is none.
        UserError: the file holds something else.
    """
    return EvaluationSummary.read(layout.evaluation_summary(version, benchmark))


def is_evaluated(layout: RunLayout, unit: EvaluationUnit, settings: EvaluationSettings) -> bool:
    """Whether a unit has its shard, and its version and benchmark their summary, of these settings."""
    try:
        summary = EvaluationSummary.read(layout.evaluation_summary(unit.version, unit.benchmark))
    except (FileNotFoundError, UserError):  # absent, or damaged
        return False
    shard = layout.evaluation_shard(unit.version, unit.benchmark, unit.shard)
    return summary.settings == settings.summarised and has_samples(shard, settings)


def as_ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers in short: ``0-3, 7``."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
