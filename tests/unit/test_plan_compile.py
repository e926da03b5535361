"""Plans: segments, dependencies, evaluations, split arrays, limits and costs."""

from itertools import pairwise

from basics import EVALUATION, JOBS, TRAINER
from commands import recipe, refusal
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.plan.compile import build_plan, compile_plan
from mrt_hpc.plan.jobs import Plan, Role
from mrt_hpc.run.layout import collecting_version, is_collection
from mrt_hpc.run.weights import kept_versions

MRT, STAR = "small_world/mrt", "small_world/star"
BASE = recipe("quickstart")


def built(*settings: str, name: str = "quickstart", array: int | None = None) -> Plan:
    return build_plan(recipe(name, *settings), max_array_size=array)


def schedule(iterations: int, each: int, *more: str) -> tuple[str, ...]:
    return (f"schedule.iterations={iterations}", f"schedule.iterations_per_job={each}", *more)


def names(plan: Plan, role: Role | None = None) -> list[str]:
    return [job.name for job in plan.jobs if role in (None, job.role)]


def after(plan: Plan, job: str) -> list[str]:
    return [f"{d.kind}:{d.job}" for d in plan.job(job).after]


def test_segments_follow_each_other_by_their_trainers() -> None:
    assert names(built(*schedule(5, 2)), Role.EVALUATION) == [EVALUATION, "segment-002.evaluation"]
    in_turn = built(*schedule(2, 1, "schedule.coupling=sequential"))
    assert after(in_turn, "segment-001.inference") == [f"afterok:{TRAINER}"]
    assert after(in_turn, "segment-001.trainer") == ["afterok:segment-001.inference"]


def test_traces_are_collected_before_the_first_segment_and_again_between_two() -> None:
    changes = schedule(10, 2, "algorithm.refresh_every=4")
    plan = built(*changes, name=MRT)
    collecting = {job.name: job for job in plan.jobs if is_collection(job.first_iteration)}
    assert [*collecting] == ["collection.inference", "collection-v000004.inference", "collection-v000008.inference"]
    assert [collecting_version(i) for job in collecting.values() for i in job.iterations] == [0, 4, 8]
    assert names(plan)[:4] == ["prepare", "collection.inference", "segment-000.inference", "segment-000.trainer"]
    assert after(plan, "collection.inference") == ["afterok:prepare"]
    assert after(plan, "collection-v000004.inference") == ["afterok:segment-001.trainer"]
    for segment, version in enumerate(("", "", "-v000004", "-v000004", "-v000008")):
        before = [f"afterok:segment-{segment - 1:03d}.trainer"] if segment else []
        for role in ("inference", "trainer"):  # after the collection also later, in case a part of it was damaged
            awaited = [*before, f"afterok:collection{version}.inference"]
            assert after(plan, f"segment-{segment:03d}.{role}") == awaited
    supervised = built(*changes, name=STAR)
    assert [job.name for job in supervised.jobs if is_collection(job.first_iteration)] == [*collecting]
    for name in (MRT, STAR, "small_world/mrt_star"):
        kept = kept_versions(recipe(name, *schedule(40, 2, "algorithm.refresh_every=4")), 40)
        assert {*range(0, 40, 4)} <= kept, "weights that collect are kept until the end"


def test_traces_are_refreshed_only_between_jobs() -> None:
    refused = refusal(recipe, MRT, *schedule(10, 4, "algorithm.refresh_every=6"))
    assert refused.what.startswith("algorithm.refresh_every")
    fits = recipe(MRT, *schedule(12, 1, "algorithm.refresh_every=6"))
    advice = str(refusal(compile_plan, fits, SlurmSite(name="x", max_submit_jobs=12)).advice)
    assert "--set schedule.iterations_per_job=6" in advice


def test_a_supervised_run_samples_nothing_while_it_trains() -> None:
    plan = built(name="small_world/sft_suffix")
    assert names(plan) == ["prepare", "segment-000.trainer", "segment-000.evaluation", "report"]
    plan = built("resources.inference.tasks=4", name=STAR, array=3)
    parts = ["collection.inference-0", "collection.inference-1"]
    assert names(plan, Role.INFERENCE) == parts
    assert after(plan, "segment-000.trainer") == [f"afterok:{part}" for part in parts]


