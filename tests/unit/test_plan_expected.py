"""Expected hours of a plan, against arithmetic by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.main import main
from mrt_hpc.evaluate.evaluation import evaluation_recipe
from mrt_hpc.evaluate.models import models_asked
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
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.schema import EvaluatedModel
from mrt_hpc.recipe.site import MeasuredThroughput
from mrt_hpc.roles.report import sampled_rate, trained_rate
from mrt_hpc.run.events import Use
from mrt_hpc.run.layout import COLLECTION

if TYPE_CHECKING:
    from mrt_hpc.plan.hours import UseHours
    from mrt_hpc.recipe.schema import EvaluationRecipe, Recipe

RECIPES = Path(__file__).parents[2] / "recipes"
H100 = SlurmSite(name="cluster", gpu_type="nvidia_h100_80gb")
RATES = Throughput(sampled_per_s=1000.0, trained_per_s=2000.0, publish_s=5.0, checkpoint_s=40.0, source="a test")


def recipe(name: str, *overrides: str) -> Recipe:
    return load_recipe(RECIPES / f"{name}.yaml", overrides)


def test_tokens_of_mrt_online_by_hand() -> None:
    """Four traces of 1,000 tokens, each with 7 boundaries of 4 branches of 50 tokens."""
    stated = recipe("mrt_online", "expected.trace_tokens=1000", "expected.branch_tokens=50")
    assert stated.algorithm.sampled_tokens(stated, 0) == 4 * (1000 + 7 * 4 * 50)
    assert stated.algorithm.trained_tokens(stated, 0) == 64 * 4 * (200 + 1000)


def test_without_statements_a_trace_is_half_of_the_limit_that_holds() -> None:
    curriculum = recipe("length_curriculum")
    assert curriculum.algorithm.sampled_tokens(curriculum, 0) == 4 * 4096
    assert curriculum.algorithm.sampled_tokens(curriculum, 200) == 4 * 12288


def test_a_collection_samples_its_continuations() -> None:
    """One attempt of 1,000 tokens, 11 boundaries of 20 continuations of 500; ten problems on four processes."""
    stated = recipe(
        "backtracking", "expected.trace_tokens=1000", "expected.branch_tokens=500", "data.limit=10",
        "episodes.max_episodes=10", "resources.inference.tasks=4",
    )  # fmt: skip
    assert stated.algorithm.sampled_tokens(stated, COLLECTION) == 1000 + 11 * 20 * 500
    assert sampling_seconds(stated, COLLECTION, RATES) == pytest.approx(10 * 111_000 / 4000)


def test_an_iteration_by_hand_with_and_without_staleness() -> None:
    """64 groups of 4 x 2,000 tokens on 4 processes: 128 s; 256 x 2,200 tokens on 4 ranks: 70.4 s, 5 s and 40 s / 4."""
    changes = ("expected.trace_tokens=2000", "schedule.iterations=10", "schedule.iterations_per_job=10")
    ahead = recipe("grpo", *changes)
    assert sampling_seconds(ahead, 0, RATES) == pytest.approx(128.0)
    on_policy = recipe("grpo", *changes, "schedule.max_staleness=0")
    for one, seconds in ((ahead, 128.0), (on_policy, 213.4)):
        plan = compile_plan(one, LocalSite())
        hours = expected_hours(plan, one, RATES)
        for name in ("segment-000.inference", "segment-000.trainer"):
            assert hours[name].hours == pytest.approx((180 + 10 * seconds) / 3600)
            assert hours[name].gpu_hours == pytest.approx(4 * hours[name].hours)


def test_an_evaluation_is_counted_by_its_problems(tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(json.dumps({"id": str(i), "problem": "", "answer": ""}) + "\n" for i in range(30)))
    where = f"evaluation.benchmarks=[{{name: b, samples: 8, problems: {{type: jsonl, path: {problems}}}}}]"
    one = recipe("grpo", where, "evaluation.problem_shards=2", "expected.trace_tokens=1000", "evaluation.prover=null")
    hours = expected_hours(compile_plan(one, LocalSite()), one, RATES)
    assert hours["segment-000.evaluation"].hours == pytest.approx((180 + 15 * 8 * 1000 / 1000) / 3600)
    problems.unlink()
    assert "segment-000.evaluation" not in expected_hours(compile_plan(one, LocalSite()), one, RATES)


def evaluation(place: Path, *overrides: str, names: tuple[str, ...] = ("small-1.5B",)) -> EvaluationRecipe:
    """An evaluation of models of these names, which have no weights, on the paper's suite."""
    for name in names:
        (place / name).mkdir(parents=True)
        (place / name / "config.json").write_text("{}")
    asked = models_asked([str(place / name) for name in names])
    return evaluation_recipe(asked, "paper_20", overrides, data=place)


