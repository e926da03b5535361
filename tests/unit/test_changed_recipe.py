"""What a later submission may change of a run's recipe, and that nothing that was done is taken for something else."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from mrt_hpc.analysis.collect import read_measurements
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.analysis.spending import resources_of
from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.cli.main import main
from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan, role_resources
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.plan.kept_weights import evaluated, kept_versions
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.sections import Evaluation
from mrt_hpc.roles.evaluation import UnitEvaluation, run
from mrt_hpc.roles.prepare_checks import check_benchmark
from mrt_hpc.run.data import left_out, left_out_file, read_problems, write_problems
from mrt_hpc.run.evaluation_settings import evaluation_settings, has_samples
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.groups import Sampled, commit_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.records import GroupStatistics
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task
from mrt_hpc.run.weights import prune, publish
from mrt_hpc.submit import renewal
from mrt_hpc.submit.create import create_or_open
from mrt_hpc.submit.renewal import is_renewed, renew
from mrt_hpc.submit.submission import kept_recipe
from mrt_hpc.training.settings import learning_rate

if TYPE_CHECKING:
    from mrt_hpc.plan.jobs import EvaluationUnit
    from mrt_hpc.recipe.schema import Recipe

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
CONSTANT = ("training.schedule=constant", "schedule.iterations=10", "schedule.iterations_per_job=4")


def submitted(root: Path, *settings: str) -> tuple[RunLayout, Recipe]:
    """As the command does it, up to the point at which tasks are started."""
    recipe = kept_recipe(RunLayout(root), load_recipe(QUICKSTART, settings), print)
    plan = compile_plan(recipe, LocalSite())
    layout = create_or_open(root, recipe, plan)
    if is_renewed(layout, recipe, plan):
        renew(layout, recipe, plan)
    return layout, recipe


def finish(layout: RunLayout, *, named: bool = True) -> None:
    """All tasks done, and what is planned evaluated; of the weights versions those that the run would keep.

    Args:
        layout: the run.
        named: whether the evaluations name their settings, as older versions of mrt-hpc did not.
    """
    plan = read_plan(layout.plan)
    for version in sorted(kept_versions(read_recipe_lock(layout.recipe_lock), plan.iterations)):
        publish(layout, version, write_weights)
    layout.checkpoint(plan.iterations).mkdir(parents=True, exist_ok=True)
    for job in plan.jobs:
        for index in range(job.tasks):
            write_task(layout, job.name, index, TaskRecord(TaskState.DONE))
            if job.evaluations:
                evaluate(layout, job.evaluations[index], named=named)


def write_weights(directory: Path) -> None:
    (directory / "model").write_text("weights")


def evaluate(layout: RunLayout, unit: EvaluationUnit, *, named: bool = True) -> None:
    """As the evaluation's task does it; it holds no samples."""
    settings = evaluation_settings(layout, read_recipe_lock(layout.recipe_lock))[unit.benchmark].now
    shard = layout.evaluation_shard(unit.version, unit.benchmark, unit.shard)
    nothing = Sampled(rollouts=[], statistics=GroupStatistics(0, 0, 0, 0, 0, 0, 0, {}))
    weights = read_manifest(layout.weights_version(unit.version)).digest
    commit_group(shard, nothing, weights=weights, **({"settings": settings.sampled} if named else {}))
    summary = summarise_evaluation(
        unit.version, unit.benchmark, {"a": [1.0]}, settings=settings.summarised if named else None
    )
    summary.write(layout.evaluation_summary(unit.version, unit.benchmark))


def opened(layout: RunLayout) -> list[str]:
    """Jobs of which a task is not done."""
    return [
        job.name
        for job in read_plan(layout.plan).jobs
        if any(read_task(layout, job.name, i).state is not TaskState.DONE for i in range(job.tasks))
    ]


def told(layout: RunLayout) -> dict[str, tuple[object, object]]:
    """All changes that the events tell."""
    events = read_events(layout.events, EventKind.RECIPE_CHANGED)
    return {change["field"]: (change["old"], change["new"]) for event in events for change in event["changes"]}


