"""Plans: segments, dependencies, evaluations, split arrays, limits, and hours against arithmetic by hand."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from basics import EVALUATION, JOBS, TRAINER
from commands import recipe, refusal, typed
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.evaluate.asked_models import models_asked
from mrt_hpc.evaluate.evaluation_alone import evaluation_recipe
from mrt_hpc.plan import hours as plan_hours
from mrt_hpc.plan.compile import build_plan, compile_plan, evaluation_plan
from mrt_hpc.plan.jobs import Plan, Role
from mrt_hpc.plan.whole_nodes import filled_nodes, set_fields
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.schema import EvaluatedModel, EvaluationRecipe, Recipe
from mrt_hpc.recipe.site import MeasuredThroughput, SiteSettings
from mrt_hpc.roles.report import sampled_rate, trained_rate
from mrt_hpc.run.events import Use
from mrt_hpc.run.layout import COLLECTION, collecting_version, is_collection
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
            assert after(plan, f"segment-{segment:03d}.{role}") == [*before, f"afterok:collection{version}.inference"]
    assert [job.name for job in built(*changes, name=STAR).jobs if is_collection(job.first_iteration)] == [*collecting]
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
    plan = built("evaluation.problem_shards=5", "evaluation.every=2", "resources.evaluation.max_parallel=3", array=4)
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


# -- expected hours of a plan, against arithmetic by hand


H100 = SlurmSite(name="cluster", gpu_type="nvidia_h100_80gb")
RATES = plan_hours.Throughput(
    sampled_per_s=1000.0, trained_per_s=2000.0, publish_s=5.0, checkpoint_s=40.0, source="a test"
)
LENGTHS = ("expected.trace_tokens=1000", "expected.branch_tokens=50")
TEN = ("expected.trace_tokens=2000", "schedule.iterations=10", "schedule.iterations_per_job=10")


def hours_of(one: Recipe) -> dict[str, plan_hours.ExpectedHours]:
    return plan_hours.expected_hours(compile_plan(one, LocalSite()), one, RATES)


def rates_of(one: Recipe | EvaluationRecipe, site: SiteSettings, **measured: float) -> plan_hours.Throughput:
    if measured:
        site = site.model_copy(update={"throughput": MeasuredThroughput(**measured)})
    found = plan_hours.throughput(one, site)
    assert found is not None
    return found


def benchmark(name: str, folder: Path, problems: int, samples: int) -> str:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(f'{{"id": "{name}{n}", "problem": "", "answer": ""}}\n' for n in range(problems)))
    return f"{{name: {name}, samples: {samples}, problems: {{type: jsonl, path: {file}}}}}"


def test_the_tokens_of_a_bonus_of_the_next_episode_by_hand() -> None:
    """Half of the rollouts go on, and the prover values the end of the first new episode of each."""
    whole = recipe("mrt", *LENGTHS, "prover.branches=4")
    episode = recipe("mrt", *LENGTHS, "prover.branches=4", "algorithm.bonus=next_episode")
    half = whole.sampling.rollouts_per_problem / 2
    assert [one.algorithm.cost(one, 0).branches for one in (whole, episode)] == [0, half * 4 * 50]
    assert episode.algorithm.cost(episode, 0).sampled == half * (500 + 50 + 4 * 50)
    assert episode.algorithm.cost(episode, COLLECTION).branches == 0


def test_tasks_that_run_in_turn_share_a_collection_and_not_an_iteration() -> None:
    in_turn = ("resources.inference.tasks=8", "resources.inference.max_parallel=2")
    collected = recipe("backtracking", "data.limit=10", *in_turn)
    whole = 10 * collected.algorithm.cost(collected, COLLECTION).sampled
    assert plan_hours.sampling_seconds(collected, COLLECTION, RATES) == pytest.approx(whole / 8000)
    together = recipe("grpo", "expected.trace_tokens=2000", *in_turn)
    assert plan_hours.sampling_seconds(together, 0, RATES) == pytest.approx(64 * 4 * 2000 / 2000)


def test_a_long_benchmark_is_seen_even_where_the_mean_of_all_tasks_is_short(tmp_path: Path) -> None:
    """Shards of 100 and of 1 problem: 1,000 s and 10 s with the start of 180 s, of which 10 minutes are allowed."""
    listed = f"{benchmark('long', tmp_path, 100, 10)}, {benchmark('short', tmp_path, 1, 10)}"
    one = recipe(
        "grpo", f"evaluation.benchmarks=[{listed}]", "evaluation.problem_shards=1", "evaluation.prover=null",
        LENGTHS[0], "resources.evaluation.time_limit_minutes=15",
    )  # fmt: skip
    hours = hours_of(one)[EVALUATION]
    assert (hours.longest, hours.hours) == (pytest.approx(1180 / 3600), pytest.approx((1180 + 190) / 2 / 3600))
    assert hours.attempts(compile_plan(one, LocalSite()).job(EVALUATION)) == 2


def evaluation(place: Path, *overrides: str, names: tuple[str, ...] = ("small-1.5B",)) -> EvaluationRecipe:
    """An evaluation of models of these names, which have no weights, on the paper's suite."""
    for name in names:
        (place / name).mkdir(parents=True)
        (place / name / "config.json").write_text("{}")
    return evaluation_recipe(models_asked([str(place / name) for name in names]), "paper_20", overrides, data=place)


