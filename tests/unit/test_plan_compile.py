"""Plans: segments, dependencies, evaluations, split arrays, limits and costs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import build_plan, compile_plan
from mrt_hpc.plan.hours import plan_cost
from mrt_hpc.plan.jobs import DependencyKind, Job, Plan, Role
from mrt_hpc.plan.kept_weights import kept_versions
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.layout import collecting_version, is_collection

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def recipe(*overrides: str, name: str = "quickstart") -> Recipe:
    return load_recipe(RECIPES / f"{name}.yaml", overrides)


def names(plan: Plan, role: Role) -> list[str]:
    return [job.name for job in plan.jobs if job.role is role]


def after(job: Job) -> list[str]:
    return [f"{d.kind}:{d.job}" for d in job.after]


def test_a_run_of_one_segment() -> None:
    plan = build_plan(recipe("schedule.iterations=5", "schedule.iterations_per_job=5"), max_array_size=None)
    assert [job.name for job in plan.jobs] == [
        "prepare", "segment-000.inference", "segment-000.trainer", "segment-000.evaluation", "report",
    ]  # fmt: skip
    assert after(plan.job("segment-000.trainer")) == ["afterok:prepare"]
    assert after(plan.job("segment-000.evaluation")) == ["afterok:segment-000.trainer"]
    assert after(plan.job("report")) == ["afterany:segment-000.trainer", "afterany:segment-000.evaluation"]
    assert [u.version for u in plan.job("segment-000.evaluation").evaluations] == [0, 5]


def test_segments_follow_each_other_by_their_trainers() -> None:
    plan = build_plan(recipe("schedule.iterations=5", "schedule.iterations_per_job=2"), max_array_size=None)
    assert plan.segments == 3
    last = plan.job("segment-002.inference")
    assert (last.first_iteration, last.end_iteration) == (4, 5)
    assert after(last) == ["afterok:segment-001.trainer"]
    assert names(plan, Role.EVALUATION) == ["segment-000.evaluation", "segment-002.evaluation"]


def test_sequential_trainers_wait_for_their_inference() -> None:
    changes = ("schedule.iterations=2", "schedule.iterations_per_job=1", "schedule.coupling=sequential")
    plan = build_plan(recipe(*changes), max_array_size=None)
    assert after(plan.job("segment-001.inference")) == ["afterok:segment-000.trainer"]
    assert after(plan.job("segment-001.trainer")) == ["afterok:segment-001.inference"]


def test_what_a_run_starts_from_is_collected_before_its_first_segment() -> None:
    plan = build_plan(recipe("schedule.iterations_per_job=10", name="small_world/mrt"), max_array_size=None)
    assert [job.name for job in plan.jobs][:4] == [
        "prepare", "collection.inference", "segment-000.inference", "segment-000.trainer",
    ]  # fmt: skip
    assert after(plan.job("collection.inference")) == ["afterok:prepare"]
    assert after(plan.job("segment-000.inference")) == ["afterok:collection.inference"]
    assert after(plan.job("segment-000.trainer")) == ["afterok:collection.inference"]
    again = ["afterok:segment-000.trainer", "afterok:collection.inference"]
    assert after(plan.job("segment-001.inference")) == again, "in case a part of it was damaged"


def test_traces_are_collected_again_between_two_segments() -> None:
    changes = ("schedule.iterations=10", "schedule.iterations_per_job=2", "algorithm.refresh_every=4")
    plan = build_plan(recipe(*changes, name="small_world/mrt"), max_array_size=None)
    collecting = {job.name: job for job in plan.jobs if is_collection(job.first_iteration)}
    assert [*collecting] == ["collection.inference", "collection-v000004.inference", "collection-v000008.inference"]
    assert [collecting_version(i) for job in collecting.values() for i in job.iterations] == [0, 4, 8]
    assert after(collecting["collection-v000004.inference"]) == ["afterok:segment-001.trainer"]
    for segment, version in ((2, 4), (3, 4), (4, 8)):
        awaited = [f"afterok:segment-{segment - 1:03d}.trainer", f"afterok:collection-v{version:06d}.inference"]
        assert after(plan.job(f"segment-{segment:03d}.inference")) == awaited
        assert after(plan.job(f"segment-{segment:03d}.trainer")) == awaited
    supervised = build_plan(recipe(*changes, name="small_world/star"), max_array_size=None)
    assert [job.name for job in supervised.jobs if is_collection(job.first_iteration)] == [*collecting]


def test_traces_that_are_refreshed_in_the_middle_of_a_job_are_refused() -> None:
    changes = ("schedule.iterations=10", "schedule.iterations_per_job=4", "algorithm.refresh_every=6")
    with pytest.raises(UserError, match=r"multiple of schedule.iterations_per_job \(4\)") as refused:
        recipe(*changes, name="small_world/mrt")
    assert "algorithm.refresh_every" in str(refused.value)


def test_iterations_a_job_that_fit_the_site_fit_the_refreshing_as_well() -> None:
    changes = ("schedule.iterations=12", "schedule.iterations_per_job=1", "algorithm.refresh_every=6")
    with pytest.raises(UserError, match=r"--set schedule\.iterations_per_job=6"):
        compile_plan(recipe(*changes, name="small_world/mrt"), SlurmSite(name="x", max_submit_jobs=12))


@pytest.mark.parametrize("name", ["mrt", "star", "mrt_star"])
def test_weights_that_collect_are_kept_until_the_end(name: str) -> None:
    changes = ("schedule.iterations=40", "schedule.iterations_per_job=2", "algorithm.refresh_every=4")
    assert {*range(0, 40, 4)} <= kept_versions(recipe(*changes, name=f"small_world/{name}"), 40)


def test_a_supervised_run_samples_nothing_while_it_trains() -> None:
    plan = build_plan(recipe(name="small_world/sft_suffix"), max_array_size=None)
    assert [job.name for job in plan.jobs] == ["prepare", "segment-000.trainer", "segment-000.evaluation", "report"]
    plan = build_plan(recipe("resources.inference.tasks=4", name="small_world/star"), max_array_size=3)
    assert names(plan, Role.INFERENCE) == ["collection.inference-0", "collection.inference-1"]
    assert after(plan.job("segment-000.trainer")) == [
        "afterok:collection.inference-0",
        "afterok:collection.inference-1",
    ]


def test_a_large_array_is_split_and_keeps_its_numbers() -> None:
    plan = build_plan(recipe("resources.inference.tasks=7"), max_array_size=3)
    parts = [job for job in plan.jobs if job.role is Role.INFERENCE]
    assert [(p.name, p.tasks) for p in parts] == [
        ("segment-000.inference-0", 3), ("segment-000.inference-1", 3), ("segment-000.inference-2", 1),
    ]  # fmt: skip


def test_parts_of_a_split_array_run_in_turn_where_only_so_many_tasks_may_run_at_a_time() -> None:
    changes = ("evaluation.problem_shards=5", "evaluation.every=2", "resources.evaluation.max_parallel=3")
    plan = build_plan(recipe(*changes), max_array_size=4)
    first, *others = [job for job in plan.jobs if job.role is Role.EVALUATION and job.segment == 0]
    assert others
    assert after(first) == ["afterok:segment-000.trainer"]
    for before, part in pairwise([first, *others]):
        assert after(part) == ["afterok:segment-000.trainer", f"afterany:{before.name}"]
    assert {part.max_parallel for part in others} == {3}


def test_parts_of_a_split_array_without_such_a_limit_run_together() -> None:
    plan = build_plan(recipe("resources.inference.tasks=7"), max_array_size=3)
    assert {tuple(after(job)) for job in plan.jobs if job.role is Role.INFERENCE} == {("afterok:prepare",)}


def test_evaluations_of_a_split_array_are_dealt_out_once() -> None:
    plan = build_plan(recipe("evaluation.problem_shards=5"), max_array_size=4)
    units = [u for job in plan.jobs for u in job.evaluations]
    assert len(units) == len(set(units)) == 10
    assert all(len(job.evaluations) == job.tasks for job in plan.jobs if job.role is Role.EVALUATION)


@given(iterations=st.integers(1, 40), size=st.integers(1, 40), every=st.none() | st.integers(1, 40))
def test_every_iteration_and_version_is_planned_once(iterations: int, size: int, every: int | None) -> None:
    base = recipe()
    schedule = base.schedule.model_copy(update={"iterations": iterations, "iterations_per_job": size})
    evaluation = base.evaluation.model_copy(update={"every": every})
    changed = base.model_copy(update={"schedule": schedule, "evaluation": evaluation})
    plan = build_plan(changed, max_array_size=None)
    trained = [
        i for job in plan.jobs if job.role is Role.TRAINER for i in range(job.first_iteration, job.end_iteration)
    ]
    assert trained == list(range(iterations))
    assert sorted(u.version for job in plan.jobs for u in job.evaluations) == changed.evaluated_versions
    earlier: set[str] = set()
    for job in plan.jobs:
        assert {d.job for d in job.after} <= earlier
        earlier.add(job.name)


def test_sbatch_calls_do_not_depend_on_the_array_size() -> None:
    few = build_plan(recipe("resources.inference.tasks=2"), max_array_size=1001)
    many = build_plan(recipe("resources.inference.tasks=32"), max_array_size=1001)
    assert len(few.jobs) == len(many.jobs)


def test_the_reference_recipe_takes_at_most_five_calls_a_segment() -> None:
    plan = compile_plan(recipe(name="mrt_online"), SlurmSite(name="x"))
    assert plan.iterations == 248
    for segment in range(plan.segments):
        assert sum(job.segment == segment for job in plan.jobs) <= 5


def test_a_plan_beyond_the_submit_limit_names_iterations_per_job_that_fit() -> None:
    site = SlurmSite(name="x", max_submit_jobs=20)
    changes = ("schedule.iterations=12", "schedule.iterations_per_job=1")
    with pytest.raises(UserError, match=r"schedule\.iterations_per_job=(\d+)") as caught:
        compile_plan(recipe(*changes), site)
    advice = str(caught.value).rpartition("--set ")[2]
    plan = compile_plan(recipe(changes[0], advice), site)
    assert plan.tasks <= 20
    one_less = int(advice.partition("=")[2]) - 1
    assert build_plan(recipe(changes[0], f"schedule.iterations_per_job={one_less}"), max_array_size=None).tasks > 20


def test_a_time_limit_beyond_the_site_is_refused() -> None:
    site = SlurmSite(name="x", max_time_minutes=10)
    with pytest.raises(UserError, match=r"resources\.trainer\.time_limit_minutes") as refused:
        compile_plan(recipe(), site)
    advice = str(refused.value).rpartition("next:")[2].partition(",")[0]
    assert compile_plan(recipe(*advice.replace("--set", "").split()), site), "all that are too long are told at once"


def test_the_cost_counts_every_task_and_rank() -> None:
    changes = ("resources.inference={tasks: 3, gpus: 2, cpus: 4, time_limit_minutes: 30}",
               "resources.trainer={ranks: 4, ranks_per_node: 2, gpus: 1, cpus: 8, time_limit_minutes: 120}",
               "resources.evaluation={cpus: 1, time_limit_minutes: 60}",
               "resources.prepare={cpus: 1, time_limit_minutes: 60}",
               "resources.report={cpus: 1, time_limit_minutes: 60}")  # fmt: skip
    plan = build_plan(recipe(*changes), max_array_size=None)
    trainer = plan.job("segment-000.trainer").resources
    assert (trainer.nodes, trainer.ranks, trainer.memory_gib_per_node) == (2, 4, 16.0)
    cost = plan_cost(plan)
    assert cost.gpu_hours == pytest.approx(3 * 2 * 0.5 + 4 * 2)
    assert cost.core_hours == pytest.approx(3 * 4 * 0.5 + 4 * 8 * 2 + 2 * 1 + 1 + 1)


def test_plans_are_the_same_for_the_same_input_and_survive_json() -> None:
    plan = compile_plan(recipe(), LocalSite())
    assert plan == compile_plan(recipe(), LocalSite())
    assert Plan.model_validate(plan.as_json()) == plan
    assert plan.job("report").after[0].kind is DependencyKind.AFTERANY
