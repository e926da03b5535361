"""The samples of a shard: in the results folder that evaluations of several runs use at once, and in a run; and what is
graded again.
"""

import asyncio
import errno
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from basics import QUICKSTART
from commands import recipe, refusal, typed
from run_of import forget_claims, read_events, run_of
from run_of import task_of as task_named
from samples import rollout, sampled

from mrt_hpc import Recipe, RunLayout
from mrt_hpc.analysis.measures import RunSummary, read_summary
from mrt_hpc.analysis.number_formats import DASH
from mrt_hpc.analysis.report.content import RunRecord
from mrt_hpc.analysis.report.result_sections import results
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.domains.base import grader_digest
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.evaluate.regrade import regrade_run
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.sections import Grading, SmallWorldProblems
from mrt_hpc.roles import evaluation
from mrt_hpc.roles.evaluation import UnitEvaluation
from mrt_hpc.roles.evaluation_summary import summary_of
from mrt_hpc.roles.regrading import Regrader
from mrt_hpc.roles.sampling.serving import OwnServers
from mrt_hpc.roles.stored_parts import StoredParts, grader_of, samples_of, write_results
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.evaluation_settings import Fingerprint, fingerprint_of, settings_of
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import Sampled, commit_group, read_group
from mrt_hpc.run.leases import Observer
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.problems import read_problems, write_problems
from mrt_hpc.run.records import PrefixValue, Problem, Rollout
from mrt_hpc.run.weights import Weights

Problems = Mapping[int, Problem]
Claimed = Mapping[range, list[int]]


CHANGES = (
    "evaluation.benchmarks=[{name: b, samples: 2, problems: {type: small_world, split: held_out, problems: 5}}]",
    "evaluation.problem_shards=2",
)  # fmt: skip
"""The first shard has the problems 0, 2 and 4, the second one 1 and 3."""
BOTH = range(2)
"""The numbers of the samples of a problem."""


def task_of(root: Path, *changes: str, shard: int = 0, shared: bool = True) -> Task:
    (root.parent / "results").mkdir(exist_ok=True)
    where = (f"evaluation.results={root.parent / 'results'}",) if shared else ()
    return task_named(run_of(root, *CHANGES, *where, *changes), "segment-000.evaluation", shard, attempt=root.name)


def weights_of(task: Task, version: int) -> Weights:
    return Weights(version, "digest", task.layout.weights_version(version))


def parts_of(root: Path, *changes: str, shared: bool = True) -> StoredParts:
    task = task_of(root, *changes, shared=shared)
    (benchmark,) = task.experiment.evaluation.benchmarks
    return StoredParts.of(task, task.job.evaluations[0], benchmark, weights_of(task, 0))


@pytest.fixture
def one(tmp_path: Path) -> StoredParts:
    return parts_of(tmp_path / "one")


@pytest.fixture
def two(tmp_path: Path) -> StoredParts:
    return parts_of(tmp_path / "two")


def batch(parts: StoredParts, position: int, numbers: range = BOTH, *, reward: float = 0.0) -> Sampled:
    """Samples of a problem: the first is right and the others are wrong, whatever their rewards say."""
    problem = read_problems(parts.task.layout.benchmark_data("b"))[position]
    texts = [f"</think>\n\n\\boxed{{{'no' if number else problem.answer}}}" for number in numbers]
    return sampled(*(rollout(problem.id, n, text, reward=reward) for n, text in zip(numbers, texts, strict=True)))


