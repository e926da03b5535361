"""Expected hours of a plan, against arithmetic by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from commands import recipe, typed

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.evaluate.asked_models import models_asked
from mrt_hpc.evaluate.evaluation_alone import evaluation_recipe
from mrt_hpc.plan.compile import compile_plan, evaluation_plan
from mrt_hpc.plan.hours import (
    FULL_SLOTS,
    START_S,
    STATED,
    Throughput,
    expected_hours,
    expected_uses,
    late_checkpoint,
    model_billions,
    power_law,
    sampling_seconds,
    throughput,
)
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.schema import EvaluatedModel
from mrt_hpc.recipe.site import MeasuredThroughput
from mrt_hpc.roles.report import sampled_rate, trained_rate
from mrt_hpc.run.events import Use
from mrt_hpc.run.layout import COLLECTION

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.plan.hours import ExpectedHours, UseHours
    from mrt_hpc.recipe.schema import EvaluationRecipe, Recipe
    from mrt_hpc.recipe.site import SiteSettings

H100 = SlurmSite(name="cluster", gpu_type="nvidia_h100_80gb")
RATES = Throughput(sampled_per_s=1000.0, trained_per_s=2000.0, publish_s=5.0, checkpoint_s=40.0, source="a test")
LENGTHS = ("expected.trace_tokens=1000", "expected.branch_tokens=50")
TEN = ("expected.trace_tokens=2000", "schedule.iterations=10", "schedule.iterations_per_job=10")


def hours_of(one: Recipe) -> dict[str, ExpectedHours]:
    return expected_hours(compile_plan(one, LocalSite()), one, RATES)


def uses(one: Recipe) -> dict[tuple[Role, Use], UseHours]:
    plan = compile_plan(one, LocalSite())
    return {(row.role, row.use): row for row in expected_uses(plan, expected_hours(plan, one, RATES))}


def rates_of(one: Recipe | EvaluationRecipe, site: SiteSettings, **measured: float) -> Throughput:
    """The rates at a site, with those that it has measured."""
    if measured:
        site = site.model_copy(update={"throughput": MeasuredThroughput(**measured)})
    found = throughput(one, site)
    assert found is not None
    return found


def benchmark(name: str, folder: Path, problems: int, samples: int) -> str:
    """A benchmark of so many problems, as YAML."""
    file = folder / f"{name}.jsonl"
    file.write_text("".join(f'{{"id": "{name}{n}", "problem": "", "answer": ""}}\n' for n in range(problems)))
    return f"{{name: {name}, samples: {samples}, problems: {{type: jsonl, path: {file}}}}}"


# -- tokens and hours


def test_the_tokens_of_algorithms_by_hand() -> None:
    """mrt_online: four traces of 1,000 tokens, each with 7 boundaries of 4 branches of 50. Without statements a trace
    is half of the limit that holds. With a bonus of the next episode half of the rollouts go on, and the prover values
    the end of the first new episode of each; forced rollouts are no branches.
    """
    online, curriculum = recipe("mrt_online", *LENGTHS), recipe("length_curriculum")
    assert online.algorithm.sampled_tokens(online, 0) == 4 * (1000 + 7 * 4 * 50)
    assert online.algorithm.trained_tokens(online, 0) == 64 * 4 * (200 + 1000)
    assert [curriculum.algorithm.sampled_tokens(curriculum, i) for i in (0, 200)] == [4 * 4096, 4 * 12288]
    whole = recipe("mrt", *LENGTHS, "prover.branches=4")
    episode = recipe("mrt", *LENGTHS, "prover.branches=4", "algorithm.bonus=next_episode")
    half = whole.sampling.rollouts_per_problem / 2
    assert [one.algorithm.sampled_branch_tokens(one, 0) for one in (whole, episode)] == [0, half * 4 * 50]
    assert episode.algorithm.sampled_tokens(episode, 0) == half * (500 + 50 + 4 * 50)
    assert episode.algorithm.sampled_branch_tokens(episode, COLLECTION) == 0


def test_a_collection_samples_its_continuations() -> None:
    """One attempt of 1,000 tokens, 11 boundaries of 20 continuations of 500; ten problems on four processes."""
    changes = ("data.limit=10", "episodes.max_episodes=10", "resources.inference.tasks=4")
    stated = recipe("backtracking", LENGTHS[0], "expected.branch_tokens=500", *changes)
    assert stated.algorithm.sampled_tokens(stated, COLLECTION) == 1000 + 11 * 20 * 500
    assert sampling_seconds(stated, COLLECTION, RATES) == pytest.approx(10 * 111_000 / 4000)


def test_tasks_that_run_in_turn_share_a_collection_and_not_an_iteration() -> None:
    in_turn = ("resources.inference.tasks=8", "resources.inference.max_parallel=2")
    collected = recipe("backtracking", "data.limit=10", *in_turn)
    whole = 10 * collected.algorithm.sampled_tokens(collected, COLLECTION)
    assert sampling_seconds(collected, COLLECTION, RATES) == pytest.approx(whole / 8000)
    together = recipe("grpo", "expected.trace_tokens=2000", *in_turn)
    assert sampling_seconds(together, 0, RATES) == pytest.approx(64 * 4 * 2000 / 2000)


@pytest.mark.parametrize(("staleness", "seconds"), [(1, 128.0), (0, 213.4)])
def test_an_iteration_by_hand_with_and_without_staleness(staleness: int, seconds: float) -> None:
    """64 groups of 4 x 2,000 tokens on 4 processes: 128 s; 256 x 2,200 tokens on 4 ranks: 70.4 s, 5 s and 40 s / 4."""
    one = recipe("grpo", *TEN, f"schedule.max_staleness={staleness}")
    assert sampling_seconds(one, 0, RATES) == pytest.approx(128.0)
    for name in ("segment-000.inference", "segment-000.trainer"):
        found = hours_of(one)[name]
        assert found.hours == pytest.approx((180 + 10 * seconds) / 3600)
        assert found.gpu_hours == pytest.approx(4 * found.hours)


def test_an_evaluation_is_counted_by_its_problems(tmp_path: Path) -> None:
    where = f"evaluation.benchmarks=[{benchmark('b', tmp_path, 30, 8)}]"
    one = recipe("grpo", where, "evaluation.problem_shards=2", LENGTHS[0], "evaluation.prover=null")
    assert hours_of(one)["segment-000.evaluation"].hours == pytest.approx((180 + 15 * 8 * 1000 / 1000) / 3600)
    (tmp_path / "b.jsonl").unlink()
    assert "segment-000.evaluation" not in hours_of(one)
    assert Role.EVALUATION not in {role for role, _ in uses(one)}
    assert expected_uses(compile_plan(one, LocalSite()), {}) == []


def test_a_long_benchmark_is_seen_even_where_the_mean_of_all_tasks_is_short(tmp_path: Path) -> None:
    """Shards of 100 and of 1 problem: 1,000 s and 10 s with the start of 180 s, of which 10 minutes are allowed."""
    listed = f"{benchmark('long', tmp_path, 100, 10)}, {benchmark('short', tmp_path, 1, 10)}"
    one = recipe(
        "grpo", f"evaluation.benchmarks=[{listed}]", "evaluation.problem_shards=1", "evaluation.prover=null",
        LENGTHS[0], "resources.evaluation.time_limit_minutes=15",
    )  # fmt: skip
    hours = hours_of(one)["segment-000.evaluation"]
    assert (hours.longest, hours.hours) == (pytest.approx(1180 / 3600), pytest.approx((1180 + 190) / 2 / 3600))
    assert hours.attempts(compile_plan(one, LocalSite()).job("segment-000.evaluation")) == 2


def evaluation(place: Path, *overrides: str, names: tuple[str, ...] = ("small-1.5B",)) -> EvaluationRecipe:
    """An evaluation of models of these names, which have no weights, on the paper's suite."""
    for name in names:
        (place / name).mkdir(parents=True)
        (place / name / "config.json").write_text("{}")
    asked = models_asked([str(place / name) for name in names])
    return evaluation_recipe(asked, "paper_20", overrides, data=place)


