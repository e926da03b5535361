"""Compile a recipe and a site into a plan: pure, and the same for the same input.

Segment s is an inference array and a trainer, or one colocated job that does the work of both; they start when trainer
s-1 has ended well (the first when ``prepare`` has, and where the algorithm starts from traces of weights version 0, the
array that collects these). Where these are sampled again by later weights, another such array stands between two
segments. A supervised algorithm samples nothing
more, so its segments are trainers alone. Evaluations of the weights versions that fall into the segment are queued
behind its trainer, off the critical path; the report waits for everything, however it ended, and says what is missing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil

from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Dependency, DependencyKind, EvaluationUnit, Job, JobResources, Plan, Role
from mrt_hpc.recipe.schema import EvaluationRecipe, Experiment, Recipe
from mrt_hpc.recipe.sections import Coupling, RoleResources, TrainerResources, nodes_of
from mrt_hpc.recipe.site import SiteSettings
from mrt_hpc.run.layout import COLLECTION, collection_of, is_collection

# Checks a plan against the limits of a site, and finds a setting that would fit.


MAX_SEGMENTS = 10_000
"""Segments of a plan, each of at least one job: a queue takes far fewer."""


def check_segments(recipe: Recipe) -> None:
    """Refuse a plan of too many segments, before it is built.

    Raises:
        UserError: the recipe has more than ``MAX_SEGMENTS``.
    """
    iterations, size = recipe.schedule.iterations, recipe.schedule.iterations_per_job
    if (segments := ceil(iterations / size)) > MAX_SEGMENTS:
        raise UserError(
            f"the plan has {segments} segments, each of at least one job",
            value=size,
            where="schedule.iterations_per_job",
            expected=f"{MAX_SEGMENTS} segments or fewer",
            advice=f"--set schedule.iterations_per_job={ceil(iterations / MAX_SEGMENTS)}",
        )


def check_limits(plan: Plan, site: SiteSettings, field: str, value: int, advice: Callable[[int], str]) -> None:
    """Refuse a plan beyond the site's limits.

    Args:
        plan: the plan to check.
        site: whose limits count.
        field: the field of the recipe that decides how many tasks there are.
        value: what the error names beside it.
        advice: what to do, by the number of tasks that are allowed.

    Raises:
        UserError: too many tasks, or too long time limits.
    """
    _check_times(plan, site)
    if (most := site.limits.tasks) is not None and plan.tasks > most:
        raise UserError(
            f"the plan has {plan.tasks} array tasks, more than the site lets you submit",
            value=value,
            where=field,
            expected=f"at most {most} tasks (site max_submit_jobs)",
            advice=advice(most),
        )


def _check_times(plan: Plan, site: SiteSettings) -> None:
    """Refuse all time limits that are too long at once."""
    limit = site.limits.minutes
    asked = {job.role: job.resources.time_limit_minutes for job in plan.jobs}
    long = {f"resources.{role.section}.time_limit_minutes": minutes for role, minutes in asked.items()}
    long = {field: minutes for field, minutes in long.items() if limit is not None and minutes > limit}
    if not long:
        return
    raise UserError(
        f"{' and '.join(long)} {'is' if len(long) == 1 else 'are'} more than site {site.name} allows",
        value=", ".join(map(str, long.values())),
        expected=f"{limit} minutes or less (site max_time_minutes)",
        advice=" ".join(f"--set {field}={limit}" for field in long) + ", and fewer schedule.iterations_per_job with it",
    )


def fitting_iterations_per_job(recipe: Recipe, limit: int, rebuild: Callable[[Recipe], Plan]) -> int | None:
    """The least number of iterations a job with at most ``limit`` tasks in all; None where no number helps."""
    schedule = recipe.schedule
    most = schedule.iterations
    every = recipe.algorithm.refresh_period
    if schedule.coupling is Coupling.SEQUENTIAL and recipe.algorithm.samples_rollouts:
        most = min(most, schedule.max_staleness + 1)
    for size in range(schedule.iterations_per_job + 1, most + 1):
        if every is not None and every % size:
            continue
        update = {"schedule": schedule.model_copy(update={"iterations_per_job": size})}
        if rebuild(recipe.model_copy(update=update)).tasks <= limit:
            return size
    return None


PREPARE = "prepare"
COLLECTION_JOB = "collection.inference"
REPORT = "report"


def compile_plan(recipe: Recipe, site: SiteSettings) -> Plan:
    """The plan of a run on a site.

    Raises:
        UserError: the plan is beyond what the site lets a user submit, or beyond what can be planned.
    """
    check_segments(recipe)
    rebuild = partial(build_plan, max_array_size=site.limits.array_size)
    plan, field = rebuild(recipe), "schedule.iterations_per_job"

    def advice(most: int) -> str:
        """The number of iterations a job with which the plan fits."""
        fitting = fitting_iterations_per_job(recipe, most, rebuild)
        return f"--set {field}={fitting}" if fitting else "evaluate less often, or on fewer benchmarks"

    check_limits(plan, site, field, recipe.schedule.iterations_per_job, advice)
    return plan


def build_plan(recipe: Recipe, *, max_array_size: int | None) -> Plan:
    """The plan without the site's limits on the number of jobs."""
    schedule = recipe.schedule
    segments = ceil(schedule.iterations / schedule.iterations_per_job)
    jobs = [Job(name=PREPARE, role=Role.PREPARE, tasks=1, resources=_one_process(recipe.resources.prepare))]
    collecting, versions = recipe.algorithm.traces_versions(schedule.iterations), frozenset(recipe.evaluated_versions)
    beginning, last = [*jobs], list[Job]()
    for segment in range(segments):
        if (first := segment_iterations(recipe, segment)[0]) in collecting:
            collection = split_array(_collection(recipe, first, _starts_after([jobs[0], *last])), max_array_size)
            beginning = [jobs[0], *collection]
            jobs += collection
        units = _evaluations(recipe, segment, versions)
        last = _segment(recipe, segment, [*beginning, *last], units, max_array_size)
        jobs += last
    jobs.append(_report(recipe, [job for job in jobs if _ends_last(job, segments)]))
    return Plan(
        name=recipe.name,
        kind=recipe.algorithm.type,
        groups=recipe.sampling.problems_per_iteration,
        iterations=schedule.iterations,
        segments=segments,
        jobs=tuple(jobs),
    )