def test_an_evaluation_on_its_own_is_counted_by_its_problems(tmp_path: Path) -> None:
    """872 problems of five benchmarks in shards of an eighth, 20 samples of 1,000 tokens each, for two models."""
    two = evaluation(tmp_path, LENGTHS[0], "resources.evaluation.gpus=2", names=("a", "b"))
    plan = evaluation_plan(two, LocalSite())
    fewer = refusal(evaluation_plan, two, SlurmSite(name="x", max_submit_jobs=50))
    assert fewer.advice == "--set evaluation.problem_shards=4", "40 tasks, and two more jobs"
    hours = plan_hours.expected_hours(plan, two, RATES)["evaluation"]
    assert plan.jobs[1].tasks == 2 * 5 * 8
    assert hours.hours == pytest.approx((180 + (30 + 30 + 40 + 272 + 500) / 5 / 8 * 20) / 3600)
    assert hours.gpu_hours == pytest.approx(80 * 2 * hours.hours)


def test_whole_nodes_are_counted_as_they_are_charged_and_filled_where_that_is_cheaper() -> None:
    one = recipe("mrt_online", *TEN, *LENGTHS, "schedule.max_staleness=0", "evaluation.benchmarks=[]")
    measured = MeasuredThroughput(sampled_tokens_per_second=1000.0, trained_tokens_per_second=2000.0)
    shared, site = (SlurmSite(name="lab", node_gpus=node_gpus, throughput=measured) for node_gpus in (None, 8))
    plan = compile_plan(one, site)
    asked, charged = (plan_hours.expected_hours(plan, one, rates_of(one, place)) for place in (shared, site))
    for job in plan.jobs:
        hours, resources = asked[job.name].hours, job.resources
        assert charged[job.name].gpu_hours == pytest.approx(hours * job.tasks * (8 if resources.gpus else 0))
        assert asked[job.name].gpu_hours == pytest.approx(hours * job.tasks * resources.gpus)
    limits = sum(job.tasks * 8 * job.resources.time_limit_minutes / 60 for job in plan.jobs if job.resources.gpus)
    assert plan_hours.plan_cost(plan, 8).gpu_hours == pytest.approx(limits)
    filled = filled_nodes(one, site, lambda other: compile_plan(require_kind(other, Recipe), site))
    assert filled is not None
    again = set_fields(one, filled.changes)
    assert (again.resources.inference.gpus, again.resources.trainer.ranks) == (8, 8)
    faster = replace(rates_of(again, site), sampled_per_s=8000.0)  # a task of eight GPUs in place of one
    expected = plan_hours.expected_hours(compile_plan(again, site), again, faster)
    assert filled.gpu_hours == pytest.approx(sum(hours.gpu_hours for hours in expected.values()))
    assert filled.gpu_hours < sum(hours.gpu_hours for hours in charged.values())
    for other, place in ((again, site), (one, shared)):  # its nodes are full; jobs share nodes
        assert filled_nodes(other, place, lambda _: plan) is None


def test_the_hours_of_the_papers_run_are_those_that_a_site_with_whole_nodes_charges(tmp_path: Path) -> None:
    """19.8 GPU-hours of inference and 29.2 of evaluation are of tasks with one GPU, and 17.9 of trainers with four: on
    nodes of eight they take 19.8 x 8 + 17.9 x 2 + 29.2 x 8 = 428.
    """
    profile = tmp_path / "lab.yaml"
    profile.write_text("type: slurm\nname: lab\ngpu_type: h100\nnode_gpus: 8\nsbatch: {exclusive: true}\n")
    printed = typed("plan", "mrt", "--site", profile).output
    assert "Expected: 428 GPU-hours as this site charges them" in printed and "ask for 67" in printed
    advised = printed.partition("Tasks that fill whole nodes")[2].partition("\n")[0].partition(": ")[2].split()
    assert "Expected: 79 GPU-hours" in typed("plan", "mrt", "--site", profile, *advised).output
    profile.write_text(profile.read_text().replace("node_gpus: 8\n", ""))
    assert "until node_gpus" in typed("plan", "mrt", "--site", profile).output, "what is not counted is said"