def test_an_evaluation_on_its_own_is_counted_by_its_problems(tmp_path: Path) -> None:
    """872 problems of five benchmarks in shards of an eighth, 20 samples of 1,000 tokens each, for two models."""
    two = evaluation(tmp_path, "expected.trace_tokens=1000", "resources.evaluation.gpus=2", names=("a", "b"))
    plan = evaluation_plan(two, LocalSite())
    hours = expected_hours(plan, two, RATES)
    assert plan.jobs[1].tasks == 2 * 5 * 8
    assert hours["evaluation"].hours == pytest.approx((180 + (30 + 30 + 40 + 272 + 500) / 5 / 8 * 20) / 3600)
    assert hours["evaluation"].gpu_hours == pytest.approx(80 * 2 * hours["evaluation"].hours)


def test_the_rates_of_an_evaluation_are_those_of_its_largest_model(tmp_path: Path) -> None:
    both = evaluation(tmp_path / "both", "resources.evaluation.gpus=2", names=("small-1.5B", "large-7B", "nameless"))
    rates = throughput(both, H100)
    assert rates is not None
    assert rates.sampled_per_s == pytest.approx(2 * 2400)
    assert (rates.trained_per_s, rates.source) == (0, "stated rates of h100 for 7 billion parameters")
    assert throughput(evaluation(tmp_path / "none", "resources.evaluation.gpus=1", names=("nameless",)), H100) is None
    measured = LocalSite(throughput=MeasuredThroughput(sampled_tokens_per_second=70.0))
    on_cpu = throughput(evaluation(tmp_path / "cpu", "resources.evaluation.gpus=0"), measured)
    assert on_cpu is not None
    assert (on_cpu.sampled_per_s, on_cpu.source) == (70, "throughput of site profile local")


def test_a_version_that_is_not_there_yet_has_the_size_of_another_one(tmp_path: Path) -> None:
    weights = tmp_path / "run" / "weights"
    (weights / "v000000").mkdir(parents=True)
    (weights / "v000000" / "config.json").write_text('{"dtype": "bfloat16"}')
    (weights / "v000000" / "model.safetensors").write_bytes(bytes(4000))
    later = EvaluatedModel(name="run@9", path=str(weights / "v000009"), run=str(tmp_path / "run"), version=9)
    one = evaluation(tmp_path / "models").model_copy(update={"models": (later,)})
    assert model_billions(one) == pytest.approx(2e-6)


def test_stated_rates_follow_gpu_and_size() -> None:
    online = recipe("mrt_online")
    rates = throughput(online, H100)
    assert rates is not None
    assert (rates.sampled_per_s, rates.trained_per_s) == (5500, 12500)
    assert rates.source == "stated rates of h100 for 1.5 billion parameters"
    assert power_law(STATED["a100"].sampled, 7.0) == pytest.approx(1500)
    assert throughput(recipe("quickstart"), H100) is None, "nothing is stated for a CPU"


def test_a_checkpoint_that_takes_longer_than_the_notice_is_doubted() -> None:
    """27 s for a billion parameters at 1 GB/s: 40.5 s for 1.5 billion, 20.25 s at 2 GB/s."""
    online = recipe("mrt_online", "training.checkpoint_every=4")

    def warning(notice_s: int | None, gb_per_second: float, *, one: Recipe = online) -> str | None:
        measured = MeasuredThroughput(checkpoint_gb_per_second=gb_per_second)
        site = H100.model_copy(update={"preemption_notice_s": notice_s, "throughput": measured})
        rates = throughput(one, site)
        assert rates is not None
        return late_checkpoint(one, site, rates)

    told = warning(30, 1.0)
    assert told is not None
    assert all(words in told for words in ("40 s", "30 s", "preemption_notice_s", "4 update", "checkpoint_every=1"))
    assert "--set" not in (warning(30, 1.0, one=recipe("mrt_online", "training.checkpoint_every=1")) or "--set")
    assert warning(30, 2.0) is None
    assert warning(41, 1.0) is None
    assert warning(None, 0.01) is None, "where the notice is not known nothing is compared"