def rewards(parts: StoredParts, position: int) -> list[float]:
    return [r.reward for r in parts.whole_samples([position])[position].rollouts]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The problems that evaluations sample from now on, without a server. They are killed after the second one."""
    positions: list[int] = []

    def sample(_: UnitEvaluation, _weights: Weights, parts: StoredParts, _mine: Problems, claimed: Claimed) -> None:
        for samples, places in claimed.items():
            for position in places:
                positions.append(position)
                parts.commit(position, samples, batch(parts, position, samples))
                if len(positions) == 2:
                    raise KeyboardInterrupt

    monkeypatch.setattr(UnitEvaluation, "_sample_missing", sample)
    monkeypatch.setattr(UnitEvaluation, "_await_version", lambda _: None)
    monkeypatch.setattr(OwnServers, "load_ahead", nullcontext)
    monkeypatch.setattr(evaluation, "verified_weights", weights_of)
    monkeypatch.setattr(evaluation, "check_benchmark", lambda *_: None)
    return positions


@pytest.mark.parametrize("shared", [True, False])
def test_an_evaluation_goes_on_where_it_was_killed(tmp_path: Path, drawn: list[int], shared: bool) -> None:
    first, second = (task_of(tmp_path / "one", shard=shard, shared=shared) for shard in (0, 1))
    with pytest.raises(KeyboardInterrupt):
        evaluation.run(first)
    evaluation.run(first)
    assert drawn == [0, 2, 4]
    layout, settings = first.layout, UnitEvaluation(first, first.job.evaluations[0]).settings
    shards = layout.evaluation_shards(0, "b", 2)
    about, ids = read_manifest(shards[0]).about, [p.id for p in read_problems(layout.benchmark_data("b"))]
    grader = grader_of(first.experiment, first.experiment.benchmark("b"))
    assert (about["weights"], about["settings"], about["grader"]) == ("digest", settings.sampled, grader)
    assert {r.problem_id for r in read_group(shards[0]).rollouts} == {ids[p] for p in drawn}
    assert not layout.evaluation_summary(0, "b").exists()
    evaluation.run(second)
    assert drawn == [0, 2, 4, 1, 3]
    summary = read_summary(layout, 0, "b")
    assert (summary.problems, summary.samples, summary.settings) == (5, 2, settings.summarised)
    assert not layout.evaluation_samples(0, "b").exists(), "the shards have them"
    assert len([*(tmp_path / "results").glob("*/problems/*/*")]) == (5 if shared else 0)
    evaluation.run(first)
    assert len(drawn) == 5


def test_two_evaluations_share_the_problems(one: StoredParts, two: StoredParts) -> None:
    assert one.store.directory == two.store.directory
    with one.alive(), two.alive():
        assert one.claim_lacking({BOTH: [0, 2]}) == {BOTH: [0, 2]}
        assert two.claim_lacking({BOTH: [0, 2, 4]}) == {BOTH: [4]}
        one.commit(0, BOTH, batch(one, 0))
        assert (two.lacking_positions([0, 2, 4]), two.claim_lacking({BOTH: [2]})) == ({BOTH: [2, 4]}, {})
    found = replace(two, version=7).whole_samples([0, 2])
    assert {p: [(r.sample, r.weights_version) for r in s.rollouts] for p, s in found.items()} == {0: [(0, 7), (1, 7)]}


@pytest.mark.parametrize("samples", [True, False])
def test_one_waits_for_the_other_and_takes_over(one: StoredParts, two: StoredParts, samples: bool) -> None:
    waiting = threading.Thread(target=two.wait, args=({BOTH: [0]},), daemon=True)
    with one.alive():
        one.claim_lacking({BOTH: [0]})
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive(), "the other one still samples"
        if samples:
            one.commit(0, BOTH, batch(one, 0))
            waiting.join(20)
            assert not waiting.is_alive()
    waiting.join(20)
    assert not waiting.is_alive(), "the other one has ended"
    assert two.claim_lacking(two.lacking_positions([0])) == ({} if samples else {BOTH: [0]})


def test_samples_that_came_between_look_and_lease_are_not_drawn_again(one: StoredParts, two: StoredParts) -> None:
    lacking = one.lacking_positions([0, 2, 4])
    two.store.commit(0, range(1), batch(two, 0, range(1)), "b" * 64)
    two.store.commit(2, BOTH, batch(two, 2), "b" * 64)
    assert one.claim_lacking(lacking) == {range(1, 2): [0], BOTH: [4]}
    assert sorted(path.name for path in one.store.leases.iterdir()) == ["00000.000", "00004.000"]


def test_a_living_lease_is_respected_without_a_look_at_its_run(one: StoredParts, two: StoredParts) -> None:
    with one.alive():
        assert one.claim_lacking({BOTH: [0]}) == {BOTH: [0]}
        shutil.rmtree(one.task.layout.root)
        assert two.claim_lacking({BOTH: [0, 2]}) == {BOTH: [2]}
    assert two.claim_lacking({BOTH: [0]}) == {BOTH: [0]}, "the task of the other run has ended"


def test_the_lease_of_a_task_that_was_killed_is_taken_over_after_the_limit(one: StoredParts, two: StoredParts) -> None:
    """Its heart stays as it was at the last beat. The lease of an earlier attempt passes on at once."""
    now = 100.0
    two = replace(two, task=replace(two.task, observer=Observer(10.0, lambda: now)))
    one.claim_lacking({BOTH: [0, 2]})
    heart = one.store.heart(one.task.holder)
    for beat in (7, 8):
        write_json(heart, {"attempt": one.task.attempt, "beat": beat})
        assert two.claim_lacking({BOTH: [0]}) == {}
        now += 9.0
    assert two.claim_lacking({BOTH: [0]}) == {}, "it has moved in between"
    now += 2.0
    assert two.claim_lacking({BOTH: [0]}) == {BOTH: [0]}
    with replace(one, task=replace(one.task, attempt="again")).alive():
        assert two.claim_lacking({BOTH: [2]}) == {BOTH: [2]}


def test_a_task_beats_beside_its_leases(one: StoredParts, two: StoredParts, monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(_: UnitEvaluation, _weights: Weights, parts: StoredParts, mine: Problems, _claimed: Claimed) -> None:
        assert two.claim_lacking({BOTH: [0, 2]}) == {}
        for position in mine:
            parts.commit(position, BOTH, batch(parts, position))

    monkeypatch.setattr(UnitEvaluation, "_sample_missing", sample)
    problems = dict(enumerate(read_problems(one.task.layout.benchmark_data("b"))))
    UnitEvaluation(one.task, one.task.job.evaluations[0])._fill(weights_of(one.task, 0), one, problems)
    assert two.lacking_positions(problems) == {}
    assert not list((one.store.directory / "hearts").iterdir())


@pytest.mark.parametrize("shared", [True, False])
def test_damaged_samples_are_set_aside_and_lack_again(tmp_path: Path, shared: bool) -> None:
    parts = parts_of(tmp_path / "one", shared=shared)
    for position in (0, 2):
        parts.commit(position, BOTH, batch(parts, position))
    (damaged,) = parts.store.batches(2)
    (damaged.path / "rollouts.parquet").write_bytes(b"damaged")
    assert (set(parts.whole_samples([0, 2])), parts.lacking_positions([0, 2])) == ({0}, {BOTH: [2]})
    place = parts.store.directory if shared else parts.task.layout.root
    assert len([*(place / "set_aside").rglob("rollouts.parquet")]) == 1
    assert len(read_events(parts.task.layout.events, EventKind.SET_ASIDE)) == (0 if shared else 1)
    assert parts._readable(damaged, [0]) is None, "another task has moved it"


OTHERS: dict[str, Callable[[list[Rollout]], Sampled]] = {
    "one twice": lambda right: sampled(right[0], right[0]),
    "too many": lambda right: sampled(*right, replace(right[0], sample=2)),
    "another problem": lambda right: sampled(*(replace(r, problem_id="of another") for r in right)),
    "other stages": lambda right: sampled(*(replace(r, stages=2) for r in right)),
    "a value of no rollout": lambda right: replace(
        sampled(*right), values=[PrefixValue(0, right[0].problem_id, 7, 0, 1.0, 0.0, 0.0, 1, 0.0)]
    ),
}


@pytest.mark.parametrize("found", OTHERS)
def test_a_batch_that_is_not_what_its_name_says_is_set_aside(one: StoredParts, found: str) -> None:
    """All who use a results folder may write there, and a seal is made by any of them."""
    bad = OTHERS[found](batch(one, 0).rollouts)
    one.store.commit(0, BOTH, bad, one.grader)
    assert one.lacking_positions([0]) == {}, "by its name"
    assert (one.whole_samples([0]), one.lacking_positions([0])) == ({}, {BOTH: [0]})
    with pytest.raises(DamagedError):  # nor is it written
        one.commit(0, BOTH, bad)
    one.commit(0, BOTH, batch(one, 0))
    assert rewards(one, 0) == [0.0, 0.0]


@pytest.mark.parametrize("change", ["grading.strict=false", "evaluation.benchmarks.0.problems.extraction=any_box"])
def test_what_another_grader_has_judged_is_judged_again_and_kept(tmp_path: Path, one: StoredParts, change: str) -> None:
    other = parts_of(tmp_path / "two", change)
    assert other.store.directory == one.store.directory, "no samples are drawn for it"
    one.commit(0, BOTH, batch(one, 0, reward=0.5))
    assert rewards(one, 0) == [0.5, 0.5], "by this very grader"
    assert (rewards(other, 0), len(other.store.batches(0)), rewards(one, 0)) == ([1.0, 0.0], 2, [0.5, 0.5])


def test_a_folder_that_takes_no_files_is_refused_with_the_way_out(one: StoredParts) -> None:
    told = refusal(write_results, one.task, Path("results"), Mock(side_effect=PermissionError(errno.EACCES, "results")))
    assert (told.where, "--set evaluation.results=DIR" in str(told.advice)) == (Path("results"), True)


OWN = """
from mrt_hpc.modes.base import Direct
def same(answer: str, gold: str) -> bool:
    return answer == gold
