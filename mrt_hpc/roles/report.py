"""The report role: it writes all that the run has measured as report.md, plots and a page, and says what is missing."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mrt_hpc.analysis.evaluated_run import EvaluatedRun
from mrt_hpc.analysis.measures import IterationMetrics, Measurements, RunCost, RunFile, RunSummary, read_measurements
from mrt_hpc.analysis.model_samples import ModelSamples, other_settings
from mrt_hpc.analysis.named_models import NamedArm, NamedModel, remarks_on, require_independent
from mrt_hpc.analysis.report.content import RunRecord
from mrt_hpc.analysis.report.render import write_markdown, write_page
from mrt_hpc.analysis.spending import Spending, spending
from mrt_hpc.errors import UserError
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


def run(task: Task) -> None:
    """Log the evaluations for W&B and TensorBoard, where the recipe asks for it, and write the report; the report is
    written also where logging fails.

    Raises:
        UserError: something is missing; the report is written all the same, and says what.
    """
    task.spend(Use.REPORTING)
    try:
        if task.experiment.trains:
            evaluations = measurements(task.layout, task.experiment).evaluations
            log_evaluations(task, evaluations)
            write_event_files(task, evaluations)
    finally:
        missing = task.retrying(lambda: write_report(task.layout), "the report")
    if missing:
        raise UserError(
            f"the report is incomplete: {'; '.join(missing)}",
            where=task.layout.report,
            advice=f"mrt-hpc status {task.layout.word}; {task.layout.again} continues the run",
        )


def write_report(layout: RunLayout, page: Path | None = None, *, trust: bool = False) -> tuple[str, ...]:
    """Write report.md and the plots from what is there, and then the page, so that an error there loses nothing else.

    Args:
        layout: the run directory.
        page: where the page goes, and nothing else is written then; None puts it beside the report.
        trust: whether classes of the run are imported also where another user can change them.

    Returns:
        What is missing, a sentence each.
    """
    recipe = read_lock(layout.recipe_lock, trust=trust)
    measured = measurements(layout, recipe)
    records = records_of(layout, recipe, measured, recipe.name)
    if page is None:
        write_markdown(layout.root, records)
        log.info("report: %s", layout.report)
    write_page(page or layout.page, [with_samples(layout, recipe, record) for record in records])
    return measured.missing


def write_comparison(
    layouts: Sequence[RunLayout], page: Path, arms: Sequence[str | None], *, trust: bool = False
) -> None:
    """Write one page with several runs, and models of evaluations, side by side; their own reports stay as they are.

    Args:
        layouts: the run directories.
        page: where the page goes.
        arms: of each run the arm that it belongs to, if there is one.
        trust: whether classes of the runs are imported also where another user can change them.

    Raises:
        UserError: ``compare`` would refuse the arms, see ``comparison_notes``.
    """
    recipes = [read_lock(layout.recipe_lock, trust=trust) for layout in layouts]
    whose, records = [], []
    for layout, recipe, name, arm in zip(layouts, recipes, run_names(layouts, recipes), arms, strict=True):
        for record in records_of(layout, recipe, measurements(layout, recipe), name):
            whose.append(EvaluatedRun(layout, recipe, layout.word))
            records.append(replace(record, arm=arm))
    first, *others = named = with_names_that_differ(records)
    named = [replace(first, notes=tuple(comparison_notes(whose, named))), *others]
    write_page(page, [with_samples(run.layout, run.recipe, one) for run, one in zip(whose, named, strict=True)])


def comparison_notes(whose: Sequence[EvaluatedRun], records: Sequence[RunRecord]) -> Iterator[str]:
    """What ``compare`` notes of the runs of arms, and of settings in which evaluations differ.

    Args:
        whose: of each record the run or the evaluation.
        records: that stand side by side.

    Raises:
        UserError: what ``compare`` refuses as well: one of them is named twice, or an arm has a training seed twice.
    """
    arms: dict[str, list[NamedModel]] = {}
    samples: dict[str, list[ModelSamples]] = {}
    for run, record in zip(whose, records, strict=True):
        if record.last is None:
            continue
        arms.setdefault(record.curve_name, []).append(NamedModel(run, record.last))
        for benchmark in run.benchmarks:
            if record.last in run.versions(benchmark):
                samples.setdefault(benchmark, []).append(run.described(record.last, benchmark, record.name))
    named = [NamedArm(tuple(models), name) for name, models in arms.items()]
    require_independent(named, ())
    yield from remarks_on(named, ())
    several = any(len(arm.models) > 1 for arm in named)
    for first, *others in samples.values():
        yield from other_settings(first, others, seeds=not several)


def with_names_that_differ(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The records of a page; a model that shares its name has that of its evaluation in it."""
    names = [record.name for record in records]
    return [
        record
        if names.count(record.name) == 1 or record.evaluation is None
        else replace(record, name=f"{record.name} ({record.evaluation})")
        for record in records
    ]