def test_an_evaluation_samples_on_its_own_gpus_with_its_largest_model(tmp_path: Path) -> None:
    """An inference task has four GPUs on each of two nodes, a task of an evaluation of a run one."""
    servers = ("resources.inference={gpus: 4, nodes: 2}", "serving.tensor_parallel=1")
    rates = rates_of(recipe("grpo", *servers), H100)
    assert (rates.sampled_per_s, rates.evaluated_per_s) == (8 * 5500, plan_hours.FULL_SLOTS * 5500)
    measured = rates_of(recipe("grpo", *servers), H100, sampled_tokens_per_second=8000.0)
    assert (measured.sampled_per_s, measured.evaluated_per_s) == (8000, plan_hours.FULL_SLOTS * 8000 / 8)
    assert measured.trained_per_s == rates.trained_per_s, "a measured rate replaces the stated one"
    gpus = "resources.evaluation.gpus=2"
    rates = rates_of(evaluation(tmp_path / "both", gpus, names=("small-1.5B", "large-7B", "nameless")), H100)
    assert (rates.sampled_per_s, rates.trained_per_s) == (pytest.approx(2 * 2400), 0)
    assert plan_hours.throughput(evaluation(tmp_path / "none", gpus, names=("nameless",)), H100) is None


def test_a_model_is_measured_by_its_name_or_its_files_or_those_of_another_version(tmp_path: Path) -> None:
    assert plan_hours.model_billions(recipe("grpo", f"model.path={tmp_path}/some-7B-model")) == 7.0
    weights = tmp_path / "run-7B" / "weights"
    (weights / "v000000").mkdir(parents=True)
    (weights / "v000000" / "model.safetensors").write_bytes(bytes(4000))
    for bits, billions in (("float32", 1e-6), ("bfloat16", 2e-6)):
        (weights / "v000000" / "config.json").write_text(json.dumps({"dtype": bits}))
        assert plan_hours.model_billions(recipe("grpo", f"model.path={weights}/v000000")) == pytest.approx(billions)
    later = EvaluatedModel(name="run@9", path=str(weights / "v000009"), run=str(weights.parent), version=9)
    one = evaluation(tmp_path / "models").model_copy(update={"models": (later,)})
    assert plan_hours.model_billions(one) == pytest.approx(2e-6)


def test_the_rates_that_a_run_measured_by_hand() -> None:
    """2,000 tokens in 4 s on 2 tasks; 3,000 positions in 5 s on 3 ranks; an iteration without times says nothing."""
    trainer = {"positions": 3000, "seconds_update": 5.0}
    untimed = IterationMetrics(iteration=1, tokens_per_rollout=1, generated_tokens=99)
    timed = untimed.model_copy(update={"generated_tokens": 2000, "sampling_seconds": 4.0, "trainer": trainer})
    assert sampled_rate([timed, untimed], tasks=2) == pytest.approx(250.0)
    assert trained_rate([timed, untimed], ranks=3) == pytest.approx(200.0)
    assert (sampled_rate([untimed], tasks=2), trained_rate([untimed], ranks=3)) == (None, None)


def test_a_checkpoint_longer_than_the_notice_is_doubted() -> None:
    """27 s for a billion parameters at 1 GB/s: 40.5 s for 1.5 billion, 20.25 s at 2 GB/s."""
    one = recipe("mrt_online", "training.checkpoint_every=4")
    for notice_s, gb_per_second, late in ((30, 1.0, True), (30, 2.0, False), (None, 0.01, False)):
        site = H100.model_copy(update={"preemption_notice_s": notice_s})
        words = plan_hours.late_checkpoint(one, site, rates_of(one, site, checkpoint_gb_per_second=gb_per_second)) or ""
        facts = ("40 s", "30 s", "4 update", "--set training.checkpoint_every=1")
        assert [fact in words for fact in facts] == [late] * len(facts)


def test_without_staleness_both_roles_wait_for_all_that_the_other_does() -> None:
    """64 groups of 4 x 2,000 tokens on 4 processes: 128 s of sampling; 256 x 2,200 tokens on 4 ranks: 70.4 s of update,
    and 15 s of saving.
    """
    one = recipe("grpo", *TEN, "evaluation.benchmarks=[]", "evaluation.prover=null", "schedule.max_staleness=0")
    rows = plan_hours.expected_uses(compile_plan(one, LocalSite()), hours_of(one))
    waits = {row.role: row.hours * 3600 for row in rows if row.use is Use.WAITING}
    assert (waits[Role.INFERENCE], waits[Role.TRAINER]) == pytest.approx((4 * 854, 1280))


def test_a_run_without_gpus_has_core_hours(tmp_path: Path) -> None:
    rates = {"sampled_tokens_per_second": 900, "trained_tokens_per_second": 900}
    (tmp_path / "site.yaml").write_text(json.dumps({"type": "local", "name": "here", "throughput": rates}))
    printed = typed("plan", "quickstart", "--site", tmp_path / "site.yaml").output
    assert "expected core-hours" in printed and "site profile here" in printed