def evaluation_plan(recipe: EvaluationRecipe, site: SiteSettings) -> Plan:
    """The plan of an evaluation on its own: one array over models, benchmarks and problem shards. The first job
    publishes model *i* as weights version *i*.

    Raises:
        UserError: the plan is beyond what the site lets a user submit.
    """
    units = [unit for version in range(len(recipe.models)) for unit in _units(recipe, version)]
    prepare = Job(name=PREPARE, role=Role.PREPARE, tasks=1, resources=_one_process(recipe.resources.prepare))
    whole = Job(
        name=Role.EVALUATION.value,
        role=Role.EVALUATION,
        tasks=len(units),
        evaluations=tuple(units),
        resources=_one_process(recipe.resources.evaluation),
        after=(Dependency(job=PREPARE, kind=DependencyKind.AFTEROK),),
        max_parallel=recipe.resources.evaluation.max_parallel,
    )
    evaluation = split_array(whole, site.limits.array_size)
    jobs = (prepare, *evaluation, _report(recipe, evaluation))
    kind = f"suite {suite}" if (suite := recipe.evaluation.suite) else "unknown"
    plan = Plan(name=recipe.name, kind=kind, iterations=0, segments=0, jobs=jobs)
    advice = "--set evaluation.problem_shards with a smaller number, or fewer models"
    check_limits(plan, site, "evaluation.problem_shards", plan.tasks, lambda _: advice)
    return plan