def test_a_large_array_is_split_and_keeps_its_numbers() -> None:
    plan = built("resources.inference.tasks=7", array=3)
    tasks = {f"segment-000.inference-{n}": tasks for n, tasks in enumerate((3, 3, 1))}
    assert {job.name: job.tasks for job in plan.jobs if job.role is Role.INFERENCE} == tasks
    assert [after(plan, part) for part in tasks] == 3 * [["afterok:prepare"]], "together"
    assert len(built("resources.inference.tasks=32", array=1001).jobs) == len(JOBS)


def test_parts_of_a_split_array_run_in_turn_where_only_so_many_tasks_may_run_at_a_time() -> None:
    changes = ("evaluation.problem_shards=5", "evaluation.every=2", "resources.evaluation.max_parallel=3")
    plan = built(*changes, array=4)
    parts = [job for job in plan.jobs if job.role is Role.EVALUATION and job.segment == 0]
    assert len(parts) > 1
    assert {part.max_parallel for part in parts} == {3}
    units = [u for job in plan.jobs for u in job.evaluations]
    assert len(units) == len(set(units)) == 5 * len({u.version for u in units})
    assert all(len(job.evaluations) == job.tasks for job in plan.jobs if job.role is Role.EVALUATION)
    assert after(plan, parts[0].name) == ["afterok:segment-000.trainer"]
    for before, part in pairwise(parts):
        assert after(plan, part.name) == ["afterok:segment-000.trainer", f"afterany:{before.name}"]


@given(iterations=st.integers(1, 40), size=st.integers(1, 40), every=st.none() | st.integers(1, 40))
def test_every_iteration_and_version_is_planned_once(iterations: int, size: int, every: int | None) -> None:
    schedule = BASE.schedule.model_copy(update={"iterations": iterations, "iterations_per_job": size})
    evaluation = BASE.evaluation.model_copy(update={"every": every})
    changed = BASE.model_copy(update={"schedule": schedule, "evaluation": evaluation})
    plan = build_plan(changed, max_array_size=None)
    trainers = [job for job in plan.jobs if job.role is Role.TRAINER]
    assert [i for job in trainers for i in range(job.first_iteration, job.end_iteration)] == [*range(iterations)]
    assert sorted(u.version for job in plan.jobs for u in job.evaluations) == changed.evaluated_versions
    for number, job in enumerate(plan.jobs):
        assert {d.job for d in job.after} <= set(names(plan)[:number])


def test_fewer_shards_are_proposed_where_no_schedule_fits() -> None:
    site = SlurmSite(name="x", max_submit_jobs=50)
    assert refusal(compile_plan, recipe("mrt"), site).advice == "--set evaluation.problem_shards=2"
    assert compile_plan(recipe("mrt", "evaluation.problem_shards=2"), site).tasks <= 50
    assert built("evaluation.problem_shards=3", name="mrt").tasks > 50
    few = refusal(compile_plan, recipe("mrt"), SlurmSite(name="x", max_submit_jobs=5))
    assert few.advice == "evaluate less often, or on fewer benchmarks"


def test_what_is_beyond_the_limits_of_a_site_is_refused_with_what_fits() -> None:
    site = SlurmSite(name="x", max_submit_jobs=20)
    advice = str(refusal(compile_plan, recipe("quickstart", *schedule(12, 1)), site).advice).rpartition("--set ")[2]
    each = int(advice.removeprefix("schedule.iterations_per_job="))
    assert compile_plan(recipe("quickstart", *schedule(12, each)), site).tasks <= 20
    assert built(*schedule(12, each - 1)).tasks > 20
    site = SlurmSite(name="x", max_time_minutes=10)
    mended = str(refusal(compile_plan, BASE, site).advice).partition(",")[0].replace("--set", "").split()
    assert compile_plan(recipe("quickstart", *mended), site)
