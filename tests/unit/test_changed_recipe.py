"""What a later submission may change of a run's recipe, and that nothing that was done is taken for something else."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from basics import QUICKSTART
from commands import recipe, refusal, typed
from run_of import publish_some, read_events, task_of
from tables import tables

from mrt_hpc import Recipe, RunLayout, UserError
from mrt_hpc.analysis.measures import read_measurements
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.analysis.spending import resources_of
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.plan.compile import compile_plan, role_resources
from mrt_hpc.plan.jobs import EvaluationUnit, Plan, Role, read_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.sections import Evaluation
from mrt_hpc.roles.evaluation import UnitEvaluation
from mrt_hpc.roles.evaluation import run as run_evaluation
from mrt_hpc.roles.prepare_checks import check_benchmark
from mrt_hpc.run.evaluation_settings import evaluation_settings, has_samples
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import Sampled, commit_group
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.problems import omitted_file, omitted_problems, read_problems, write_problems
from mrt_hpc.run.records import GroupStatistics
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task
from mrt_hpc.run.weights import kept_versions, prune, versions_with_evaluations
from mrt_hpc.submit import renewal
from mrt_hpc.submit.create import create_or_open
from mrt_hpc.submit.renewal import is_renewed, renew
from mrt_hpc.submit.submission import kept_recipe
from mrt_hpc.training.settings import learning_rate

CONSTANT = ("training.schedule=constant", "schedule.iterations=10", "schedule.iterations_per_job=4")
DROP = "sampling.long_prompts=drop"


@dataclass(frozen=True)
class Run:
    layout: RunLayout

    def submit(self, *settings: str) -> Recipe:
        """As the command does it, up to the point at which tasks are started."""
        asked = kept_recipe(self.layout, load_recipe(QUICKSTART, settings), print)
        plan = compile_plan(asked, LocalSite())
        create_or_open(self.layout.root, asked, plan)
        if is_renewed(self.layout, asked, plan):
            renew(self.layout, asked, plan)
        return asked

    def refuses(self, *settings: str) -> UserError:
        return refusal(self.submit, *settings)

    @property
    def plan(self) -> Plan:
        return read_plan(self.layout.plan)

    @property
    def locked(self) -> Recipe:
        return read_recipe_lock(self.layout.recipe_lock)

    def finish(self, *settings: str) -> Run:
        """Submitted, all tasks done, and what is planned evaluated; of the weights those that the run would keep."""
        if not self.layout.plan.exists():
            self.submit(*settings)
        plan = self.plan
        publish_some(self.layout, *sorted(kept_versions(self.locked, plan.iterations)))
        self.layout.checkpoint(plan.iterations).mkdir(parents=True, exist_ok=True)
        for job in plan.jobs:
            for unit in job.evaluations:
                self.evaluate(unit)
            for index in range(job.tasks):
                write_task(self.layout, job.name, index, TaskRecord(TaskState.DONE))
        return self

    def evaluate(self, unit: EvaluationUnit) -> None:
        """As the evaluation's task does it; it holds no samples."""
        settings = evaluation_settings(self.layout, self.locked)[unit.benchmark]
        nothing = Sampled(rollouts=[], statistics=GroupStatistics(0, 0, 0, 0, 0, 0, 0, {}))
        weights = read_manifest(self.layout.weights_version(unit.version)).digest
        shard = self.layout.evaluation_shard(unit.version, unit.benchmark, unit.shard)
        commit_group(shard, nothing, weights=weights, settings=settings.sampled)
        summary = summarise_evaluation(unit.version, unit.benchmark, {"a": [1.0]}, settings=settings.summarised)
        summary.write(self.layout.evaluation_summary(unit.version, unit.benchmark))

    @property
    def opened(self) -> list[str]:
        tasks = [(job.name, read_task(self.layout, job.name, i)) for job in self.plan.jobs for i in range(job.tasks)]
        return list(dict.fromkeys(name for name, task in tasks if task.state is not TaskState.DONE))

    @property
    def changes(self) -> dict[str, tuple[object, object]]:
        events = read_events(self.layout.events, EventKind.RECIPE_CHANGED)
        return {change["field"]: (change["old"], change["new"]) for event in events for change in event["changes"]}

    @property
    def units(self) -> list[tuple[int, str, bool]]:
        return [
            (unit.version, unit.benchmark, read_task(self.layout, job.name, index).state is TaskState.DONE)
            for job in self.plan.jobs
            for index, unit in enumerate(job.evaluations)
        ]

    @property
    def are_done(self) -> list[bool]:
        return [done for _, _, done in self.units]

    def evaluation(self, index: int = 0) -> UnitEvaluation:
        task = task_of(self.layout, "segment-000.evaluation", index)
        return UnitEvaluation(task, task.job.evaluations[index])

    def missing(self, versions: list[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        found = read_measurements(self.layout, 0, versions, evaluation_settings(self.layout, self.locked))
        return found.missing, found.unmade

    def planned(self, *settings: str) -> str:
        options = [word for setting in settings for word in ("--set", setting)]
        return typed("plan", QUICKSTART, "--run", self.layout.root, *options).output


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(RunLayout(tmp_path / "run"))


@pytest.fixture
def finished(run: Run) -> Run:
    return run.finish()


PACKED = ("training.batching=packed", "resources.trainer.ranks=2")


@pytest.mark.parametrize(("begun", "change", "changes"), [
    ((), ("expected.trace_tokens=100",), {"expected.trace_tokens": (None, 100)}),
    ((), ("tracking.wandb=true",), {"tracking.wandb": (False, True)}),
    ((), ("resources.evaluation.memory_gib=3",), {"resources.evaluation.memory_gib": (8.0, 3.0)}),
    # checkpoints do not depend on it: tests/integration/test_training_checkpoint.py
    (PACKED, (*PACKED, "training.sequence_parallel=2"), {"training.sequence_parallel": (1, 2)}),
])  # fmt: skip
def test_what_decides_nothing_is_accepted(run: Run, begun: tuple[str], change: tuple[str], changes: Any) -> None:
    recipe = run.finish(*begun).submit(*change)
    assert (run.changes, run.opened, run.locked) == (changes, [], recipe)
    if not begun and not change[0].startswith("resources"):
        run.submit()
        assert run.locked == recipe, "a file that does not name the field leaves it as it is"


@pytest.mark.parametrize(("begun", "done", "change", "fact"), tables("changed_recipe")["changes"])
def test_what_was_done_cannot_be_changed(
    run: Run, begun: tuple[str], done: int | None, change: tuple[str], fact: str | None
) -> None:
    recipe = run.submit(*begun)
    publish_some(run.layout, *(() if done is None else (0, done)))
    if fact is None:
        assert f"schedule.iterations={run.submit(*change).schedule.iterations}" == change[-1]
        return
    refused = run.refuses(*change)
    assert fact in refused.message() and f"submit will refuse: {refused.what}" in run.planned(*change)
    assert (run.locked, run.changes, run.layout.renewal.exists()) == (recipe, {}, False)


def test_a_refusal_names_the_way_out(run: Run) -> None:
    run.submit()
    changes = ("training.learning_rate=1e-3", "sampling.temperature=0.5", "expected.trace_tokens=1")
    refused = run.refuses(*changes)
    assert "expected" not in refused.message(), "that may change"
    assert [word in str(refused.advice) for word in ("--run DIR", run.layout.again, "fork")] == [True, True, False]
    publish_some(run.layout, 0, 3)
    options = "--set sampling.temperature=0.5 --set training.learning_rate=0.001"
    assert f"mrt-hpc fork {run.layout.root} --at last {options}" in str(run.refuses(*changes).advice)
    for other in ("grpo", "sft_suffix"):  # where the recipe does not fit the rest of the run either
        kept = kept_recipe(run.layout, recipe(f"small_world/{other}"), print)
        refused = refusal(create_or_open, run.layout.root, kept, compile_plan(kept, LocalSite()))
        assert 'algorithm.type was "mrt_online"' in refused.message()


def test_more_iterations_of_a_constant_schedule_go_on_from_those_done(run: Run) -> None:
    first = run.finish(*CONSTANT).locked
    recipe = run.submit(*CONSTANT, "schedule.iterations=14")
    before = [learning_rate(step, 10, first.training) for step in range(10)]
    assert [learning_rate(step, 14, recipe.training) for step in range(10)] == before
    assert run.changes["schedule.iterations"] == (10, 14)
    assert versions_with_evaluations(run.layout) == {0, 10}, "what was evaluated once stays on disk and in the report"
    found = read_measurements(run.layout, 0, [0, 14], evaluation_settings(run.layout, recipe))
    assert [summary.version for summary in found.evaluations] == [0, 10]
    longer = run.submit(*CONSTANT, "schedule.iterations=80")
    assert (run.locked, longer.training.warmup_steps) == (longer, 1), "a tenth of the ten steps that it began with"


def cut_short(run: Run, write: str, calls_before: int, *settings: str) -> None:
    """Submit, and end before one of the writes of the renewal."""
    original, calls = getattr(renewal, write), count()

    def writes_or_ends(*arguments: object) -> object:
        if next(calls) == calls_before:
            raise KeyboardInterrupt
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(renewal, write, writes_or_ends)
        run.submit(*settings)


HELD_OUT = "name: held-out, problems: {type: small_world, split: held_out}, samples: 2"
ONE = f"evaluation.benchmarks=[{{{HELD_OUT}}}]"
MORE = f"evaluation.benchmarks=[{{{HELD_OUT}}}, {{name: more, problems: {{type: small_world, problems: 4}}}}]"


def test_a_benchmark_that_is_added_leaves_the_results_of_the_others(finished: Run) -> None:
    finished.submit(MORE)
    added = [(version, name, name != "more") for version in (0, 20) for name in ("held-out", "more")]
    assert (finished.units, finished.opened) == (added, ["segment-000.evaluation", "report"])
    assert len(read_problems(finished.layout.benchmark_data("more"))) == 4
    finished.submit(ONE)
    assert finished.units == [(0, "held-out", True), (20, "held-out", True)]


CHANGES = [
    *("evaluation.temperature=0.5", "evaluation.top_p=0.9", "evaluation.max_tokens=200", "evaluation.problem_shards=2"),
    "evaluation.prover={type: gold_likelihood, forced_text: x, temperature: 1.0}",
    *("evaluation.episodes={min_paragraphs: 2}", "evaluation.dtype=bfloat16", "evaluation.prompt={instruction: Do.}"),
    ONE.replace("samples: 2", "samples: 3"),
    ONE.replace("split: held_out", "split: held_out, problems: 9"),
    *(ONE.replace("samples: 2", f"samples: 2, {own}") for own in ("max_tokens: 200", "prompt: {instruction: Do.}")),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_other_settings_sampled_is_sampled_again(finished: Run, change: str) -> None:
    finished.submit(change, "evaluation.regret_budgets=[32]")
    assert not any((*finished.are_done, finished.evaluation().is_sampled()))
    assert list(finished.layout.set_aside.rglob("REASON"))
    assert finished.missing([0, 20])[0] == ("evaluation on held-out of weights versions 0, 20",)


def test_every_field_of_an_evaluation_stands_in_a_digest_or_decides_no_result(run: Run) -> None:
    """Who adds a field decides here where it belongs."""
    deciding = {change.partition("=")[0].removeprefix("evaluation.") for change in CHANGES}
    limits = {"max_prompt_tokens": "60", "long_prompts": "drop"}  # they decide the problems, which are in the digest
    summary, neither = {"regret_budgets": "[32]", "regret_tokens": "all"}, {"every": "3", "results": "r", **limits}
    assert set(Evaluation.model_fields) == deciding | summary.keys() | neither.keys() | {"suite"}
    now = evaluation_settings(run.layout, run.submit())["held-out"]
    for field, value in (summary | neither).items():
        then = evaluation_settings(run.layout, load_recipe(QUICKSTART, (f"evaluation.{field}={value}",)))["held-out"]
        assert (then.sampled, then.summarised == now.summarised) == (now.sampled, field in neither), field


def test_settings_without_former_fields_have_the_digest_of_earlier_versions(run: Run) -> None:
    """Else a run that an earlier version has begun would sample all its evaluations again."""
    exact = ONE.replace("split: held_out", "split: held_out, problems: 9, verifier: {type: exact}")
    for prover, digest in (("look_ahead", "6abde68d32c6"), ("rao_blackwell", "9139e9108aab")):
        asked = run.submit(exact, f"evaluation.prover={{type: {prover}}}")
        assert evaluation_settings(run.layout, asked)["held-out"].sampled[:12] == digest


def test_other_budgets_keep_the_samples_and_restored_settings_the_results(finished: Run) -> None:
    recipe = finished.locked
    finished.submit("evaluation.regret_budgets=[32]")
    assert not any(finished.are_done)
    assert has_samples(finished.evaluation().shard, finished.evaluation().settings)
    budgets = "evaluation.regret_budgets=null"
    for temperature in (0.5, 1.0):
        finished.submit(budgets, f"evaluation.temperature={temperature}")
    assert (finished.locked, all(finished.are_done)) == (recipe, True)


def test_versions_that_were_pruned_are_passed_over_and_named(finished: Run) -> None:
    prune(finished.layout, {0, 18, 19, 20})
    asked = recipe("quickstart", "evaluation.every=6")
    assert "6, 12" in renew(finished.layout, asked, compile_plan(asked, LocalSite()))[-1]
    assert [unit for unit in finished.units if not unit[2]] == [(18, "held-out", False)]
    missing, unmade = finished.missing([0, 6, 12, 18, 20])
    assert missing == ("evaluation on held-out of weights versions 18",)
    assert "6, 12" in unmade[0]


def test_what_a_pruned_version_has_of_other_settings_stays(run: Run) -> None:
    run.finish("evaluation.every=10")
    prune(run.layout, {0, 19, 20})
    run.submit("evaluation.every=10", "evaluation.temperature=0.5")
    assert run.units == [(0, "held-out", False), (10, "held-out", True), (20, "held-out", False)]
    run_evaluation(run.evaluation(1).task)
    assert run.layout.evaluation_shard(10, "held-out", 0).exists()


OTHERS = ", ".join(f"{{name: {name}, problems: {{type: small_world, problems: COUNT}}}}" for name in "bc")
THREE = f"evaluation.benchmarks=[{{name: held-out, problems: {{type: small_world, split: held_out}}}}, {OTHERS}]"


@pytest.mark.parametrize("changed", [True, False], ids=["finished by the same", "finished by the one before"])
@pytest.mark.parametrize(("write", "calls_before"), [
    *(("write_json", 0), ("pass_over", 0), ("write_problems", 0), ("write_problems", 1)),
    *(("write_task", 0), ("write_json", 1), ("write_text", 0), ("_record_changes", 0)),
])  # fmt: skip
def test_a_change_of_benchmarks_cut_short_mixes_nothing(run: Run, write: str, calls_before: int, changed: bool) -> None:
    """Two benchmarks get other problems under the same names, and one stays."""
    before, after = (THREE.replace("COUNT", str(problems)) for problems in (3, 5))
    run.finish(before)
    cut_short(run, write, calls_before, after)
    assert run.submit(after if changed else before) == run.locked
    problems = [len(read_problems(run.layout.benchmark_data(name))) for name in "bc"]
    assert problems == ([5, 5] if changed else [3, 3])
    made = {name: done for _, name, done in run.units}
    assert (made, run.layout.renewal.exists()) == ({"held-out": True, "b": not changed, "c": not changed}, False)


def test_what_jobs_cost_that_are_no_longer_planned_is_reckoned_by_their_role(finished: Run) -> None:
    recipe = finished.locked
    without = finished.submit("evaluation.benchmarks=[]")
    plan = finished.plan
    assert [job.name for job in plan.jobs if job.role is Role.EVALUATION] == []
    for name in ("segment-000.evaluation", "segment-000.evaluation-1"):
        assert resources_of(name, plan, without) == role_resources(recipe, Role.EVALUATION)
    assert resources_of("segment-000.trainer", plan, without) == plan.job("segment-000.trainer").resources


def leave_out(path: Path, **tokens: int) -> None:
    """As the first job does it: these problems, and what their prompts have."""
    omitted_file(path).write_text(json.dumps({"sampling.max_prompt_tokens": 64, "tokens": tokens}))
    write_problems(path, read_problems(path)[len(tokens) :])


def test_a_higher_limit_of_prompts_leaves_all_as_it_is_where_none_was_left_out(finished: Run) -> None:
    finished.submit("sampling.max_prompt_tokens=99", DROP)
    assert (finished.locked.sampling.max_prompt_tokens, finished.opened) == (99, ["report"])


def test_training_problems_that_were_left_out_stay_out_once_anything_was_sampled(run: Run) -> None:
    run.submit(DROP)
    leave_out(run.layout.train_data, a=80, b=90)
    run.finish().submit(DROP, "sampling.max_prompt_tokens=79")
    assert ": a\n" in run.refuses(DROP, "sampling.max_prompt_tokens=80").message(), "the problem that would come back"
    assert ": a, b" in run.refuses("sampling.long_prompts=refuse", "sampling.max_prompt_tokens=79").message()


def test_before_anything_is_sampled_all_data_are_taken_again(run: Run) -> None:
    run.submit(DROP, "data.problems=40")
    leave_out(run.layout.train_data, a=80, b=90)
    run.submit(DROP, "data.problems=40", "sampling.max_prompt_tokens=80")
    assert (len(read_problems(run.layout.train_data)), omitted_problems(run.layout.train_data)) == (40, {})


def test_a_benchmark_whose_problems_come_back_is_evaluated_again(run: Run) -> None:
    run.submit(DROP, MORE)
    leave_out(run.layout.benchmark_data("more"), a=80)
    run.finish().submit(DROP, MORE, "sampling.max_prompt_tokens=70")
    assert run.opened == ["report"]
    run.submit(DROP, MORE, "sampling.max_prompt_tokens=80")
    assert len(read_problems(run.layout.benchmark_data("more"))) == 4
    assert {name: done for _, name, done in run.units} == {"held-out": True, "more": False}


def test_a_benchmark_that_was_added_has_its_prompts_checked_by_its_evaluation(run: Run) -> None:
    run.submit(DROP)
    run.submit(DROP, MORE)
    path = run.layout.benchmark_data("more")
    problems = read_problems(path)
    write_problems(path, [replace(problems[0], problem="and so on " * 40), *problems[1:]])
    check_benchmark(run.evaluation(1).task, "more", STARTING_MODEL)
    assert (read_problems(path), list(omitted_problems(path))) == (problems[1:], [problems[0].id])


def test_the_plan_of_a_begun_run_says_what_submit_would_change_and_changes_nothing(finished: Run) -> None:
    recipe = finished.locked
    assert "submit will" not in finished.planned()
    said = finished.planned(MORE, "evaluation.every=6")
    facts = ("submit will change", "evaluation.every was null and is 6", "6, 12", "segment-000.evaluation, report")
    assert [fact for fact in facts if fact not in said] == []
    assert (finished.locked, finished.opened) == (recipe, [])
    assert not finished.layout.benchmark_data("more").exists()