def test_what_decides_nothing_is_accepted_and_recorded(tmp_path: Path) -> None:
    layout, _ = submitted(tmp_path / "run")
    finish(layout)
    submitted(tmp_path / "run", "expected.trace_tokens=100", "tracking.wandb=true")
    locked = read_recipe_lock(layout.recipe_lock)
    assert (locked.expected.trace_tokens, locked.tracking.wandb) == (100, True)
    assert told(layout) == {"expected.trace_tokens": (None, 100), "tracking.wandb": (False, True)}
    assert opened(layout) == []
    submitted(tmp_path / "run")
    assert read_recipe_lock(layout.recipe_lock) == locked, "a file that does not name them leaves them as they are"


def test_what_was_done_cannot_be_changed_and_the_way_out_is_told(tmp_path: Path) -> None:
    submitted(tmp_path / "run")
    with pytest.raises(UserError) as refused:
        submitted(
            tmp_path / "run", "training.learning_rate=1e-3", "sampling.temperature=0.5", "expected.trace_tokens=1"
        )
    message = refused.value.message()
    assert "training.learning_rate was 0.0007 and is 0.001" in message
    assert "sampling.temperature was 1.0 and is 0.5" in message
    assert "expected" not in message
    assert "--run DIR" in message
    assert "--set sampling.temperature=1.0 --set training.learning_rate=0.0007" in message


@pytest.mark.parametrize("other", ["grpo", "sft_suffix"])
def test_a_recipe_that_does_not_fit_the_rest_of_the_run_is_refused_like_any_other(tmp_path: Path, other: str) -> None:
    submitted(tmp_path / "run")
    recipe = load_recipe(QUICKSTART.parent / "small_world" / f"{other}.yaml")
    kept = kept_recipe(RunLayout(tmp_path / "run"), recipe, print)
    with pytest.raises(UserError, match=r"algorithm\.type was \"mrt_online\" and is") as refused:
        create_or_open(tmp_path / "run", kept, compile_plan(kept, LocalSite()))
    assert refused.value.advice is not None
    assert "--run DIR" in refused.value.advice


def test_more_iterations_of_a_constant_schedule_go_on_from_those_done(tmp_path: Path) -> None:
    layout, first = submitted(tmp_path / "run", *CONSTANT)
    finish(layout)
    _, recipe = submitted(tmp_path / "run", *CONSTANT, "schedule.iterations=14")
    assert read_recipe_lock(layout.recipe_lock) == recipe
    assert opened(layout) == [
        "segment-002.inference", "segment-002.trainer",
        "segment-003.inference", "segment-003.trainer", "segment-003.evaluation", "report",
    ]  # fmt: skip
    before = [learning_rate(step, 10, first.training) for step in range(10)]
    assert [learning_rate(step, 14, recipe.training) for step in range(10)] == before
    assert told(layout)["schedule.iterations"] == (10, 14)


def test_the_warm_up_that_began_stays_as_long_as_it_was(tmp_path: Path) -> None:
    layout, _ = submitted(tmp_path / "run", *CONSTANT)
    finish(layout)
    _, recipe = submitted(tmp_path / "run", *CONSTANT, "schedule.iterations=40")
    assert recipe.training.warmup_steps == 1, "a tenth of the ten steps that it began with"
    assert submitted(tmp_path / "run", *CONSTANT, "schedule.iterations=80")[1].training.warmup_steps == 1
    with pytest.raises(UserError, match=r"training\.warmup_steps was 1 and is 3"):
        submitted(tmp_path / "run", *CONSTANT, "schedule.iterations=80", "training.warmup_steps=3")


def test_fewer_iterations_are_accepted_down_to_those_done(tmp_path: Path) -> None:
    layout, _ = submitted(tmp_path / "run", *CONSTANT)
    for version in (0, 6):
        publish(layout, version, write_weights)
    with pytest.raises(UserError, match="6 iterations are done already"):
        submitted(tmp_path / "run", *CONSTANT, "schedule.iterations=5")
    submitted(tmp_path / "run", *CONSTANT, "schedule.iterations=6")
    assert read_plan(layout.plan).iterations == 6