def test_plan_tells_of_a_late_checkpoint(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("type: slurm\nname: here\ngpu_type: h100\npreemption_notice_s: 5\n")
    printed = CliRunner().invoke(main, ["plan", str(RECIPES / "mrt_online.yaml"), "--site", str(site)]).output
    assert "a checkpoint is expected to take" in printed


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_evaluation_samples_on_its_own_gpus(nodes: int) -> None:
    """An inference task has four GPUs on each node, a task of an evaluation one."""
    servers = ("resources.inference.gpus=4", "serving.tensor_parallel=1", f"resources.inference.nodes={nodes}")
    rates = throughput(recipe("grpo", *servers), H100)
    assert rates is not None
    assert (rates.sampled_per_s, rates.evaluated_per_s) == (nodes * 4 * 5500, FULL_SLOTS * 5500)
    measured = H100.model_copy(update={"throughput": MeasuredThroughput(sampled_tokens_per_second=8000.0)})
    rates = throughput(recipe("grpo", *servers), measured)
    assert rates is not None
    assert rates.evaluated_per_s == FULL_SLOTS * 8000 / (nodes * 4)


def test_measured_rates_replace_the_stated_ones() -> None:
    measured = MeasuredThroughput(sampled_tokens_per_second=4000.0, trained_tokens_per_second=300.0)
    rates = throughput(recipe("quickstart"), LocalSite(throughput=measured))
    assert rates is not None
    assert (rates.sampled_per_s, rates.trained_per_s, rates.publish_s) == (4000, 300, 0)


def test_a_model_is_measured_by_its_files(tmp_path: Path) -> None:
    model = tmp_path / "some-7B-model"
    model.mkdir()
    named = recipe("grpo", f"model.path={model}")
    assert model_billions(named) == 7.0
    (model / "config.json").write_text('{"torch_dtype": "float32"}')
    (model / "model.safetensors").write_bytes(bytes(4000))
    assert model_billions(named) == pytest.approx(1e-6)


def test_plan_tells_what_is_expected_and_what_the_limits_allot() -> None:
    online = str(RECIPES / "mrt_online.yaml")
    result = CliRunner().invoke(main, ["plan", online, "--set", "resources.trainer.time_limit_minutes=30"])
    assert result.exit_code == 0, result.output
    assert "GPU-hours" in result.output
    assert "stated rates of a100 for 1.5 billion parameters" in result.output
    assert "segment-000.trainer is expected to reach its time limit" in result.output
    assert "no upper bound" in result.output


def test_the_rates_that_a_run_measured_by_hand() -> None:
    """2,000 tokens in 4 s on 2 tasks; 3,000 positions in 5 s on 3 ranks; an iteration without times tells nothing."""
    timed = IterationMetrics(
        iteration=0, tokens_per_rollout=1, generated_tokens=2000, sampling_seconds=4.0,
        trainer={"positions": 3000, "seconds_update": 5.0},
    )  # fmt: skip
    untimed = IterationMetrics(iteration=1, tokens_per_rollout=1, generated_tokens=99)
    assert sampled_rate([timed, untimed], tasks=2) == pytest.approx(250.0)
    assert trained_rate([timed, untimed], ranks=3) == pytest.approx(200.0)
    assert sampled_rate([untimed], tasks=2) is None
    assert trained_rate([untimed], ranks=3) is None


def test_tasks_that_run_in_turn_share_a_collection_and_not_an_iteration() -> None:
    """A collection is divided among all tasks; an iteration among those that run at the same time."""
    in_turn = ("resources.inference.tasks=8", "resources.inference.max_parallel=2")
    collected = recipe("backtracking", "data.limit=10", *in_turn)
    whole = 10 * collected.algorithm.sampled_tokens(collected, COLLECTION)
    assert sampling_seconds(collected, COLLECTION, RATES) == pytest.approx(whole / 8000)
    together = recipe("grpo", "expected.trace_tokens=2000", *in_turn)
    assert sampling_seconds(together, 0, RATES) == pytest.approx(64 * 4 * 2000 / 2000)


def test_a_long_benchmark_is_told_even_where_the_mean_of_all_tasks_is_short(tmp_path: Path) -> None:
    """Shards of 100 and of 1 problem: 1,000 s and 10 s with the start of 180 s, of which 10 minutes are allowed."""
    files = {name: tmp_path / f"{name}.jsonl" for name in ("long", "short")}
    for (name, file), count in zip(files.items(), (100, 1), strict=True):
        file.write_text(
            "".join(json.dumps({"id": f"{name}{i}", "problem": "", "answer": ""}) + "\n" for i in range(count))
        )
    listed = ", ".join(
        f"{{name: {name}, samples: 10, problems: {{type: jsonl, path: {file}}}}}" for name, file in files.items()
    )
    changes = (
        f"evaluation.benchmarks=[{listed}]", "evaluation.problem_shards=1", "evaluation.prover=null",
        "expected.trace_tokens=1000", "resources.evaluation.time_limit_minutes=15",
    )  # fmt: skip
    one = recipe("grpo", *changes)
    plan = compile_plan(one, LocalSite())
    hours = expected_hours(plan, one, RATES)["segment-000.evaluation"]
    assert hours.longest == pytest.approx(1180 / 3600)
    assert hours.hours == pytest.approx((1180 + 190) / 2 / 3600)
    assert hours.attempts(next(job for job in plan.jobs if job.name == "segment-000.evaluation")) == 2


def uses(one: Recipe) -> dict[tuple[Role, Use], UseHours]:
    plan = compile_plan(one, LocalSite())
    return {(row.role, row.use): row for row in expected_uses(plan, expected_hours(plan, one, RATES))}


def test_the_uses_of_a_segment_by_hand() -> None:
    """128 s of sampling beside 70.4 s of update, 5 s and 10 s of saving: the trainer waits for the rest. Without
    staleness both wait for all that the other does.
    """
    changes = (
        "expected.trace_tokens=2000", "schedule.iterations=10", "schedule.iterations_per_job=10",
        "evaluation.benchmarks=[]", "evaluation.prover=null",
    )  # fmt: skip
    ahead = uses(recipe("grpo", *changes))
    assert ahead[Role.INFERENCE, Use.GENERATING].hours == pytest.approx(4 * 1280 / 3600)
    assert ahead[Role.INFERENCE, Use.GENERATING].gpu_hours == pytest.approx(4 * 1280 / 3600)
    assert ahead[Role.TRAINER, Use.TRAINING].hours == pytest.approx(704 / 3600)
    assert ahead[Role.TRAINER, Use.TRAINING].gpu_hours == pytest.approx(4 * 704 / 3600)
    assert ahead[Role.TRAINER, Use.TRAINING].core_hours == pytest.approx(32 * 704 / 3600)
    assert ahead[Role.TRAINER, Use.SAVING].hours == pytest.approx(150 / 3600)
    assert ahead[Role.TRAINER, Use.WAITING].hours == pytest.approx((1280 - 854) / 3600)
    assert ahead[Role.TRAINER, Use.STARTING].hours == pytest.approx(START_S / 3600)
    assert (Role.INFERENCE, Use.WAITING) not in ahead
    assert (Role.INFERENCE, Use.BRANCHING) not in ahead
    assert {(Role.PREPARE, Use.PREPARING), (Role.REPORT, Use.REPORTING)} <= set(ahead)
    on_policy = uses(recipe("grpo", *changes, "schedule.max_staleness=0"))
    assert on_policy[Role.INFERENCE, Use.WAITING].hours == pytest.approx(4 * 854 / 3600)
    assert on_policy[Role.TRAINER, Use.WAITING].hours == pytest.approx(1280 / 3600)


@pytest.mark.parametrize("name", ["mrt_online", "mrt", "backtracking", "star", "sft_suffix", "small_world/mrt"])
def test_the_uses_add_up_to_the_hours_of_the_jobs(name: str) -> None:
    one = recipe(name)
    plan = compile_plan(one, LocalSite())
    expected = expected_hours(plan, one, RATES)
    rows = expected_uses(plan, expected)
    assert sum(row.gpu_hours for row in rows) == pytest.approx(sum(hours.gpu_hours for hours in expected.values()))
    for job in plan.jobs:
        if job.name in expected:
            assert sum(expected[job.name].by_use.values()) == pytest.approx(expected[job.name].hours)


def test_branches_take_the_share_of_their_tokens() -> None:
    """Traces of 1,000 tokens with 7 boundaries of 4 branches of 50; in evaluations 11 boundaries of these."""
    found = uses(recipe("mrt_online", "expected.trace_tokens=1000", "expected.branch_tokens=50"))
    for role, boundaries in ((Role.INFERENCE, 7), (Role.EVALUATION, 11)):
        branches = boundaries * 4 * 50
        both = found[role, Use.GENERATING].hours + found[role, Use.BRANCHING].hours
        assert found[role, Use.BRANCHING].hours / both == pytest.approx(branches / (1000 + branches))


def test_forced_rollouts_are_no_branches_and_a_bonus_of_the_next_episode_asks_for_some() -> None:
    """Half of the rollouts go on, and the prover values the end of the first new episode of each."""
    changes = ("expected.trace_tokens=1000", "expected.branch_tokens=50", "prover.branches=4")
    whole, episode = recipe("mrt", *changes), recipe("mrt", *changes, "algorithm.bonus=next_episode")
    half = whole.sampling.rollouts_per_problem / 2
    assert whole.algorithm.sampled_branch_tokens(whole, 0) == 0
    assert episode.algorithm.sampled_branch_tokens(episode, 0) == half * 4 * 50
    assert episode.algorithm.sampled_tokens(episode, 0) == half * (500 + 50 + 4 * 50)
    assert episode.algorithm.sampled_branch_tokens(episode, COLLECTION) == 0


def test_jobs_of_unknown_hours_have_no_uses() -> None:
    one = recipe("grpo", "evaluation.benchmarks=[{name: b, samples: 1, problems: {type: jsonl, path: none.jsonl}}]")
    plan = compile_plan(one, LocalSite())
    rows = expected_uses(plan, expected_hours(plan, one, RATES))
    assert Role.EVALUATION not in {row.role for row in rows}
    assert expected_uses(plan, {}) == []


def planned(*words: str) -> str:
    result = CliRunner().invoke(main, ["plan", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_plan_shows_the_share_of_each_use_and_where_the_lengths_are_from() -> None:
    online = str(RECIPES / "mrt_online.yaml")
    printed = planned(online, "--set", "expected.trace_tokens=1000")
    assert "expected GPU-hours" in printed
    rows = {line.split("│")[1].strip(): line.split("│") for line in printed.splitlines() if line.count("│") == 7}
    assert {"starting", "generating", "branching", "training", "saving", "waiting for a peer", "all"} <= set(rows)
    shares = [float(cells[6].strip(" %")) for use, cells in rows.items() if use != "all"]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert "a trace has 1,000 tokens, or its limit if less (stated in expected.trace_tokens of the recipe)" in printed
    assert "a branch has 64 tokens (assumed, as expected.branch_tokens of the recipe states nothing)" in printed
    assert "a trace has half of its limit (assumed" in planned(online)


def test_plan_says_what_to_state_where_nothing_is_known() -> None:
    printed = planned(str(RECIPES / "quickstart.yaml"))
    assert "what they are used for are unknown" in printed
    assert "state throughput.sampled_tokens_per_second and throughput.trained_tokens_per_second" in printed
    assert "expected core-hours" not in printed


def test_a_run_without_gpus_has_core_hours(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(
        "type: local\nname: here\nthroughput: {sampled_tokens_per_second: 900, trained_tokens_per_second: 900}\n"
    )
    printed = planned(str(RECIPES / "quickstart.yaml"), "--site", str(site))
    assert "expected core-hours" in printed
    assert "by throughput of site profile here" in printed


def test_the_source_of_the_rates_names_the_measured_one() -> None:
    measured = MeasuredThroughput(sampled_tokens_per_second=4000.0)
    rates = throughput(recipe("mrt_online"), H100.model_copy(update={"throughput": measured}))
    assert rates is not None
    assert (rates.sampled_per_s, rates.trained_per_s) == (4000, 12500)
    assert rates.source == (
        "throughput.sampled_tokens_per_second of site profile cluster and "
        "stated rates of h100 for 1.5 billion parameters"
    )
