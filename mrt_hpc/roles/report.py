"""The report role: writes all that the run measured as report.md, plots and a page, and says what is missing."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mrt_hpc.algorithms.base import SupervisedAlgorithm
from mrt_hpc.analysis.evaluated_run import EvaluatedRun
from mrt_hpc.analysis.measures import IterationMetrics, Measurements, RunCost, RunFile, RunSummary, read_measurements
from mrt_hpc.analysis.model_samples import ModelSamples, other_settings
from mrt_hpc.analysis.named_models import NamedArm, NamedModel, remarks_on, require_independent
from mrt_hpc.analysis.report.content import RunRecord
from mrt_hpc.analysis.report.render import write_markdown, write_page
from mrt_hpc.analysis.spending import Spending, spending
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.recipe.lock import read_lock, recorded_versions
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.recipe.sections import HuggingFaceModel
from mrt_hpc.roles.event_texts import happenings
from mrt_hpc.roles.run_samples import prefix_curves, trace_samples
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.tracking import log_evaluations, write_event_files
from mrt_hpc.run.archive import sampled_manifest, sampled_positions
from mrt_hpc.run.evaluation_settings import evaluation_settings
from mrt_hpc.run.events import Use
from mrt_hpc.run.fork_record import read_fork
from mrt_hpc.run.layout import RunLayout, collection_of
from mrt_hpc.run.wandb_runs import upload

log = logging.getLogger(__name__)

RESOLVED_RECIPE = RunFile(what="resolved recipe", path="recipe.lock.yaml")
EVALUATION_FILES = (
    RunFile(what="evaluation samples", path="evals/"), RunFile(what="events of all attempts", path="events/"),
)  # fmt: skip


def run(task: Task) -> None:
    """Log the evaluations where the recipe asks for it, and write the report, even where logging fails.

    Raises:
        UserError: something is missing; the report says what.
    """
    task.spend(Use.REPORTING)
    try:
        if task.experiment.trains:
            evaluations = measurements(task.layout, task.experiment).evaluations
            if task.recipe.tracking.wandb:
                log_evaluations(task, evaluations)
            if task.recipe.tracking.tensorboard:
                write_event_files(task, evaluations)
    finally:
        missing = task.retry(lambda: write_report(task.layout), "the report")
    if missing:
        raise UserError(
            f"the report is incomplete: {'; '.join(missing)}",
            where=task.layout.report,
            advice=Advice(
                "mrt-hpc status {run}; {again} continues the run", run=task.layout.root, again=task.layout.again
            ),
        )


def write_report(layout: RunLayout, page: Path | None = None, *, trust: bool = False) -> tuple[str, ...]:
    """Write report.md and plots, then the page, so that an error there loses nothing else; return a sentence for each
    gap. Where another user can change the run's classes, they are imported only with ``trust``. ``page`` is where to
    write the page alone.
    """
    recipe = read_lock(layout.recipe_lock, trust=trust)
    measured = measurements(layout, recipe)
    records = records_of(layout, recipe, measured, recipe.name)
    if page is None:
        write_markdown(layout.root, records)
        log.info("report: %s", layout.report)
    write_page(page or layout.page, [add_samples(layout, recipe, record) for record in records])
    return measured.missing


def write_comparison(
    layouts: Sequence[RunLayout], page: Path, arms: Sequence[str | None], *, trust: bool = False
) -> None:
    """Write one page with several runs and models side by side; refuses the arms that ``compare`` refuses. ``arms`` are
    by run; ``trust`` is as in :func:`write_report`.
    """
    recipes = [read_lock(layout.recipe_lock, trust=trust) for layout in layouts]
    whose, records = [], []
    for layout, recipe, name, arm in zip(layouts, recipes, run_names(layouts, recipes), arms, strict=True):
        for record in records_of(layout, recipe, measurements(layout, recipe), name):
            whose.append(EvaluatedRun(layout, recipe, layout.word))
            records.append(replace(record, arm=arm))
    first, *others = named = distinguish_names(records)
    named = [replace(first, notes=tuple(comparison_notes(whose, named))), *others]
    write_page(page, [add_samples(run.layout, run.recipe, one) for run, one in zip(whose, named, strict=True)])


def comparison_notes(whose: Sequence[EvaluatedRun], records: Sequence[RunRecord]) -> Iterator[str]:
    """The notes of ``compare`` on runs of arms and on evaluations with other settings; refuses a run named twice and an
    arm with a training seed twice.
    """
    arms: dict[str, list[NamedModel]] = {}
    samples: dict[str, list[ModelSamples]] = {}
    for run, record in zip(whose, records, strict=True):
        if record.last is None:
            continue
        arms.setdefault(record.curve_name, []).append(NamedModel(run, record.last))
        for benchmark in run.benchmarks:
            if record.last in run.versions(benchmark):
                samples.setdefault(benchmark, []).append(run.describe(record.last, benchmark, record.name))
    named = [NamedArm(tuple(models), name) for name, models in arms.items()]
    require_independent(named, ())
    yield from remarks_on(named, ())
    several = any(len(arm.models) > 1 for arm in named)
    for first, *others in samples.values():
        yield from other_settings(first, others, seeds=not several)


def distinguish_names(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The page's records; models of one name get their evaluation's name too."""
    names = [record.name for record in records]
    twice = [record.evaluation is not None and names.count(record.name) > 1 for record in records]
    longer = [replace(record, name=f"{record.name} ({record.evaluation})") for record in records]
    return [new if changed else old for old, new, changed in zip(records, longer, twice, strict=True)]