def test_another_schedule_keeps_its_number_of_iterations_once_a_step_was_taken(tmp_path: Path) -> None:
    layout, _ = submitted(tmp_path / "run")
    submitted(tmp_path / "run", "schedule.iterations=22")
    publish(layout, 1, write_weights)
    with pytest.raises(UserError, match=r"schedule\.iterations was 22 and is 24: with training\.schedule: cosine"):
        submitted(tmp_path / "run", "schedule.iterations=24")


WRITES = [("write_json", 0), ("task_file", 0), ("task_file", 2), ("write_json", 1), ("write_text", 0), ("_tell", 0)]
"""Each write of a renewal in turn, and how many calls of its function come before it; the journal is the first."""


def cut_short(monkeypatch: pytest.MonkeyPatch, write: str, calls_before: int) -> None:
    """Have a renewal end before one of its writes."""
    original, calls = getattr(renewal, write), count()

    def writes_or_ends(*arguments: object) -> object:
        if next(calls) == calls_before:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(renewal, write, writes_or_ends)


@pytest.mark.parametrize(("write", "calls_before"), WRITES)
def test_a_change_cut_short_is_finished_by_the_same_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str, calls_before: int
) -> None:
    layout, _ = submitted(tmp_path / "run", *CONSTANT)
    finish(layout)
    wanted = (*CONSTANT, "schedule.iterations=14", "expected.trace_tokens=9")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        cut_short(patched, write, calls_before)
        submitted(tmp_path / "run", *wanted)
    _, recipe = submitted(tmp_path / "run", *wanted)
    assert read_recipe_lock(layout.recipe_lock) == recipe
    assert read_plan(layout.plan).iterations == 14
    assert opened(layout)[0] == "segment-002.inference"
    assert told(layout)["schedule.iterations"] == (10, 14)
    assert not layout.renewal.exists()


# -- evaluations

BENCHMARKS = "[{name: held-out, problems: {type: small_world, split: held_out}, samples: 2}%s]"
MORE = ("evaluation.benchmarks=" + BENCHMARKS % ", {name: more, problems: {type: small_world, problems: 4}}",)


def units(layout: RunLayout) -> list[tuple[int, str, bool]]:
    """Version, benchmark, and whether its task is done, of each planned evaluation."""
    return [
        (unit.version, unit.benchmark, read_task(layout, job.name, index).state is TaskState.DONE)
        for job in read_plan(layout.plan).jobs
        for index, unit in enumerate(job.evaluations)
    ]


@pytest.mark.parametrize("named", [True, False])
def test_a_benchmark_that_is_added_leaves_the_results_of_the_others(tmp_path: Path, named: bool) -> None:
    layout, _ = submitted(tmp_path / "run")
    finish(layout, named=named)
    submitted(tmp_path / "run", *MORE)
    assert units(layout) == [(0, "held-out", True), (0, "more", False), (20, "held-out", True), (20, "more", False)]
    assert opened(layout) == ["segment-000.evaluation", "report"]
    assert len(read_problems(layout.benchmark_data("more"))) == 4
    submitted(tmp_path / "run", "evaluation.benchmarks=" + BENCHMARKS % "")
    assert units(layout) == [(0, "held-out", True), (20, "held-out", True)]