def run_names(layouts: Sequence[RunLayout], recipes: Sequence[Experiment]) -> list[str]:
    """The shortest kind of name by which the runs differ: of the recipe, of the directory, or its path."""
    kinds = (
        [recipe.name for recipe in recipes],
        [layout.root.name for layout in layouts],
        [str(layout.root) for layout in layouts],
    )
    return next((names for names in kinds if len(set(names)) == len(names)), kinds[-1])


def records_of(layout: RunLayout, recipe: Experiment, measured: Measurements, name: str) -> list[RunRecord]:
    """What a report shows of a run, or of each model of an evaluation on its own, without their samples. What models
    share stands with the first one.
    """
    spent = spending(layout, read_plan(layout.plan), recipe)
    if isinstance(recipe, Recipe):
        *_, last = None, *EvaluatedRun(layout, recipe, layout.word).wanted
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


def with_samples(layout: RunLayout, recipe: Experiment, record: RunRecord) -> RunRecord:
    """The record with what the page shows of its traces and their prefixes."""
    samples = trace_samples(layout, recipe, record.summary)
    prefixes, unread = prefix_curves(layout, recipe, record.summary)
    return replace(
        record,
        traces=samples.traces,
        problems=samples.problems,
        choice=samples.remarks,
        prefixes=prefixes,
        unread=unread,
    )


def model_summaries(layout: RunLayout, recipe: Experiment, measured: Measurements, spent: Spending) -> list[RunSummary]:
    """What each model of an evaluation on its own has measured; its evaluations have its number as their version."""
    shared = {
        "missing": (*measured.missing, *measured.unmade),
        "cost": allocated(spent),
        "settings": evaluation_table(recipe),
        "files": (
            RunFile(what="resolved recipe", path="recipe.lock.yaml"),
            RunFile(what="evaluation samples", path="evals/"),
            RunFile(what="events of all attempts", path="events/"),
        ),
        "versions": recorded_versions(layout.recipe_lock),
    }
    first, *others = (
        RunSummary(
            recipe=recipe.name,
            algorithm="",
            model=model.path,
            iterations_planned=0,
            evaluations=tuple(evaluation for evaluation in measured.evaluations if evaluation.version == number),
        )
        for number, model in enumerate(recipe.models)
    )
    return [first.model_copy(update=shared), *others]


def evaluation_table(recipe: Experiment) -> dict[str, str]:
    """The settings of an evaluation on its own that a reader wants to see beside the results."""
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
    """What the run has measured so far, and what is missing of what the recipe plans."""
    settings = evaluation_settings(layout, recipe)
    measured = read_measurements(layout, recipe.iterations, recipe.evaluated_versions, settings)
    return replace(measured, missing=(*measured.missing, *measured.unreadable))