def run_names(layouts: Sequence[RunLayout], recipes: Sequence[Experiment]) -> list[str]:
    whole = [str(layout.root) for layout in layouts]
    kinds = ([recipe.name for recipe in recipes], [layout.root.name for layout in layouts])
    return next((names for names in kinds if len(set(names)) == len(names)), whole)


def records_of(layout: RunLayout, recipe: Experiment, measured: Measurements, name: str) -> list[RunRecord]:
    """A run, or each model of a separate evaluation, without samples. The first model holds what all share."""
    spent = spending(layout, read_plan(layout.plan), recipe)
    if isinstance(recipe, Recipe):
        *_, last = None, *EvaluatedRun(layout, recipe, layout.word).wanted_versions
        records = [RunRecord(name, run_summary(layout, recipe, measured, spent), last=last)]
    else:
        summaries = model_summaries(layout, recipe, measured, spent)
        records = [
            RunRecord(model.name, summary, evaluation=name, last=number)
            for number, (model, summary) in enumerate(zip(recipe.models, summaries, strict=True))
        ]
    counted = Counter(attempt.role for attempt in spent.attempts)
    first = replace(
        records[0],
        hours=tuple(spent.rows),
        attempts={role: counted[role] for role in Role if role in counted},
        happenings=happenings(layout),
        recipe=layout.recipe_lock.read_text(encoding="utf-8"),
    )
    return [first, *records[1:]]


def add_samples(layout: RunLayout, recipe: Experiment, record: RunRecord) -> RunRecord:
    samples = trace_samples(layout, recipe, record.summary)
    prefixes, unread = prefix_curves(layout, recipe, record.summary)
    record = replace(record, traces=samples.traces, problems=samples.problems, choice=samples.remarks)
    return replace(record, prefixes=prefixes, unread=unread)


def model_summaries(layout: RunLayout, recipe: Experiment, measured: Measurements, spent: Spending) -> list[RunSummary]:
    """Each model's results; its number is their version."""
    shared: dict[str, Any] = {
        "missing": (*measured.missing, *measured.unmade),
        "cost": allocated_cost(spent),
        "settings": evaluation_table(recipe),
        "files": (RESOLVED_RECIPE, *EVALUATION_FILES),
        "versions": recorded_versions(layout.recipe_lock),
    }
    return [
        RunSummary(
            recipe=recipe.name,
            algorithm="",
            model=model.path,
            iterations_planned=0,
            evaluations=tuple(evaluation for evaluation in measured.evaluations if evaluation.version == number),
            **(shared if number == 0 else {}),
        )
        for number, model in enumerate(recipe.models)
    ]


def evaluation_table(recipe: Experiment) -> dict[str, str]:
    how = recipe.evaluation
    table = {"suite": how.suite or "of its own", "seed": str(recipe.seed)}
    table |= {"sampling": f"temperature {how.temperature:g}, top-p {how.top_p:g}", "token limit": f"{how.max_tokens:,}"}
    table |= {f"mode of {b.name}": b.mode.type for b in how.benchmarks if b.mode is not None}
    if how.prover is not None:
        table["prover of regret"] = f"{how.prover.type}, temperature {how.prover.temperature:g}"
    if how.results is not None:
        table["results folder"] = how.results
    return table


def measurements(layout: RunLayout, recipe: Experiment) -> Measurements:
    settings = evaluation_settings(layout, recipe)
    measured = read_measurements(layout, recipe.iterations, recipe.evaluated_versions, settings)
    return replace(measured, missing=(*measured.missing, *measured.unreadable))