HELD_OUT = "{type: small_world, split: held_out}"
CHANGES = [
    "evaluation.temperature=0.5", "evaluation.top_p=0.9", "evaluation.max_tokens=200", "evaluation.problem_shards=2",
    "evaluation.prover={type: gold_likelihood, forced_text: x, temperature: 1.0}",
    "evaluation.episodes={min_paragraphs: 2}", "evaluation.dtype=bfloat16", "evaluation.prompt={instruction: Think.}",
    "evaluation.benchmarks=[{name: held-out, problems: {type: small_world, split: held_out}, samples: 3}]",
    "evaluation.benchmarks=[{name: held-out, problems: {type: small_world, split: held_out, problems: 9}, samples: 2}]",
    *(
        f"evaluation.benchmarks=[{{name: held-out, problems: {HELD_OUT}, samples: 2, {own}}}]"
        for own in ("temperature: 0.5", "top_p: 0.9", "max_tokens: 200", "prompt: {instruction: Think.}")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "named"), [*((change, True) for change in CHANGES), (CHANGES[0], False)])
def test_what_other_settings_sampled_is_sampled_again(tmp_path: Path, change: str, named: bool) -> None:
    layout, _ = submitted(tmp_path / "run")
    finish(layout, named=named)
    submitted(tmp_path / "run", change, "evaluation.regret_budgets=[32]")
    assert not any(done for _, _, done in units(layout))
    task = load_task(layout, "segment-000.evaluation", 0, Placement(0, 1, 0, "a"))
    evaluation = UnitEvaluation(task, task.job.evaluations[0])
    assert not evaluation.is_sampled()
    assert "settings other than" in next(layout.set_aside.rglob("REASON")).read_text()
    recipe = read_recipe_lock(layout.recipe_lock)
    wanted = evaluation_settings(layout, recipe)
    assert read_measurements(layout, 0, [0, 20], ["held-out"], wanted).missing == (
        "evaluation on held-out of weights versions 0, 20",
    )


def test_every_field_of_an_evaluation_stands_in_a_digest_or_decides_no_result(tmp_path: Path) -> None:
    """Who adds a field decides here where it belongs."""
    deciding = {change.partition("=")[0].removeprefix("evaluation.") for change in CHANGES}
    limits = {"max_prompt_tokens", "long_prompts"}  # they decide which problems there are, and these are in the digest
    summary, neither = {"regret_budgets", "regret_tokens"}, {"every", "results", *limits}
    assert set(Evaluation.model_fields) == deciding | summary | neither | {"suite"}, "a suite's own fields decide"
    layout, recipe = submitted(tmp_path / "run")
    now = evaluation_settings(layout, recipe)["held-out"].now
    others = {"regret_budgets": "[32]", "regret_tokens": "all", "every": "3", "results": "r"}
    others |= {"max_prompt_tokens": "60", "long_prompts": "drop"}
    for field in summary | neither:
        changed = load_recipe(QUICKSTART, (f"evaluation.{field}={others[field]}",))
        then = evaluation_settings(layout, changed)["held-out"].now
        assert (then.sampled, then.summarised == now.summarised) == (now.sampled, field in neither)


def test_settings_that_are_restored_find_the_results_made_with_them(tmp_path: Path) -> None:
    layout, recipe = submitted(tmp_path / "run")
    finish(layout, named=False)
    submitted(tmp_path / "run", "evaluation.temperature=0.5")
    submitted(tmp_path / "run", "evaluation.temperature=1.0")
    assert read_recipe_lock(layout.recipe_lock) == recipe
    assert all(done for _, _, done in units(layout))


def test_a_summary_of_other_budgets_is_computed_again_from_the_same_samples(tmp_path: Path) -> None:
    layout, _ = submitted(tmp_path / "run")
    finish(layout)
    submitted(tmp_path / "run", "evaluation.regret_budgets=[32]")
    assert not any(done for _, _, done in units(layout))
    task = load_task(layout, "segment-000.evaluation", 0, Placement(0, 1, 0, "a"))
    evaluation = UnitEvaluation(task, task.job.evaluations[0])
    assert has_samples(evaluation.shard, evaluation.settings)