class Own(Direct):
    type: str
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "own_of_results.py"
    path.write_text(OWN)
    yield path
    sys.modules.pop("own_of_results", None)


def test_what_decides_verdicts_makes_another_grader(own_module: Path) -> None:
    def digest(change: str = "seed=7") -> str:
        recipe = load_recipe(QUICKSTART, (*CHANGES, change))
        return grader_of(recipe, recipe.benchmark("b"))

    rule = "evaluation.benchmarks.0.problems.extraction"
    assert len({digest(), *map(digest, (f"{rule}=any_box", "grading.strict=false", "grading.time_limit_s=9"))}) == 4
    assert {digest(), digest(f"{rule}=after_thought"), digest("grading.processes=2")} == {digest()}

    verifier = verifier_of(SmallWorldProblems.model_validate({"verifier": "own_of_results:same"}), Grading())
    before = grader_digest(verifier, 5.0, 1.0)
    own_module.write_text(OWN.replace("    return", '    """Whether both are the same."""  # a comment\n    return'))
    assert grader_digest(verifier, 5.0, 1.0) == before, "docstrings and comments are no code"


def test_a_changed_way_of_evaluating_of_the_user_is_another_fingerprint(one: StoredParts, own_module: Path) -> None:
    def digest() -> str:
        own = one.benchmark.model_validate({**one.benchmark.model_dump(), "mode": {"type": "own_of_results:Own"}})
        return fingerprint_of(one.task.layout, one.task.experiment, own, "w").digest

    assert (before := digest()) == digest()
    own_module.write_text(own_module.read_text() + "\n    extra: int = 1\n")
    assert digest() != before