def run_summary(layout: RunLayout, recipe: Recipe, measured: Measurements, spent: Spending) -> RunSummary:
    waiting = upload(layout)
    return RunSummary(
        recipe=recipe.name,
        algorithm=recipe.algorithm.type,
        model=recipe.model.path if isinstance(recipe.model, HuggingFaceModel) else "embedded small world",
        prover=None if recipe.prover is None else recipe.prover.type,
        iterations_planned=recipe.schedule.iterations,
        settings={**settings_table(recipe), **({} if (fork := read_fork(layout)) is None else fork.report_lines())},
        iterations=measured.iterations,
        evaluations=measured.evaluations,
        missing=(*measured.missing, *measured.unmade),
        cost=cost(layout, spent, recipe, measured.iterations),
        files=(
            RESOLVED_RECIPE,
            RunFile(what="last weights version", path=f"weights/v{recipe.schedule.iterations:06d}"),
            *sampled_files(recipe),
            *EVALUATION_FILES,
        ),
        versions=recorded_versions(layout.recipe_lock),
        upload=None if waiting is None else str(waiting),
        upload_command=None if waiting is None else waiting.command,
    )


def sampled_files(recipe: Recipe) -> list[RunFile]:
    algorithm = recipe.algorithm
    collected = [RunFile(what="what version 0 sampled", path="collection/")] if algorithm.collects else []
    if len(algorithm.traces_versions(recipe.schedule.iterations)) > 1:
        collected.append(RunFile(what="what later versions sampled for training to go on from", path="collections/"))
    sampled = [RunFile(what="rollouts, branches and values", path="iterations/")] if algorithm.samples_rollouts else []
    return [*collected, *sampled]


def settings_table(recipe: Recipe) -> dict[str, str]:
    sampling, training = recipe.sampling, recipe.training
    algorithm = recipe.algorithm
    table = {"seed": str(recipe.seed), "learning rate": f"{training.learning_rate:g} ({training.schedule})"}
    if isinstance(algorithm, SupervisedAlgorithm):
        table["sequences an iteration"] = str(algorithm.sequences_per_iteration)
    else:
        table["problems an iteration"] = str(sampling.problems_per_iteration)
        table["staleness limit"] = str(recipe.schedule.max_staleness)
    if algorithm.samples_rollouts or algorithm.collects:
        table["group size"] = str(sampling.rollouts_per_problem)
        table["sampling temperature"] = f"{sampling.temperature:g}"
        table["token limit"] = f"{sampling.max_tokens:,}"
    if (branches := getattr(recipe.prover, "branches", None)) is not None:
        table["branches a boundary"] = str(branches)
    if (regret := recipe.evaluation.prover) is not None:
        table["prover of regret"] = f"{regret.type}, temperature {regret.temperature:g}"
    if (alpha := getattr(recipe.algorithm, "alpha", None)) is not None:
        table["alpha"] = f"{alpha:g}"
    return table


def cost(layout: RunLayout, spent: Spending, recipe: Recipe, iterations: Sequence[IterationMetrics]) -> RunCost:
    return allocated_cost(
        spent,
        generated_tokens=sum(m.generated_tokens or 0 for m in iterations) + collected_tokens(layout, recipe),
        sampled_tokens_per_second=sampled_rate(iterations, recipe.resources.inference.tasks),
        trained_tokens_per_second=trained_rate(iterations, recipe.resources.trainer.ranks),
    )


def allocated_cost(spent: Spending, **measured: Any) -> RunCost:
    """Time, hours and what was measured; nothing before the first attempt."""
    if spent.wall_seconds is None:
        return RunCost()
    return RunCost(wall_seconds=spent.wall_seconds, gpu_hours=spent.gpu_hours, cpu_hours=spent.core_hours, **measured)


def sampled_rate(iterations: Sequence[IterationMetrics], tasks: int) -> float | None:
    """Per second of one inference task while sampling."""
    timed = [(m.generated_tokens, m.sampling_seconds) for m in iterations if m.generated_tokens and m.sampling_seconds]
    seconds = sum(seconds for _, seconds in timed)
    return sum(tokens for tokens, _ in timed) / seconds / tasks if seconds else None


def trained_rate(iterations: Sequence[IterationMetrics], ranks: int) -> float | None:
    """Per second of one rank while updating, padding included."""
    measured = [(m.trainer.get("positions"), m.trainer.get("seconds_update")) for m in iterations]
    timed = [(positions, seconds) for positions, seconds in measured if positions and seconds]
    seconds = sum(seconds for _, seconds in timed)
    return sum(positions for positions, _ in timed) / seconds / ranks if seconds else None


def collected_tokens(layout: RunLayout, recipe: Recipe) -> int:
    """Tokens of the traces that training starts from, by their groups' manifests."""
    collections = map(collection_of, recipe.algorithm.traces_versions(recipe.schedule.iterations))
    groups = [(number, position) for number in collections for position in sampled_positions(layout, number)]
    costs = [sampled_manifest(layout, *group).about["statistics"] for group in groups]
    return sum(cost["rollout_tokens"] + cost["branch_tokens"] for cost in costs)
