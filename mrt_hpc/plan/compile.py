"""Compiles a recipe and a site into a plan: pure, and the same for the same input.

Segment s is an inference array and a trainer, or one colocated job; it starts when trainer s-1 has ended well. The
first starts after ``prepare`` and, where the algorithm starts from stored traces, after the array that collects them;
where later weights sample these again, such an array stands between two segments. Supervised segments are trainers.
Evaluations of a segment's versions wait for its trainer; the report waits for everything.
"""

from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Any

from mrt_hpc.plan.jobs import Dependency, DependencyKind, EvaluationUnit, Job, JobResources, Plan, Role
from mrt_hpc.plan.site_limits import SHARDS, check_limits, check_segments, fitting_iterations_per_job, fitting_shards
from mrt_hpc.recipe.schema import EvaluationRecipe, Experiment, Recipe
from mrt_hpc.recipe.sections import Coupling, RoleResources, TrainerResources, nodes_of
from mrt_hpc.recipe.site import SiteSettings
from mrt_hpc.run.layout import COLLECTION, collection_of, is_collection

PREPARE = "prepare"
COLLECTION_JOB = "collection.inference"
REPORT = "report"


def compile_plan(recipe: Recipe, site: SiteSettings) -> Plan:
    """A run's plan on a site."""
    check_segments(recipe)
    rebuild = partial(build_plan, max_array_size=site.limits.array_size)
    plan, field = rebuild(recipe), "schedule.iterations_per_job"

    def advice(most: int) -> str:
        """The iterations a job, or shards, with which the plan fits."""
        if fitting := fitting_iterations_per_job(recipe, most, rebuild):
            return f"--set {field}={fitting}"
        shards = fitting_shards(recipe, most, rebuild)
        return f"--set {SHARDS}={shards}" if shards else "evaluate less often, or on fewer benchmarks"

    check_limits(plan, site, field, recipe.schedule.iterations_per_job, advice)
    return plan


def build_plan(recipe: Recipe, *, max_array_size: int | None) -> Plan:
    """The plan without the site's limit on tasks."""
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
    # The last trainer ends after all others.
    trainers = [job for job in jobs if job.does(Role.TRAINER) and job.segment == segments - 1]
    jobs.append(_report(recipe, [job for job in jobs if job.role is Role.EVALUATION or job in trainers]))
    return Plan(
        name=recipe.name,
        kind=recipe.algorithm.type,
        groups=recipe.sampling.problems_per_iteration,
        iterations=schedule.iterations,
        segments=segments,
        jobs=tuple(jobs),
    )


def evaluation_plan(recipe: EvaluationRecipe, site: SiteSettings) -> Plan:
    """A separate evaluation's plan: one array over models, benchmarks and shards. The first job publishes model *i* as
    version *i*.
    """
    rebuild = partial(_evaluation_plan, max_array_size=site.limits.array_size)
    plan = rebuild(recipe)

    def advice(most: int) -> str:
        """The number of shards with which the plan fits."""
        shards = fitting_shards(recipe, most, rebuild)
        return f"--set {SHARDS}={shards}" if shards else "fewer models, or fewer benchmarks"

    check_limits(plan, site, SHARDS, recipe.evaluation.problem_shards, advice)
    return plan


def _evaluation_plan(recipe: EvaluationRecipe, *, max_array_size: int | None) -> Plan:
    """The plan without the site's limit on tasks."""
    units = [unit for version in range(len(recipe.models)) for unit in _units(recipe, version)]
    prepare = Job(name=PREPARE, role=Role.PREPARE, tasks=1, resources=_one_process(recipe.resources.prepare))
    evaluation = split_array(_evaluation(recipe, Role.EVALUATION.value, units, prepare), max_array_size)
    jobs = (prepare, *evaluation, _report(recipe, evaluation))
    kind = f"suite {suite}" if (suite := recipe.evaluation.suite) else "unknown"
    return Plan(name=recipe.name, kind=kind, iterations=0, segments=0, jobs=jobs)


def segment_iterations(recipe: Recipe, segment: int) -> tuple[int, int]:
    """First iteration and one past the last."""
    size = recipe.schedule.iterations_per_job
    return segment * size, min((segment + 1) * size, recipe.schedule.iterations)


def _collection(recipe: Recipe, version: int, after: tuple[Dependency, ...]) -> Job:
    """The job that samples the traces that a run starts or continues from, with that iteration's version."""
    number = collection_of(version)
    name = COLLECTION_JOB if number == COLLECTION else f"collection-v{version:06d}.{Role.INFERENCE.value}"
    return _inference(recipe, name, after, first_iteration=number, end_iteration=number + 1)


def _inference(recipe: Recipe, name: str, after: tuple[Dependency, ...], **segment: int) -> Job:
    """An array that samples; ``segment`` are the fields of a job that say when."""
    resources = recipe.resources.inference
    array = Job(name=name, role=Role.INFERENCE, tasks=resources.tasks, resources=role_resources(recipe, Role.INFERENCE))
    return array.model_copy(update={"after": after, "max_parallel": resources.max_parallel, **segment})