def run_summary(layout: RunLayout, recipe: Recipe, measured: Measurements, spent: Spending) -> RunSummary:
    """All that the report shows."""
    waiting = upload(layout)
    return RunSummary(
        recipe=recipe.name,
        algorithm=recipe.algorithm.type,
        model=recipe.model.path if isinstance(recipe.model, HuggingFaceModel) else "embedded small world",
        prover=None if recipe.prover is None else recipe.prover.type,
        iterations_planned=recipe.schedule.iterations,
        settings={**settings_table(recipe), **({} if (fork := read_fork(layout)) is None else fork.in_words())},
        iterations=measured.iterations,
        evaluations=measured.evaluations,
        missing=(*measured.missing, *measured.unmade),
        cost=cost(layout, spent, recipe, measured.iterations),
        files=(
            RunFile(what="resolved recipe", path="recipe.lock.yaml"),
            RunFile(what="last weights version", path=f"weights/v{recipe.schedule.iterations:06d}"),
            *sampled_files(recipe),
            RunFile(what="evaluation samples", path="evals/"),
            RunFile(what="events of all attempts", path="events/"),
        ),
        versions=recorded_versions(layout.recipe_lock),
        upload=None if waiting is None else str(waiting),
        upload_command=None if waiting is None else waiting.command,
    )


def sampled_files(recipe: Recipe) -> list[RunFile]:
    """The places of the run's samples."""
    algorithm = recipe.algorithm
    collected = [RunFile(what="what version 0 sampled", path="collection/")] if algorithm.collects else []
    if len(algorithm.traces_versions(recipe.schedule.iterations)) > 1:
        collected.append(RunFile(what="what later versions sampled for training to go on from", path="collections/"))
    sampled = [RunFile(what="rollouts, branches and values", path="iterations/")] if algorithm.samples_rollouts else []
    return [*collected, *sampled]


def settings_table(recipe: Recipe) -> dict[str, str]:
    """The settings of the recipe that a reader wants to see beside the results."""
    sampling, training = recipe.sampling, recipe.training
    algorithm = recipe.algorithm
    table = {"seed": str(recipe.seed), "learning rate": f"{training.learning_rate:g} ({training.schedule})"}
    table |= algorithm.summary(recipe)
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
    """What the run has used, with the rates that it has reached."""
    hours = allocated(spent)
    if hours.wall_seconds is None:
        return hours
    measured = {
        "generated_tokens": sum(m.generated_tokens or 0 for m in iterations) + collected_tokens(layout, recipe),
        "sampled_tokens_per_second": sampled_rate(iterations, recipe.resources.inference.tasks),
        "trained_tokens_per_second": trained_rate(iterations, recipe.resources.trainer.ranks),
    }
    return hours.model_copy(update=measured)


def allocated(spent: Spending) -> RunCost:
    """The time and the hours of a run or an evaluation; nothing before its first attempt."""
    if spent.wall_seconds is None:
        return RunCost()
    return RunCost(wall_seconds=spent.wall_seconds, gpu_hours=spent.gpu_hours, cpu_hours=spent.core_hours)


def sampled_rate(iterations: Sequence[IterationMetrics], tasks: int) -> float | None:
    """Tokens per second of one inference task while it samples; None where no iteration has measured it."""
    timed = [(m.generated_tokens, m.sampling_seconds) for m in iterations if m.generated_tokens and m.sampling_seconds]
    seconds = sum(seconds for _, seconds in timed)
    return sum(tokens for tokens, _ in timed) / seconds / tasks if seconds else None


def trained_rate(iterations: Sequence[IterationMetrics], ranks: int) -> float | None:
    """Tokens per second of one rank while it updates, padding counted as the model computes it; None if unknown."""
    measured = [(m.trainer.get("positions"), m.trainer.get("seconds_update")) for m in iterations]
    timed = [(positions, seconds) for positions, seconds in measured if positions and seconds]
    seconds = sum(seconds for _, seconds in timed)
    return sum(positions for positions, _ in timed) / seconds / ranks if seconds else None


def collected_tokens(layout: RunLayout, recipe: Recipe) -> int:
    """The tokens of the traces that training starts from, by the manifests of their groups."""
    collections = map(collection_of, recipe.algorithm.traces_versions(recipe.schedule.iterations))
    groups = [(number, position) for number in collections for position in sampled_positions(layout, number)]
    costs = [sampled_manifest(layout, *group).about["statistics"] for group in groups]
    return sum(cost["rollout_tokens"] + cost["branch_tokens"] for cost in costs)