def test_each_field_makes_another_fingerprint_and_the_folder_names_them_all(one: StoredParts) -> None:
    mine = Fingerprint.model_validate(json.loads(one.store.readable_fingerprint.read_text()))
    assert mine.digest == fingerprint_of(one.task.layout, one.task.experiment, one.benchmark, "digest").digest
    others = {str: "another", int: 9}
    changed = [mine.model_copy(update={name: others.get(type(value), {"a": "b"})}) for name, value in mine]
    assert len({each.digest for each in (mine, *changed)}) == 1 + len(Fingerprint.model_fields)


def test_a_batch_is_written_once_and_verdicts_of_the_wanted_grader_are_preferred(one: StoredParts) -> None:
    store, other = one.store, "b" * 64
    assert store.commit(0, BOTH, batch(one, 0), other) and not store.commit(0, BOTH, batch(one, 2), other)
    ((first, numbers),) = store.choose_batches(0, 2, one.grader)
    problem = batch(one, 0).rollouts[0].problem_id
    assert {r.problem_id for r in store.read(first, numbers, problem).rollouts} == {problem}
    assert first.grader == other[:12]
    store.commit(0, BOTH, batch(one, 0), one.grader)
    for grader in (one.grader, other):
        assert [b.grader for b, _ in store.choose_batches(0, 2, grader)] == [grader[:12]]


def test_some_samples_of_a_batch_have_their_own_counts_and_all_of_their_stages() -> None:
    some = samples_of(sampled(*(rollout("p", number) for number in range(5))), [1, 3])
    assert [r.sample for r in some.rollouts] == [1, 3]
    assert (some.statistics.rollouts, some.statistics.rollout_tokens) == (2, 6)
    rounds = [replace(rollout("p", number), stage=number % 3, stages=3) for number in range(6)]
    assert [r.sample for r in samples_of(sampled(*rounds), [1]).rollouts] == [3, 4, 5]