def _evaluation(recipe: Experiment, name: str, units: list[EvaluationUnit], behind: Job, **segment: int) -> Job:
    """An array that evaluates what the job before it publishes; ``segment`` as in :func:`_inference`."""
    resources = recipe.resources.evaluation
    array = Job(name=name, role=Role.EVALUATION, tasks=len(units), resources=_one_process(resources))
    update = {"evaluations": tuple(units), "after": _after([behind]), "max_parallel": resources.max_parallel}
    return array.model_copy(update={**update, **segment})


def _segment(
    recipe: Recipe, segment: int, before: Sequence[Job], units: list[EvaluationUnit], max_array_size: int | None
) -> list[Job]:
    """One segment's jobs.

    ``before`` are jobs before the first segment, or its collection, and the last segment's.
    """
    first, end = segment_iterations(recipe, segment)
    span: dict[str, Any] = {"segment": segment, "first_iteration": first, "end_iteration": end}
    start, inference = _starts_after(before), list[Job]()
    if recipe.algorithm.samples_rollouts and not recipe.is_colocated:
        array = _inference(recipe, _name(segment, Role.INFERENCE), start, **span)
        inference = split_array(array, max_array_size)
    role = Role.COLOCATED if recipe.is_colocated else Role.TRAINER
    after = _after(inference) if inference and recipe.schedule.coupling is Coupling.SEQUENTIAL else start
    resources = role_resources(recipe, role)
    trainer = Job(name=_name(segment, role), role=role, tasks=1, resources=resources, after=after, **span)
    if not units:
        return [*inference, trainer]
    evaluation = _evaluation(recipe, _name(segment, Role.EVALUATION), units, trainer, **span)
    return [*inference, trainer, *split_array(evaluation, max_array_size)]


def _starts_after(before: Sequence[Job]) -> tuple[Dependency, ...]:
    """A segment starts when the last trainer ended well and its starting traces are there, also if damaged and made
    again.
    """
    collections = [job for job in before if any(map(is_collection, job.iterations[:1]))]
    trainers = [job for job in before if job.does(Role.TRAINER)]
    return _after([*trainers[-1:], *collections] or before)


def _evaluations(recipe: Recipe, segment: int, wanted: frozenset[int]) -> list[EvaluationUnit]:
    """Wanted versions in (first, end] belong to the segment that publishes them, version 0 to the first."""
    first, end = segment_iterations(recipe, segment)
    versions = [v for v in range(0 if segment == 0 else first + 1, end + 1) if v in wanted]
    return [unit for version in versions for unit in _units(recipe, version)]


def _units(recipe: Experiment, version: int) -> list[EvaluationUnit]:
    """Tasks that evaluate one version."""
    names, shards = [b.name for b in recipe.evaluation.benchmarks], range(recipe.evaluation.problem_shards)
    return [EvaluationUnit(version=version, benchmark=name, shard=shard) for name in names for shard in shards]


def _report(recipe: Experiment, last: Sequence[Job]) -> Job:
    """Waits for these jobs, however they end."""
    after, resources = _after(last, DependencyKind.AFTERANY), _one_process(recipe.resources.report)
    return Job(name=REPORT, role=Role.REPORT, tasks=1, resources=resources, after=after)


def split_array(job: Job, max_array_size: int | None) -> list[Job]:
    """Cut an array above MaxArraySize into jobs.

    Slurm's MaxArraySize is one more than the largest index: an array of that many tasks (0 to size - 1) fits. With a
    limit of concurrent tasks the parts run in turn, as Slurm counts within an array only.
    """
    if max_array_size is None or job.tasks <= max_array_size:
        return [job]
    parts: list[Job] = []
    for start in range(0, job.tasks, max_array_size):
        turn = parts[-1:] if job.max_parallel is not None else []
        update = {
            "name": f"{job.name}-{len(parts)}",
            "tasks": min(max_array_size, job.tasks - start),
            "evaluations": job.evaluations[start : start + max_array_size],
            "after": (*job.after, *_after(turn, DependencyKind.AFTERANY)),
        }
        parts.append(job.model_copy(update=update))
    return parts


def _after(jobs: Sequence[Job], kind: DependencyKind = DependencyKind.AFTEROK) -> tuple[Dependency, ...]:
    return tuple(Dependency(job=job.name, kind=kind) for job in jobs)


def _name(segment: int, role: Role) -> str:
    return f"segment-{segment:03d}.{role.value}"


def role_resources(recipe: Experiment, role: Role) -> JobResources:
    if role not in (Role.TRAINER, Role.COLOCATED):
        resources = getattr(recipe.resources, role.value)
        return _one_process(resources, nodes_of(resources))
    alone, inference = _trainer_resources(recipe.resources.trainer), recipe.resources.inference
    if role is Role.TRAINER:
        return alone
    # The processes of one task take turns on its GPUs, and stay in memory together.
    cpus, gib = ceil(inference.cpus / alone.ranks), alone.memory_gib_per_node + inference.memory_gib
    return alone.model_copy(update={"cpus_per_rank": max(alone.cpus_per_rank, cpus), "memory_gib_per_node": gib})


def _one_process(resources: RoleResources, nodes: int = 1) -> JobResources:
    """One process a node."""
    return JobResources(
        nodes=nodes,
        ranks_per_node=1,
        gpus_per_rank=resources.gpus,
        cpus_per_rank=resources.cpus,
        memory_gib_per_node=resources.memory_gib,
        time_limit_minutes=resources.time_limit_minutes,
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