def segment_iterations(recipe: Recipe, segment: int) -> tuple[int, int]:
    """First iteration of a segment and one past its last."""
    size = recipe.schedule.iterations_per_job
    return segment * size, min((segment + 1) * size, recipe.schedule.iterations)


def _collection(recipe: Recipe, version: int, after: tuple[Dependency, ...]) -> Job:
    """Return the job that samples the traces that the run starts or continues from, with the weights version of that
    iteration.
    """
    number = collection_of(version)
    return Job(
        name=COLLECTION_JOB if number == COLLECTION else f"collection-v{version:06d}.{Role.INFERENCE.value}",
        role=Role.INFERENCE,
        tasks=recipe.resources.inference.tasks,
        first_iteration=number,
        end_iteration=number + 1,
        resources=_one_process(recipe.resources.inference, recipe.resources.inference.nodes),
        after=after,
        max_parallel=recipe.resources.inference.max_parallel,
    )


def _segment(
    recipe: Recipe, segment: int, before: Sequence[Job], units: list[EvaluationUnit], max_array_size: int | None
) -> list[Job]:
    """One segment's jobs.

    Args:
        recipe: what is planned.
        segment: its number.
        before: the jobs before the first segment, or the collection that it continues from, and those of the segment
            before this one.
        units: what is evaluated of it.
        max_array_size: the site's.
    """
    first, end = segment_iterations(recipe, segment)
    resources = recipe.resources
    start = _starts_after(before)
    trains = Role.COLOCATED if recipe.colocated else Role.TRAINER
    whole = Job(
        name=_name(segment, Role.INFERENCE),
        role=Role.INFERENCE,
        tasks=resources.inference.tasks,
        segment=segment,
        first_iteration=first,
        end_iteration=end,
        resources=_one_process(resources.inference, resources.inference.nodes),
        after=start,
    )
    array = whole.model_copy(update={"max_parallel": resources.inference.max_parallel})
    inference = split_array(array, max_array_size) if recipe.algorithm.samples_rollouts and not recipe.colocated else []
    feeding = tuple(Dependency(job=job.name, kind=DependencyKind.AFTEROK) for job in inference)
    trainer = whole.model_copy(
        update={
            "name": _name(segment, trains),
            "role": trains,
            "tasks": 1,
            "resources": role_resources(recipe, trains),
            "after": feeding if feeding and recipe.schedule.coupling is Coupling.SEQUENTIAL else start,
        }
    )
    if not units:
        return [*inference, trainer]
    evaluation = whole.model_copy(
        update={
            "name": _name(segment, Role.EVALUATION),
            "role": Role.EVALUATION,
            "tasks": len(units),
            "evaluations": tuple(units),
            "resources": _one_process(resources.evaluation),
            "after": (Dependency(job=trainer.name, kind=DependencyKind.AFTEROK),),
            "max_parallel": resources.evaluation.max_parallel,
        }
    )
    return [*inference, trainer, *split_array(evaluation, max_array_size)]


def _starts_after(before: Sequence[Job]) -> tuple[Dependency, ...]:
    """A segment starts when the last trainer has ended well, and the run has what it starts from, also where that was
    found damaged later and is made again.
    """
    collections = [job for job in before if any(map(is_collection, job.iterations[:1]))]
    trainers = [job for job in before if job.does(Role.TRAINER)]
    awaited = [*trainers[-1:], *collections] or before
    return tuple(Dependency(job=job.name, kind=DependencyKind.AFTEROK) for job in awaited)


def _evaluations(recipe: Recipe, segment: int, wanted: frozenset[int]) -> list[EvaluationUnit]:
    """Versions (first, end], where wanted, belong to the segment that publishes them; version 0 to the first one."""
    first, end = segment_iterations(recipe, segment)
    versions = [v for v in range(0 if segment == 0 else first + 1, end + 1) if v in wanted]
    return [unit for version in versions for unit in _units(recipe, version)]