def test_an_evaluation_on_its_own_is_counted_by_its_problems(tmp_path: Path) -> None:
    """872 problems of five benchmarks in shards of an eighth, 20 samples of 1,000 tokens each, for two models."""
    two = evaluation(tmp_path, LENGTHS[0], "resources.evaluation.gpus=2", names=("a", "b"))
    plan = evaluation_plan(two, LocalSite())
    hours = expected_hours(plan, two, RATES)["evaluation"]
    assert plan.jobs[1].tasks == 2 * 5 * 8
    assert hours.hours == pytest.approx((180 + (30 + 30 + 40 + 272 + 500) / 5 / 8 * 20) / 3600)
    assert hours.gpu_hours == pytest.approx(80 * 2 * hours.hours)


# -- rates


def test_stated_rates_follow_gpu_and_size_and_measured_ones_replace_them() -> None:
    online, small = recipe("mrt_online"), recipe("quickstart")
    rates = rates_of(online, H100)
    assert (rates.sampled_per_s, rates.trained_per_s) == (5500, 12500)
    assert "h100 for 1.5 billion" in rates.source
    assert power_law(STATED["a100"].sampled, 7.0) == pytest.approx(1500)
    assert throughput(small, H100) is None, "nothing is stated for a CPU"
    partly = rates_of(online, H100, sampled_tokens_per_second=4000.0)
    assert (partly.sampled_per_s, partly.trained_per_s) == (4000, 12500)
    assert all(source in partly.source for source in ("throughput.sampled_tokens_per_second", "cluster", "h100"))
    rates = rates_of(small, LocalSite(), sampled_tokens_per_second=4000.0, trained_tokens_per_second=300.0)
    assert (rates.sampled_per_s, rates.trained_per_s, rates.publish_s) == (4000, 300, 0)


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_evaluation_samples_on_its_own_gpus(nodes: int) -> None:
    """An inference task has four GPUs on each node, a task of an evaluation one."""
    servers = ("resources.inference.gpus=4", "serving.tensor_parallel=1", f"resources.inference.nodes={nodes}")
    rates = rates_of(recipe("grpo", *servers), H100)
    assert (rates.sampled_per_s, rates.evaluated_per_s) == (nodes * 4 * 5500, FULL_SLOTS * 5500)
    rates = rates_of(recipe("grpo", *servers), H100, sampled_tokens_per_second=8000.0)
    assert rates.evaluated_per_s == FULL_SLOTS * 8000 / (nodes * 4)