def test_versions_that_were_pruned_are_passed_over_and_told(tmp_path: Path) -> None:
    layout, _ = submitted(tmp_path / "run")
    finish(layout)
    prune(layout, {0, 18, 19, 20})
    recipe = load_recipe(QUICKSTART, ("evaluation.every=6",))
    told = renew(layout, recipe, compile_plan(recipe, LocalSite()))
    assert "weights versions 6, 12 were pruned" in told[-1]
    assert [unit for unit in units(layout) if not unit[2]] == [(18, "held-out", False)]
    found = read_measurements(layout, 0, [0, 6, 12, 18, 20], ["held-out"], evaluation_settings(layout, recipe))
    assert found.missing == ("evaluation on held-out of weights versions 18",)
    assert "of weights versions 6, 12, which had been pruned" in found.unmade[0]


def test_what_a_pruned_version_has_of_other_settings_stays(tmp_path: Path) -> None:
    layout, _ = submitted(tmp_path / "run", "evaluation.every=10")
    finish(layout)
    prune(layout, {0, 19, 20})
    submitted(tmp_path / "run", "evaluation.every=10", "evaluation.temperature=0.5")
    assert units(layout) == [(0, "held-out", False), (10, "held-out", True), (20, "held-out", False)]
    task = load_task(layout, "segment-000.evaluation", 1, Placement(0, 1, 0, "a"))
    run(task)
    assert layout.evaluation_shard(10, "held-out", 0).exists()


def test_versions_that_were_evaluated_once_stay_on_disk_and_in_the_report(tmp_path: Path) -> None:
    layout, recipe = submitted(tmp_path / "run", *CONSTANT)
    finish(layout)
    submitted(tmp_path / "run", *CONSTANT, "schedule.iterations=14")
    assert evaluated(layout) == {0, 10}
    found = read_measurements(layout, 0, [0, 14], ["held-out"], evaluation_settings(layout, recipe))
    assert [summary.version for summary in found.evaluations] == [0, 10]


def test_data_that_are_not_there_change_nothing(tmp_path: Path) -> None:
    layout, recipe = submitted(tmp_path / "run")
    finish(layout)
    with pytest.raises(UserError, match="no such data file"):
        submitted(tmp_path / "run", "evaluation.benchmarks=[{name: a, problems: {type: jsonl, path: /nowhere}}]")
    assert read_recipe_lock(layout.recipe_lock) == recipe
    assert opened(layout) == []
    assert not layout.renewal.exists()


OTHERS = ", ".join(f"{{name: {name}, problems: {{type: small_world, problems: COUNT}}}}" for name in "bc")
THREE = f"[{{name: held-out, problems: {{type: small_world, split: held_out}}}}, {OTHERS}]"
EVALUATION_WRITES = [
    ("write_json", 0), ("keep_first_settings", 0), ("pass_over", 0), ("write_problems", 0), ("write_problems", 1),
    ("write_task", 0), ("write_json", 1), ("write_text", 0), ("_tell", 0),
]  # fmt: skip


@pytest.mark.parametrize("finished_by", ["the same", "the one before"])
@pytest.mark.parametrize(("write", "calls_before"), EVALUATION_WRITES)
def test_a_change_of_benchmarks_cut_short_mixes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str, calls_before: int, finished_by: str
) -> None:
    """Two benchmarks get other problems under the same names, and one stays."""
    before, after = (f"evaluation.benchmarks={THREE.replace('COUNT', str(problems))}" for problems in (3, 5))
    layout, _ = submitted(tmp_path / "run", before)
    finish(layout, named=calls_before == 0)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        cut_short(patched, write, calls_before)
        submitted(tmp_path / "run", after)
    changed = finished_by == "the same"
    _, recipe = submitted(tmp_path / "run", after if changed else before)
    assert read_recipe_lock(layout.recipe_lock) == recipe
    problems = [len(read_problems(layout.benchmark_data(name))) for name in "bc"]
    assert problems == ([5, 5] if changed else [3, 3])
    made = {name: done for _, name, done in units(layout)}
    assert made == {"held-out": True, "b": not changed, "c": not changed}
    assert not layout.renewal.exists()


