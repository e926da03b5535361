"""The numbers that roles write down and that the report reads back: one JSON file each, whole or absent."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from mrt_hpc.analysis.number_formats import span_text
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.plan.jobs import EvaluationUnit
from mrt_hpc.run.atomic import create_text, write_json
from mrt_hpc.run.evaluation_settings import EvaluationSettings, has_samples, skipped_versions, versions_evaluated
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.typed_file import read_typed, readable

FEW_ANSWERS = 0.1
"""Share of traces with an answer below which something is wrong with prompts, tags or limits."""


MISMATCH_KL = 0.05
"""KL divergence from the sampling to the trained policy, nats a token, above which training is off-policy: in bfloat16,
two implementations of one model are at 0.001, and a version of staleness adds up to 0.01.
"""
CAPPED_SHARE = 0.05
"""Share of importance weights above their cap, from which on the cap decides what is learnt."""
EFFECTIVE_SHARE = 0.3
"""Kish's effective sample size as a share of the tokens, below which few tokens have most of the weight: weights of a
mean of 1 then have a variance above 2.
"""


class Record(BaseModel):
    """A frozen record with a file of its own. An unknown field is an error: a misspelt one must not vanish."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    def write(self, path: Path) -> None:
        write_json(path, self.model_dump(mode="json"))

    def create(self, path: Path) -> bool:
        """Write the record unless a file is there; False where one is."""
        return create_text(path, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """It raises UnreadableError where there is no file, or one with other content."""
        advice = Advice("rm -r {path}, and run the task that writes it again", path=path)
        return read_typed(path, cls, f"the record of {cls.__name__}", advice=advice)


class Phase(StrEnum):
    GENERATION = "generation"
    """Sampling traces and the prover's branches, which share the server."""
    GRADING = "grading"
    WAITING = "waiting"
    """For a weights version or a shard."""
    LOADING = "loading"
    OPTIMISATION = "optimisation"
    CHECKPOINT = "checkpoint"
    PUBLISHING = "publishing"


class EvaluationSummary(Record):
    """One weights version on one benchmark: ``evals/v000012/NAME/summary.json``. P problems, n samples each."""

    version: int
    benchmark: str
    problems: int
    samples: int
    """n completions a problem."""
    accuracy: float
    """pass@1: the mean over problems of the mean reward of their samples."""
    low: float
    """Lower end of its 95 % interval; ``high`` is the upper one."""
    high: float
    per_problem: dict[str, float]
    """[P] mean reward by problem id."""
    pass_at_k: dict[int, float] = {}
    """Unbiased, for k = 1, 2, 4 .. n."""
    pass_by_problem: dict[str, tuple[float, ...]] = {}
    """[P][K] by problem id, in the order of ``pass_at_k``."""
    majority_by_problem: dict[str, tuple[float, ...]] = {}
    """[P][K] maj@k, the same; empty without answers."""
    tokens_per_rollout: float | None = None
    """Mean tokens of a sample, or of all its rounds together; those that a mode inserts included."""
    truncated_share: float | None = None
    answered_share: float | None = None
    unjudged: int = 0
    quality: dict[str, float] = {}
    """Shares in [0, 1] that describe the traces beyond their reward, as ``well_formed`` and ``right_checks`` of the
    small world.
    """
    regret: dict[int, dict[str, float]] = {}
    """Normalised regret by budget in tokens and problem id; empty where prefixes were not valued."""
    regret_tokens: Literal["sampled", "all"] = "sampled"
    """The tokens that ``regret`` counts: the sampled ones of the trace, or prompt, closing text and answer too."""
    stages: dict[str, float] = {}
    """Accuracy by round of revision or by budget. All other numbers are of the last stage; empty where a sample is one
    completion.
    """
    stages_by_problem: dict[str, tuple[float, ...]] = {}
    """[P][stages] mean reward by problem id, in the order of ``stages``."""
    graders: tuple[str, ...] = ()
    """Several where mrt-hpc or math-verify changed between two parts of the evaluation."""
    settings: str | None = None

    @field_validator("graders", mode="before")
    @classmethod
    def _digests(cls, graders: object) -> object:
        """Version 0.2.0 wrote the number of graders: one has no known digest, and several differ."""
        if not isinstance(graders, int):
            return graders
        return [f"grader {number} of {graders}" for number in range(1, graders + 1)] if graders > 1 else []

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        for rows, columns in (
            (self.pass_by_problem, self.pass_at_k),
            (self.majority_by_problem, self.pass_at_k),
            (self.stages_by_problem, self.stages),
        ):
            if short := [problem for problem, row in rows.items() if len(row) != len(columns)]:
                raise ValueError(f"problem {short[0]} has {len(rows[short[0]])} numbers, and not {len(columns)}")
        return self


class IterationMetrics(Record):
    """One iteration: ``iterations/000012/metrics.json``. Iteration i publishes version i + 1."""

    iteration: int
    reward_mean: float | None = None
    """Of the rollouts trained on; None where given samples are learnt."""
    tokens_per_rollout: float
    """Mean sampled tokens of a rollout, its answer included, without a prefix. Of given samples, their mean length."""
    seconds: dict[Phase, float] = {}
    """The trainer's wall time; while it waits, that of the slowest inference task."""
    wall_seconds: float | None = None
    """From one published weights version to the next."""
    sampling_seconds: float | None = None
    """Of the slowest inference task, whether the trainer waited for it or not."""
    batch: str | None = None
    """The digest of the groups trained on: shows whether the run directory contains the same groups."""
    problems: int | None = None
    rollouts: int | None = None
    """The judged ones, which are measured; ``unjudged`` counts the others."""
    unjudged: int = 0
    branches: int | None = None
    trained_branches: int | None = None
    """Branches learnt from, at boundaries where some are right and some are wrong."""
    dropped_branches: int = 0
    """Branches to be learnt from, but not sampled as the recipe says."""
    generated_tokens: int | None = None
    """Branches included."""
    branch_tokens: int | None = None
    prefilled_tokens: int | None = None
    """Tokens of rollouts, branches and looks that were in no prefix cache."""
    progress_by_episode: tuple[float, ...] = ()
    """Mean progress V_{j+1} - V_j of episode j over the traces that have one."""
    progress_error: float | None = None
    """Standard error of one progress value, from its branches: the root of the mean variance over the values that have
    one.
    """
    progress_error_share: float | None = None
    """The share of these values. A boundary with a single branch has none; a planner draws one where little is open, so
    the standard error of all lies below that of the share.
    """
    episodes_per_rollout: float | None = None
    signal_share: float | None = None
    """Of the groups of which the algorithm learns something; of earlier versions, of those whose rewards differ."""
    thrown_groups: int = 0
    """Groups that were sampled and thrown away, see ``sampling.resample``; their tokens count in the others."""
    truncated_share: float | None = None
    answered_share: float | None = None
    staleness_mean: float | None = None
    """Weights versions that rollouts lag behind the trained one, mean; from the oldest that sampled a token."""
    mixed_weights_share: float | None = None
    """Of rollouts that several weights versions have sampled; see ``schedule.weight_swap``."""
    quality: dict[str, float] = {}
    skipped_steps: int | None = None
    """Optimiser steps skipped because loss or gradient was not finite."""
    loss: float | None = None
    grad_norm: float | None = None
    """Before clipping."""
    learning_rate: float | None = None
    entropy: float | None = None
    """Nats per token."""
    kl_reference: float | None = None
    """Of the policy to the reference, nats per token."""
    clip_fraction: float | None = None
    """Of the tokens whose importance ratio is clipped."""
    mismatch_mean: float | None = None
    """Mean ratio of the sampled tokens' probabilities, the trainer's over the server's: 1 when they agree."""
    mismatch_max: float | None = None
    trainer: dict[str, float] = {}
    """By the names of :class:`mrt_hpc.training.update_statistics.UpdateStats`."""

    @property
    def warnings(self) -> list[str]:
        where = f"iteration {self.iteration}"
        lost = several_unjudged(self.unjudged, where, "they are left out")
        sentences = (few_answers(self.answered_share, where), lost, sampler_mismatch(self.trainer, where))
        return [warning for warning in sentences if warning is not None]


def graders_of(*evaluations: EvaluationSummary) -> set[str]:
    return {grader for evaluation in evaluations for grader in evaluation.graders}


def several_graders(graders: Collection[str], what: str) -> str | None:
    """A warning about ``what``, an evaluation in words, if several graders judged it."""
    if len(graders) < 2:
        return None
    judged = f"{what}: {len(graders)} versions of the grader have judged the samples, which are not compared"
    return f"{judged}; mrt-hpc regrade RUN judges all of a run by one"


def few_answers(share: float | None, where: str) -> str | None:
    """A warning if nearly no trace of ``where``, as ``iteration 3``, has an answer."""
    if share is None or share >= FEW_ANSWERS:
        return None
    return (
        f"an answer was found in {share:.0%} of the traces of {where}, and a trace without one has reward 0: compare a "
        "sample trace in the inference log of the first iteration with prompt.thought_start and prompt.thought_end "
        "(empty for a model that writes no tags), prompt.instruction and sampling.max_tokens"
    )


def several_unjudged(count: int, where: str, then: str) -> str | None:
    what = f"the verifier could not judge {count:,} traces of {where}, or all branches of one of their boundaries"
    return f"{what}: {then}" if count else None


def sampler_mismatch(trainer: Mapping[str, float], where: str) -> str | None:
    """A warning where the trainer's log-probabilities are far from the server's."""
    divergence, capped = trainer.get("mismatch_kl", 0.0), trainer.get("importance_capped_share", 0.0)
    effective = trainer.get("effective_sample_share", 1.0)
    is_small = 0 < effective < EFFECTIVE_SHARE  # 0 where no token was computed
    if divergence <= MISMATCH_KL and capped <= CAPPED_SHARE and not is_small:
        return None
    return (
        f"the policy that the trainer holds is far from the one that sampled {where}: a KL divergence of "
        f"{divergence:.3g} nats a token (too much above {MISMATCH_KL:g}), and {capped:.1%} of the importance weights "
        f"above training.importance_cap (too much above {CAPPED_SHARE:.0%})"
        f"{f', which before it make the tokens worth {effective:.0%} of their number' * is_small}; compare "
        "serving.dtype with training.precision, and take a lower schedule.max_staleness or training.learning_rate"
    )


class RunCost(Record):
    wall_seconds: float | None = None
    """From the first task's start to the last one's end."""
    generated_tokens: int | None = None
    """For training: rollouts, branches, and traces that training starts from; not for evaluations."""
    gpu_hours: float | None = None
    """Allocated, idle time included."""
    cpu_hours: float | None = None
    """Core hours, allocated."""
    sampled_tokens_per_second: float | None = None
    """Of one inference task, while it samples."""
    trained_tokens_per_second: float | None = None
    """Of one rank of the trainer, while it updates."""


class RunFile(Record):
    what: str
    path: str


class RunSummary(Record):
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
    """Gaps, a sentence each."""
    cost: RunCost = RunCost()
    files: tuple[RunFile, ...] = ()
    versions: dict[str, str] = {}
    upload: str | None = None
    """The number of offline W&B directories that are not uploaded."""
    upload_command: str | None = None

    @property
    def iterations_done(self) -> int:
        return len(self.iterations)


# -- collect -----------------------------------------------------------------------------------------------------------
# Reads the measurements of the roles of a run, and lists what is missing.


@dataclass(frozen=True)
class Measurements:
    iterations: tuple[IterationMetrics, ...]
    evaluations: tuple[EvaluationSummary, ...]
    """By benchmark as planned, then by version."""
    missing: tuple[str, ...]
    unmade: tuple[str, ...] = ()
    """Gaps that cannot be filled any more, a sentence each."""
    unreadable: tuple[str, ...] = ()


def read_measurements(
    layout: RunLayout, iterations_planned: int, versions: Iterable[int], settings: Mapping[str, EvaluationSettings]
) -> Measurements:
    """All planned iterations and evaluations, and further versions evaluated with the same settings; summaries of other
    ``settings`` count as missing.
    """
    iterations, unreadable = readable(map(layout.metrics, range(iterations_planned)), IterationMetrics.read)
    absent = sorted(set(range(iterations_planned)).difference(metrics.iteration for metrics in iterations))
    missing = [f"metrics of iterations {span_text(absent)} of {iterations_planned}"] if absent else []
    wanted, pruned = set(versions), set(skipped_versions(layout))
    evaluations, unmade = [], []
    for benchmark, asked in settings.items():
        summaries, faults = _summaries(layout, benchmark, wanted, asked)
        unreadable += faults
        evaluations += summaries
        absent = sorted(wanted.difference(summary.version for summary in summaries))
        if waited_for := [version for version in absent if version not in pruned]:
            missing.append(f"evaluation on {benchmark} of weights versions {span_text(waited_for)}")
        if gone := [version for version in absent if version in pruned]:
            unmade.append(
                f"evaluation on {benchmark} of weights versions {span_text(gone)}, which had been pruned before it was "
                "asked for"
            )
    return Measurements(tuple(iterations), tuple(evaluations), tuple(missing), tuple(unmade), tuple(unreadable))


def _summaries(
    layout: RunLayout, benchmark: str, wanted: Iterable[int], settings: EvaluationSettings
) -> tuple[list[EvaluationSummary], list[str]]:
    """The wanted versions and others evaluated with these settings; and a line for each summary that cannot be read."""
    versions = sorted({*wanted, *versions_evaluated(layout)})
    paths = [layout.evaluation_summary(version, benchmark) for version in versions]
    summaries, faults = readable(paths, EvaluationSummary.read)
    return [summary for summary in summaries if summary.settings == settings.summarised], faults


def read_summary(layout: RunLayout, version: int, benchmark: str) -> EvaluationSummary:
    """Raises FileNotFoundError, and UserError where the file holds something else."""
    return EvaluationSummary.read(layout.evaluation_summary(version, benchmark))


def is_evaluated(layout: RunLayout, unit: EvaluationUnit, settings: EvaluationSettings) -> bool:
    """A unit needs its shard and summary, of these settings."""
    try:
        summary = EvaluationSummary.read(layout.evaluation_summary(unit.version, unit.benchmark))
    except (FileNotFoundError, UserError):  # absent, or damaged
        return False
    shard = layout.evaluation_shard(unit.version, unit.benchmark, unit.shard)
    return summary.settings == settings.summarised and has_samples(shard, settings)