def test_the_rates_of_an_evaluation_are_those_of_its_largest_model(tmp_path: Path) -> None:
    gpus = "resources.evaluation.gpus=2"
    rates = rates_of(evaluation(tmp_path / "both", gpus, names=("small-1.5B", "large-7B", "nameless")), H100)
    assert (rates.sampled_per_s, rates.trained_per_s) == (pytest.approx(2 * 2400), 0)
    assert "7 billion" in rates.source
    assert throughput(evaluation(tmp_path / "none", gpus, names=("nameless",)), H100) is None
    on_cpu = evaluation(tmp_path / "cpu", "resources.evaluation.gpus=0")
    assert rates_of(on_cpu, LocalSite(), sampled_tokens_per_second=70.0).sampled_per_s == 70


def test_a_model_is_measured_by_its_files(tmp_path: Path) -> None:
    model = tmp_path / "some-7B-model"
    model.mkdir()
    named = recipe("grpo", f"model.path={model}")
    assert model_billions(named) == 7.0
    (model / "config.json").write_text('{"torch_dtype": "float32"}')
    (model / "model.safetensors").write_bytes(bytes(4000))
    assert model_billions(named) == pytest.approx(1e-6)


def test_a_version_that_is_not_there_yet_has_the_size_of_another_one(tmp_path: Path) -> None:
    weights = tmp_path / "run" / "weights"
    (weights / "v000000").mkdir(parents=True)
    (weights / "v000000" / "config.json").write_text('{"dtype": "bfloat16"}')
    (weights / "v000000" / "model.safetensors").write_bytes(bytes(4000))
    later = EvaluatedModel(name="run@9", path=str(weights / "v000009"), run=str(tmp_path / "run"), version=9)
    one = evaluation(tmp_path / "models").model_copy(update={"models": (later,)})
    assert model_billions(one) == pytest.approx(2e-6)


def test_the_rates_that_a_run_measured_by_hand() -> None:
    """2,000 tokens in 4 s on 2 tasks; 3,000 positions in 5 s on 3 ranks; an iteration without times says nothing."""
    timed = IterationMetrics(
        iteration=0, tokens_per_rollout=1, generated_tokens=2000, sampling_seconds=4.0,
        trainer={"positions": 3000, "seconds_update": 5.0},
    )  # fmt: skip
    untimed = IterationMetrics(iteration=1, tokens_per_rollout=1, generated_tokens=99)
    assert sampled_rate([timed, untimed], tasks=2) == pytest.approx(250.0)
    assert trained_rate([timed, untimed], ranks=3) == pytest.approx(200.0)
    assert (sampled_rate([untimed], tasks=2), trained_rate([untimed], ranks=3)) == (None, None)