# -- recorded samples are judged again with the grader of today


@pytest.fixture
def asked() -> Recipe:
    problems = "{type: small_world, split: held_out, problems: 3}"
    return recipe("quickstart", f"evaluation.benchmarks=[{{name: held-out, samples: 2, problems: {problems}}}]")


@pytest.fixture
def run(asked: Recipe, tmp_path: Path) -> RunLayout:
    """A run with one evaluation, of which an earlier grader judged everything as wrong."""
    layout = run_of(tmp_path / "run", recipe=asked)
    benchmark = asked.benchmark("held-out")
    right, wrong = "<text></think>\n\n\\boxed{%s}", "</think>\n\n\\boxed{no number}"
    problems = read_problems(layout.benchmark_data("held-out"))
    texts = [(p.id, n, right % p.answer if n == 0 else wrong) for p in problems for n in range(2)]
    shard = sampled(*(rollout(*text, reward=0.0) for text in texts))
    about = {"weights": "w", "settings": settings_of(layout, asked, benchmark).sampled, "grader": "earlier"}
    commit_group(layout.evaluation_shard(0, "held-out", 0), shard, **about)
    summary_of(layout, asked, benchmark, 0, [shard]).write(layout.evaluation_summary(0, "held-out"))
    return layout


def test_verdicts_that_change_are_written_and_the_earlier_ones_kept(run: RunLayout, asked: Recipe) -> None:
    shard, grader = run.evaluation_shard(0, "held-out", 0), grader_of(asked, asked.benchmark("held-out"))
    before = read_manifest(shard).about
    (found,) = regrade_run(run, print)
    assert (found.samples, len(found.changed), found.accuracy) == (6, 3, (0.0, 0.5))
    assert {(old.sample, old.reward, new.reward) for old, new in found.changed} == {(0, 0.0, 1.0)}
    assert (read_summary(run, 0, "held-out").accuracy, read_summary(run, 0, "held-out").graders) == (0.5, (grader,))
    assert read_manifest(shard).about == {**before, "grader": grader}
    assert sorted(r.reward for r in read_group(shard).rollouts) == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert [path.parent.parent for path in run.set_aside.glob("*/*/MANIFEST.json")] == [*run.set_aside.iterdir()]
    forget_claims(run)
    assert regrade_run(run, print) == [], "nothing is left to do"


def test_the_command_shows_an_answer_with_all_its_gold_answers(run: RunLayout) -> None:
    path = run.benchmark_data("held-out")
    first, *others = read_problems(path)
    write_problems(path, [replace(first, answer=("1000", first.answer)), *others])
    shown = typed("regrade", run.root).output
    for fact in ("3 of 6", "0.0 % -> 50.0 %", f"1000 or {first.answer}", f"mrt-hpc report {run.root}"):
        assert fact in shown


def test_answers_are_found_again_where_the_rule_for_their_place_says(run: RunLayout, asked: Recipe) -> None:
    problem = read_problems(run.benchmark_data("held-out"))[0]
    thought_only = rollout(problem.id, 0, f"so \\boxed{{{problem.answer}}}", reward=1.0)
    (again,) = asyncio.run(Regrader(run, asked, asked.benchmark("held-out"), run.root).all([sampled(thought_only)]))
    assert again.rollouts == [replace(thought_only, answer=None, reward=0.0)]


def test_verdicts_of_several_graders_bring_a_warning() -> None:
    """Also where each version has one, but another one than the first: then no gain over the first is shown."""
    first, last = (summarise_evaluation(v, "b", {"p": [v / 3], "q": [v / 3]}, graders=("a",)) for v in (0, 3))
    for graders, several in ((("a",), False), (("a", "b"), True), (("b",), True)):
        evaluations = (first, last.model_copy(update={"graders": graders}))
        found = RunSummary(recipe="r", algorithm="grpo", model="m", iterations_planned=1, evaluations=evaluations)
        section = results([RunRecord("r", found)])
        assert any("mrt-hpc regrade" in text for text in section.paragraphs) is several
        assert any("points against version 0" in text for text in section.paragraphs) is not several
        assert (section.tables[0].rows[1][6] == DASH) is several