def test_what_jobs_cost_that_are_no_longer_planned_is_reckoned_by_their_role(tmp_path: Path) -> None:
    layout, recipe = submitted(tmp_path / "run")
    finish(layout)
    _, without = submitted(tmp_path / "run", "evaluation.benchmarks=[]")
    plan = read_plan(layout.plan)
    assert [job.name for job in plan.jobs if job.role is Role.EVALUATION] == []
    for name in ("segment-000.evaluation", "segment-000.evaluation-1"):
        assert resources_of(name, plan, without) == role_resources(recipe, Role.EVALUATION)
    assert resources_of("segment-000.trainer", plan, without) == plan.job("segment-000.trainer").resources


def test_a_run_continues_with_another_server(tmp_path: Path) -> None:
    """A server that is started again has another socket, and samples the same."""
    key = str(tmp_path / "key")
    layout, _ = submitted(tmp_path / "run", f"serving.attach={{address: 'unix:/first', key_file: {key}}}")
    submitted(tmp_path / "run", f"serving.attach={{address: 'unix:/second', key_file: {key}}}")
    assert told(layout) == {"serving.attach.address": ("unix:/first", "unix:/second")}


def test_other_resources_open_no_task(tmp_path: Path) -> None:
    layout, _ = submitted(tmp_path / "run")
    finish(layout)
    submitted(tmp_path / "run", "resources.evaluation.memory_gib=3")
    assert opened(layout) == []
    assert told(layout) == {"resources.evaluation.memory_gib": (8.0, 3.0)}


def test_the_ranks_of_a_begun_run_may_share_their_rows(tmp_path: Path) -> None:
    """Its checkpoints do not depend on it: tests/integration/test_training_checkpoint.py."""
    shape = ("training.batching=packed", "resources.trainer.ranks=2")
    layout, _ = submitted(tmp_path / "run", *shape)
    finish(layout)
    submitted(tmp_path / "run", *shape, "training.sequence_parallel=2")
    assert read_recipe_lock(layout.recipe_lock).training.sequence_parallel == 2
    assert opened(layout) == []
    assert told(layout) == {"training.sequence_parallel": (1, 2)}
    submitted(tmp_path / "run", *shape)
    assert read_recipe_lock(layout.recipe_lock).training.sequence_parallel == 2, "a file that does not name it"
    with pytest.raises(UserError, match=r"training\.batching was \"packed\""):
        submitted(tmp_path / "run", "training.batching=shared", "resources.trainer.ranks=2")


# -- limits of prompts


def leave_out(path: Path, **tokens: int) -> None:
    """As the first job does it: these problems, and what their prompts have."""
    left_out_file(path).write_text(json.dumps({"sampling.max_prompt_tokens": 64, "tokens": tokens}))
    write_problems(path, read_problems(path)[len(tokens) :])


def test_a_higher_limit_of_prompts_leaves_all_as_it_is_where_none_was_left_out(tmp_path: Path) -> None:
    layout, _ = submitted(tmp_path / "run")
    finish(layout)
    submitted(tmp_path / "run", "sampling.max_prompt_tokens=99", "sampling.long_prompts=drop")
    assert read_recipe_lock(layout.recipe_lock).sampling.max_prompt_tokens == 99
    assert opened(layout) == ["report"]
    with pytest.raises(UserError, match="longer prompts may have been sampled"):
        submitted(tmp_path / "run", "sampling.max_prompt_tokens=98", "sampling.long_prompts=drop")


def test_training_problems_that_were_left_out_stay_out_once_anything_was_sampled(tmp_path: Path) -> None:
    dropping = "sampling.long_prompts=drop"
    layout, _ = submitted(tmp_path / "run", dropping)
    leave_out(layout.train_data, a=80, b=90)
    finish(layout)
    submitted(tmp_path / "run", dropping, "sampling.max_prompt_tokens=79")
    with pytest.raises(UserError, match="would come back: a\n"):
        submitted(tmp_path / "run", dropping, "sampling.max_prompt_tokens=80")
    with pytest.raises(UserError, match="would come back: a, b"):
        submitted(tmp_path / "run", "sampling.long_prompts=refuse", "sampling.max_prompt_tokens=79")