@pytest.mark.parametrize(
    ("notice_s", "gb_per_second", "late"), [(30, 1.0, True), (30, 2.0, False), (41, 1.0, False), (None, 0.01, False)]
)
def test_a_checkpoint_longer_than_the_notice_is_doubted(notice_s: int, gb_per_second: float, late: bool) -> None:
    """27 s for a billion parameters at 1 GB/s: 40.5 s for 1.5 billion, 20.25 s at 2 GB/s."""
    site = H100.model_copy(update={"preemption_notice_s": notice_s})
    rates = rates_of(recipe("mrt_online"), site, checkpoint_gb_per_second=gb_per_second)
    words = {every: late_checkpoint(recipe("mrt_online", f"training.checkpoint_every={every}"), site, rates) or ""
             for every in (1, 4)}  # fmt: skip
    assert [bool(said) for said in words.values()] == [late, late]
    if late:
        assert all(fact in words[4] for fact in ("40 s", "30 s", "4 update", "--set training.checkpoint_every=1"))
        assert "--set" not in words[1]


# -- uses


def test_the_uses_of_a_segment_by_hand() -> None:
    """128 s of sampling beside 70.4 s of update, 5 s and 10 s of saving: the trainer waits for the rest. Without
    staleness both wait for all that the other does.
    """
    alone = (*TEN, "evaluation.benchmarks=[]", "evaluation.prover=null")
    ahead = uses(recipe("grpo", *alone))
    seconds = {pair: pytest.approx(row.hours * 3600) for pair, row in ahead.items() if pair[0] is not Role.PREPARE}
    assert {pair for pair in ahead if pair[0] is Role.INFERENCE} == {
        (Role.INFERENCE, Use.STARTING), (Role.INFERENCE, Use.GENERATING),
    }  # fmt: skip
    assert seconds[Role.INFERENCE, Use.GENERATING] == 4 * 1280
    assert ahead[Role.INFERENCE, Use.GENERATING].gpu_hours == pytest.approx(4 * 1280 / 3600)
    trainer = {Use.STARTING: START_S, Use.TRAINING: 704, Use.SAVING: 150, Use.WAITING: 1280 - 854}
    assert {use: seconds[role, use] for role, use in seconds if role is Role.TRAINER} == trainer
    training = ahead[Role.TRAINER, Use.TRAINING]
    assert (training.gpu_hours, training.core_hours) == (
        pytest.approx(4 * 704 / 3600),
        pytest.approx(32 * 704 / 3600),
    )
    assert {(Role.PREPARE, Use.PREPARING), (Role.REPORT, Use.REPORTING)} <= set(ahead)
    on_policy = uses(recipe("grpo", *alone, "schedule.max_staleness=0"))
    waits = [on_policy[role, Use.WAITING].hours * 3600 for role in (Role.INFERENCE, Role.TRAINER)]
    assert waits == pytest.approx([4 * 854, 1280])


@pytest.mark.parametrize("name", ["mrt_online", "mrt", "backtracking", "star", "sft_suffix", "small_world/mrt"])
def test_the_uses_add_up_to_the_hours_of_the_jobs(name: str) -> None:
    one = recipe(name)
    expected = hours_of(one)
    assert sum(row.gpu_hours for row in uses(one).values()) == pytest.approx(
        sum(h.gpu_hours for h in expected.values())
    )
    for job, hours in expected.items():
        assert sum(hours.by_use.values()) == pytest.approx(hours.hours), job


def test_branches_take_the_share_of_their_tokens() -> None:
    """Traces of 1,000 tokens with 7 boundaries of 4 branches of 50; in evaluations 11 boundaries of these."""
    found = uses(recipe("mrt_online", *LENGTHS))
    for role, boundaries in ((Role.INFERENCE, 7), (Role.EVALUATION, 11)):
        branches, others = found[role, Use.BRANCHING].hours, found[role, Use.GENERATING].hours
        tokens = boundaries * 4 * 50
        assert branches / (branches + others) == pytest.approx(tokens / (1000 + tokens))


# -- plan


def test_a_run_without_gpus_has_core_hours_and_unknown_rates_are_asked_for(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    rates = {"sampled_tokens_per_second": 900, "trained_tokens_per_second": 900}
    site.write_text(json.dumps({"type": "local", "name": "here", "throughput": rates}))
    printed, unknown = typed("plan", "quickstart", "--site", site).output, typed("plan", "quickstart").output
    assert "expected core-hours" in printed and "site profile here" in printed
    assert all(f"throughput.{rate}" in unknown for rate in rates)
    assert "expected core-hours" not in unknown


def test_plan_warns_of_a_late_checkpoint(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("type: slurm\nname: here\ngpu_type: h100\npreemption_notice_s: 5\n")
    assert "preemption_notice_s" in typed("plan", "mrt_online", "--site", site).output