def _units(recipe: Experiment, version: int) -> list[EvaluationUnit]:
    """The work of the tasks that evaluate one weights version."""
    return [
        EvaluationUnit(version=version, benchmark=benchmark.name, shard=shard)
        for benchmark in recipe.evaluation.benchmarks
        for shard in range(recipe.evaluation.problem_shards)
    ]


def _report(recipe: Experiment, last: Sequence[Job]) -> Job:
    """The report, which waits for these jobs, however they end."""
    awaited = tuple(Dependency(job=job.name, kind=DependencyKind.AFTERANY) for job in last)
    return Job(name=REPORT, role=Role.REPORT, tasks=1, resources=_one_process(recipe.resources.report), after=awaited)


def split_array(job: Job, max_array_size: int | None) -> list[Job]:
    """Cut an array that is larger than MaxArraySize into several jobs.

    Slurm's MaxArraySize is one more than the largest index, so an array of that many tasks (0 to size - 1) still fits.
    Where only so many tasks may run at a time, the parts run one after the other: Slurm counts within an array only.
    """
    if max_array_size is None or job.tasks <= max_array_size:
        return [job]
    parts: list[Job] = []
    for start in range(0, job.tasks, max_array_size):
        parts.append(_part(job, len(parts), range(start, min(start + max_array_size, job.tasks)), parts))
    return parts


def _part(job: Job, number: int, tasks: range, before: Sequence[Job]) -> Job:
    """One part of an array that was cut, with the tasks of these numbers."""
    turn = before[-1:] if job.max_parallel is not None else ()
    update = {
        "name": f"{job.name}-{number}",
        "tasks": len(tasks),
        "evaluations": job.evaluations[tasks.start : tasks.stop],
        "after": (*job.after, *(Dependency(job=part.name, kind=DependencyKind.AFTERANY) for part in turn)),
    }
    return job.model_copy(update=update)


def _ends_last(job: Job, segments: int) -> bool:
    """Whether the report waits for a job: all evaluations and the last trainer, which ends after all other jobs."""
    return job.role is Role.EVALUATION or (job.does(Role.TRAINER) and job.segment == segments - 1)


def _name(segment: int, role: Role) -> str:
    return f"segment-{segment:03d}.{role.value}"


def role_resources(recipe: Experiment, role: Role) -> JobResources:
    """The resources of each task of a role."""
    if role is Role.TRAINER:
        return _trainer_resources(recipe.resources.trainer)
    if role is Role.COLOCATED:
        return _colocated_resources(recipe.resources.trainer, recipe.resources.inference)
    resources = getattr(recipe.resources, role.value)
    return _one_process(resources, nodes_of(resources))


def _one_process(resources: RoleResources, nodes: int = 1) -> JobResources:
    """The resources of a task with one process on each of its nodes."""
    return JobResources(
        nodes=nodes,
        ranks_per_node=1,
        gpus_per_rank=resources.gpus,
        cpus_per_rank=resources.cpus,
        memory_gib_per_node=resources.memory_gib,
        time_limit_minutes=resources.time_limit_minutes,
    )


def _colocated_resources(trainer: TrainerResources, inference: RoleResources) -> JobResources:
    """What a task needs whose processes take turns to compute, and stay in its memory together."""
    alone = _trainer_resources(trainer)
    return alone.model_copy(
        update={
            "cpus_per_rank": max(trainer.cpus, ceil(inference.cpus / alone.ranks)),
            "memory_gib_per_node": alone.memory_gib_per_node + inference.memory_gib,
        }
    )


def _trainer_resources(resources: TrainerResources) -> JobResources:
    per_node = resources.ranks_per_node or resources.ranks
    return _one_process(resources).model_copy(
        update={
            "nodes": resources.ranks // per_node,
            "ranks_per_node": per_node,
            "memory_gib_per_node": resources.memory_gib * per_node,
        }
    )