def test_before_anything_is_sampled_all_data_are_taken_again(tmp_path: Path) -> None:
    dropping = ("sampling.long_prompts=drop", "data.problems=40")
    layout, _ = submitted(tmp_path / "run", *dropping)
    leave_out(layout.train_data, a=80, b=90)
    submitted(tmp_path / "run", *dropping, "sampling.max_prompt_tokens=80")
    assert len(read_problems(layout.train_data)) == 40
    assert left_out(layout.train_data) == {}


def test_a_benchmark_whose_problems_come_back_is_evaluated_again(tmp_path: Path) -> None:
    both = ("sampling.long_prompts=drop", *MORE)
    layout, _ = submitted(tmp_path / "run", *both)
    leave_out(layout.benchmark_data("more"), a=80)
    finish(layout)
    submitted(tmp_path / "run", *both, "sampling.max_prompt_tokens=70")
    assert opened(layout) == ["report"]
    submitted(tmp_path / "run", *both, "sampling.max_prompt_tokens=80")
    assert len(read_problems(layout.benchmark_data("more"))) == 4
    assert {name: done for _, name, done in units(layout)} == {"held-out": True, "more": False}


def test_a_benchmark_that_was_added_has_its_prompts_checked_by_its_evaluation(tmp_path: Path) -> None:
    layout, _ = submitted(tmp_path / "run", "sampling.long_prompts=drop")
    submitted(tmp_path / "run", "sampling.long_prompts=drop", *MORE)
    path = layout.benchmark_data("more")
    problems = read_problems(path)
    write_problems(path, [replace(problems[0], problem="and so on " * 40), *problems[1:]])
    task = load_task(layout, "segment-000.evaluation", 1, Placement(0, 1, 0, "a"))
    check_benchmark(task, "more", STARTING_MODEL)
    assert read_problems(path) == problems[1:]
    assert list(left_out(path)) == [problems[0].id]


# -- the plan says it beforehand


def planned(run: Path, *settings: str) -> str:
    options = [word for setting in settings for word in ("--set", setting)]
    result = CliRunner().invoke(main, ["plan", str(QUICKSTART), "--run", str(run), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_plan_of_a_begun_run_says_what_submit_would_refuse(tmp_path: Path) -> None:
    submitted(tmp_path / "run")
    wrong = ("training.learning_rate=1e-3", "evaluation.top_p=0.5")
    with pytest.raises(UserError) as refused:
        submitted(tmp_path / "run", *wrong)
    assert f"submit will refuse: {refused.value.message()}" in planned(tmp_path / "run", *wrong)
    nowhere = "evaluation.benchmarks=[{name: a, problems: {type: jsonl, path: /nowhere}}]"
    assert "submit will refuse: no such data file" in planned(tmp_path / "run", nowhere)
    assert "submit will" not in planned(tmp_path / "run")


def test_the_plan_of_a_begun_run_says_what_submit_would_change_and_changes_nothing(tmp_path: Path) -> None:
    layout, recipe = submitted(tmp_path / "run")
    finish(layout)
    said = planned(tmp_path / "run", *MORE, "evaluation.every=6")
    assert "submit will change the run:" in said
    assert "evaluation.every was null and is 6" in said
    assert "weights versions 6, 12 were pruned" in said
    assert "segment-000.evaluation, report" in said
    assert read_recipe_lock(layout.recipe_lock) == recipe
    assert opened(layout) == []
    assert not layout.benchmark_data("more").exists()


def test_the_plan_of_a_begun_run_keeps_what_the_file_does_not_name(tmp_path: Path) -> None:
    submitted(tmp_path / "run", "schedule.iterations=12")
    assert "12 iterations" not in planned(tmp_path / "run")  # the file names 20
    submitted(tmp_path / "other", "evaluation.every=2")
    assert "the run keeps evaluation.every: 2" in planned(tmp_path / "other")
