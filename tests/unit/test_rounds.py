"""Who samples what: how the groups of an iteration are shared out, rounds that overlap, and groups without a signal."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from basics import INFERENCE, TRAINER
from commands import refusal, typed
from run_of import publish_some, read_events, run_of, say, task_of
from samples import sampled
from warm_start import build_tokenizer

from mrt_hpc import ExitCode, Prompter, Recipe, RunLayout, UserError
from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.protocol import Request
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.recipe.sections import Prompt
from mrt_hpc.roles.sampling import rolling_sampler, round_sampler
from mrt_hpc.roles.sampling.grading import grader_pool
from mrt_hpc.roles.sampling.rolling_sampler import RollingSampler
from mrt_hpc.roles.sampling.round_sampler import Round, Rounds, RoundSampler
from mrt_hpc.roles.training.iteration_data import RolloutReader
from mrt_hpc.run.archive import read_iteration
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import commit_group, complete_groups
from mrt_hpc.run.problems import draw_places, read_problems
from mrt_hpc.run.records import FinishReason
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.run.weights import Weights

GROUPS, ITERATIONS = 10, 3


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    schedule = f"schedule={{iterations: {ITERATIONS}, iterations_per_job: {ITERATIONS}, max_staleness: 1}}"
    changes = (f"sampling.problems_per_iteration={GROUPS}", schedule, "resources.inference.tasks=4")
    layout = run_of(tmp_path / "run", *changes)
    publish_some(layout, 0)
    say(layout, TRAINER, TaskState.RUNNING)
    return layout


def complete(layout: RunLayout, iteration: int, *positions: int) -> None:
    for position in positions or range(GROUPS):
        commit_group(layout.group(iteration, position), sampled())


def rounds(layout: RunLayout, index: int = 0) -> Rounds:
    return Rounds(task_of(layout, INFERENCE, index), problems=1000)


def found(layout: RunLayout, index: int = 0) -> Round:
    return cast("Round", rounds(layout, index).await_round())


@pytest.mark.parametrize("at_work", [(0,), (0, 2), (0, 1, 2, 3)])
def test_every_missing_group_has_one_taker_among_those_at_work(layout: RunLayout, at_work: tuple[int, ...]) -> None:
    complete(layout, 0, 3, 7)
    for index in range(4):
        say(layout, INFERENCE, TaskState.RUNNING if index in at_work else TaskState.STOPPED, index)
    shares = [found(layout, index).positions for index in at_work]
    assert sorted(p for share in shares for p in share) == [p for p in range(GROUPS) if p not in (3, 7)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_what_others_hold_is_not_offered_until_they_are_lost(layout: RunLayout) -> None:
    for index in (0, 1):
        say(layout, INFERENCE, TaskState.RUNNING, index)
    held = found(layout, 0)
    assert all(held.leases.claim(position) for position in held.positions)
    assert set(found(layout, 1).positions).isdisjoint(held.positions)
    say(layout, INFERENCE, TaskState.STOPPED)
    layout.heart(INFERENCE, 0).unlink()
    assert found(layout, 1).positions == list(range(GROUPS))


def test_work_goes_no_further_ahead_than_the_staleness_limit(layout: RunLayout) -> None:
    complete(layout, 0)
    assert found(layout).iteration == 1
    complete(layout, 1)
    assert rounds(layout)._look() is None, "the trainer may bring the next weights version"
    publish_some(layout, 1)
    assert (found(layout).iteration, found(layout).version) == (2, 1)
    assert rounds(layout).next_round(0, sampling=()) is None, "the server has not loaded it yet"
    work = rounds(layout).next_round(1, sampling=())
    assert work and (work.iteration, work.version) == (2, 1)


def test_a_task_does_not_begin_once_more_what_it_is_sampling(layout: RunLayout) -> None:
    """It could: the lease of an attempt that was interrupted is its own."""
    complete(layout, 0, 0)
    held = found(layout)
    assert all(held.leases.claim(position) for position in (1, 2, 3))
    work = rounds(layout).next_round(0, sampling={round_sampler.GroupPlace(0, 1), round_sampler.GroupPlace(0, 3)})
    assert work and work.positions == [2, 4, 5, 6, 7, 8, 9]
    nothing_left = {
        round_sampler.GroupPlace(iteration, position) for iteration in range(2) for position in range(GROUPS)
    }
    assert rounds(layout).next_round(0, nothing_left) is None


def test_inference_ends_when_the_segment_is_trained(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_sampler, "LOOK_WHILE_STARTING_S", 0.0)
    watch = round_sampler.NeedWatch(rounds(layout))
    watch.look()
    publish_some(layout, ITERATIONS)
    assert rounds(layout)._look() == (None,), "at once, though the trainer still runs"
    assert rounds(layout).await_round() is None
    with pytest.raises(round_sampler.NotNeededError):  # a server that is starting is given up
        watch.look()


def test_inference_ends_soon_after_the_trainer_has_failed_or_when_all_is_sampled_without_it(layout: RunLayout) -> None:
    assert found(layout).positions
    say(layout, TRAINER, TaskState.FAILED)
    refused = refusal(rounds(layout).await_round)
    assert (refused.exit_code, TRAINER in refused.message()) == (ExitCode.FATAL, True)
    say(layout, TRAINER, TaskState.RUNNING)
    for iteration in range(ITERATIONS):
        complete(layout, iteration)
    assert rounds(layout)._look() is None, "the trainer may find a group damaged"
    say(layout, TRAINER, TaskState.STOPPED)
    assert rounds(layout).await_round() is None


@dataclass
class Sampled:
    """Stands where a sampler stands: each round is claimed at once, and ends when it is told to."""

    ends: dict[int, asyncio.Event] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    fails: int | None = None
    sampling: frozenset[object] = frozenset()

    async def sample(self, work: Round, loading_s: float, all_claimed: asyncio.Event) -> None:
        self.told.append(f"begin {work.iteration} ({loading_s:g} s of loading)")
        all_claimed.set()
        await self.ends.setdefault(work.iteration, asyncio.Event()).wait()
        if work.iteration == self.fails:
            raise UserError("the server is gone")
        self.told.append(f"end {work.iteration}")

    def end_all(self) -> None:
        for end in self.ends.values():
            end.set()


def a_round(iteration: int) -> Round:
    return Round(iteration, 0, [0], cast("Any", None), 0.0)


def rolled(sampled: Sampled, following: Callable[[], Round | None], swap: Callable[[], bool] = lambda: False) -> None:
    sampler = RollingSampler(cast("RoundSampler", sampled), lambda _: following(), swap)
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(rolling_sampler, "LONGEST_LOOK_S", 0.01)
        asyncio.run(asyncio.wait_for(sampler.sample(a_round(0), 2.5), timeout=20))


def test_a_round_begins_while_the_one_before_is_sampled() -> None:
    sampled, left = Sampled(), [1, 2]

    def following() -> Round | None:
        if left:
            return a_round(left.pop(0))
        sampled.end_all()  # looked for again at intervals, until the last round has ended
        return None

    rolled(sampled, following)
    assert sampled.told[:3] == [f"begin {i} ({s} s of loading)" for i, s in ((0, "2.5"), (1, "0"), (2, "0"))]
    assert sorted(sampled.told[3:]) == ["end 0", "end 1", "end 2"]


def test_newer_weights_are_loaded_while_rounds_are_sampled_and_make_others_possible() -> None:
    sampled, held = Sampled(), [0]

    def swap() -> bool:
        held[0] += bool(sampled.told)
        return bool(sampled.told)

    def following() -> Round | None:
        if held[0] and len(sampled.told) == 1:
            return a_round(1)
        if len(sampled.told) > 1:
            sampled.end_all()
        return None

    rolled(sampled, following, swap)
    assert sampled.told[1].startswith("begin 1"), "it could begin only with newer weights"


def test_the_first_failure_ends_all() -> None:
    sampled = Sampled(fails=0)

    def following() -> Round | None:
        if len(sampled.told) == 1:
            return a_round(1)
        sampled.ends[0].set()
        return None

    assert "the server is gone" in str(refusal(rolled, sampled, following))
    assert "end 1" not in sampled.told
    with pytest.raises(UserError, match="refused"):  # weights that cannot be loaded
        rolled(Sampled(), lambda: None, Mock(side_effect=UserError("the vLLM server refused")))


# -- groups without a signal


TOKENIZER = build_tokenizer()
END = TOKENIZER.eos_token_id
KEPT, SIZE, LIMIT = 8, 4, 3
OUTCOME, ADVANTAGE = "sampling.resample=outcome", "sampling.resample=advantage"
CHANGES = (f"sampling.problems_per_iteration={KEPT}", f"sampling.rollouts_per_problem={SIZE}", "data.problems=64")


def kind(problem_id: str) -> int:
    """0: all answers are wrong; 1: all are right; 2: the seed decides; 3: only the seeds of branches do."""
    return derive_seed(0, "kind", problem_id) % 4


def is_right(problem_id: str, seed: int, *, is_branch: bool = False) -> bool:
    decides = 3 if is_branch else 2
    return kind(problem_id) == 1 or (kind(problem_id) in (2, decides) and seed % 2 == 0)


@dataclass
class Server:
    """Answers by problem and seed alone, in an order of its own, and ends at a problem, once a group is there."""

    golds: dict[str, Any]
    order: int = 0
    ends_at: str = ""
    groups: Path = Path()

    async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        if requests[0].family == self.ends_at:
            while not complete_groups(self.groups):
                await asyncio.sleep(0.01)
            raise RuntimeError("killed")
        due = [(number, place) for number, request in enumerate(requests) for place in range(len(request.seeds))]
        random.Random(derive_seed(self.order, "due", requests[0].family)).shuffle(due)
        for number, place in due:
            await asyncio.sleep(derive_seed(self.order, "pause", requests[number].seeds[place]) % 5 / 2000)
            yield self._completion(requests[number], number, place)

    def _completion(self, request: Request, number: int, place: int) -> Completion:
        seed, limit = request.seeds[place], request.settings.max_tokens
        answer = self.golds[request.family] if is_right(request.family, seed, is_branch=limit < 64) else "-1000"
        text = f"{answer}}}" if limit < 64 else f"{'Well. ' * (seed % 5)}\n</think>\n\n\\boxed{{{answer}}}"
        ids = [*TOKENIZER.encode(text, add_special_tokens=False), END][:limit]
        count, reason = len(request.prompt_ids), FinishReason.STOP if ids[-1] == END else FinishReason.LENGTH
        return Completion(number, place, seed, ids, [-0.5] * len(ids), reason, 0, count, 0, [], 0.0, 0.0)


def run_with(root: Path, *changes: str, recipe: str = "small_world/grpo") -> RunLayout:
    layout = run_of(root, *CHANGES, *changes, recipe=recipe)
    publish_some(layout, 0)
    say(layout, TRAINER, TaskState.RUNNING)
    return layout


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraderPool]:
    recipe = task_of(run_with(tmp_path_factory.mktemp("pool") / "run"), INFERENCE).recipe
    with grader_pool(recipe, recipe.problems) as started:
        yield started


def sample(layout: RunLayout, pool: GraderPool, index: int = 0, **server: Any) -> RunLayout:
    """One task samples the round that it finds."""
    task, problems = task_of(layout, INFERENCE, index), read_problems(layout.train_data)
    work = cast("Round", Rounds(task, len(problems)).await_round())
    policy = ProverModel.of(Prompter(TOKENIZER, Prompt(instruction=""), (END,)))
    asked, client = task.recipe.prover, Server({p.id: p.answer for p in problems}, **server)
    maker = None if asked is None else ProverFactory.of(asked, policy, task.recipe.seed)
    held, room = Weights(0, "digest", layout.weights_version(0)), asyncio.Semaphore(7)
    sampler = RoundSampler(task, policy, maker, problems, pool, client, client, lambda: held, room, set())
    asyncio.run(asyncio.wait_for(sampler.sample(work), timeout=60))
    return layout


def reader(layout: RunLayout) -> RolloutReader:
    return RolloutReader(task_of(layout, TRAINER), 0)


def places(layout: RunLayout) -> list[list[str]]:
    drawn = draw_places(read_problems(layout.train_data), task_of(layout, TRAINER).recipe, 0)
    return [[problem.id for problem in place] for place in drawn]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, pool: GraderPool) -> RunLayout:
    return sample(run_with(tmp_path_factory.mktemp("reference") / "run", OUTCOME), pool)


@pytest.mark.parametrize(("way", "resample"), [
    ("another order", OUTCOME), ("three tasks", OUTCOME), ("a kill", OUTCOME), ("a kill", ADVANTAGE)
])  # fmt: skip
def test_the_same_ids_are_trained_whoever_samples_them(
    tmp_path: Path, pool: GraderPool, reference: RunLayout, way: str, resample: str
) -> None:
    """For GRPO advantages are those of outcomes."""
    layout = run_with(tmp_path / "run", resample, f"resources.inference.tasks={3 if way == 'three tasks' else 1}")
    tasks = cycle(range(3 if way == "three tasks" else 1))
    for index in range(3 if way == "three tasks" else 1):
        say(layout, INFERENCE, TaskState.RUNNING, index)
    if way == "a kill":
        again = next(p for p, group in enumerate(read_iteration(reference, 0)) if group.statistics.thrown_groups > 1)
        with pytest.raises(RuntimeError, match="killed"):
            sample(layout, pool, order=5, ends_at=places(layout)[again][2], groups=layout.groups(0))
        assert 0 < len(read_iteration(layout, 0)) < KEPT
    while not reader(layout).is_complete():
        sample(layout, pool, index := next(tasks), order=index + 7)
    learnt, wanted = reader(layout).data(), reader(reference).data()
    assert learnt.digest == wanted.digest
    assert [list(s.token_ids) for s in learnt.sequences] == [list(s.token_ids) for s in wanted.sequences]


def has_signal(problem: str, recipe: Recipe) -> bool:
    """By the answers of the server, for groups whose rewards are compared."""
    plan = round_sampler.rollout_plan(recipe, 0, SIZE)
    return len({is_right(problem, plan.rollout_seed(problem, number)) for number in range(SIZE)}) > 1


def test_a_place_takes_its_next_problem_until_rewards_differ_and_its_last_one_in_any_case(reference: RunLayout) -> None:
    recipe = task_of(reference, TRAINER).recipe
    for place, group in zip(places(reference), groups := read_iteration(reference, 0), strict=True):
        kept = next((n for n, problem in enumerate(place) if has_signal(problem, recipe)), LIMIT - 1)
        assert (group.rollouts[0].problem_id, group.statistics.thrown_groups) == (place[kept], kept)
        assert group.statistics.rollouts == SIZE * (kept + 1), "the cost is that of all groups of the place"
        own = sum(rollout.tokens for rollout in group.rollouts)
        assert group.statistics.rollout_tokens == own + group.statistics.thrown_tokens
    assert {group.statistics.thrown_groups for group in groups} == {0, 1, 2}
    committed = read_events(reference.events, EventKind.GROUP_COMMITTED)
    assert sum(e["thrown_tokens"] for e in committed) == sum(g.statistics.thrown_tokens for g in groups) > 0


def test_a_group_of_another_problem_of_its_place_is_set_aside(tmp_path: Path, reference: RunLayout) -> None:
    """Only the number of groups that were thrown away says which problem a place has."""
    layout = run_with(tmp_path / "run", OUTCOME)
    for position, group in enumerate(read_iteration(reference, 0)):
        statistics = replace(group.statistics, thrown_groups=(group.statistics.thrown_groups + (position == 1)) % LIMIT)
        commit_group(layout.group(0, position), replace(group, statistics=statistics))
    assert not reader(layout).is_complete()
    assert sorted(complete_groups(layout.groups(0))) == [0, *range(2, KEPT)]


def test_the_plan_says_how_much_more_may_be_sampled_and_too_few_problems_are_refused(tmp_path: Path) -> None:
    shown = typed("plan", "small_world/grpo", "--set", OUTCOME, "--set", "sampling.resample_limit=5").output
    assert "up to 5 times the groups of an iteration" in shown
    refused = refusal(run_with, tmp_path / "run", OUTCOME, f"data.problems={LIMIT * KEPT - 1}")
    assert refused.where == "sampling.problems_per_iteration"


@pytest.mark.parametrize(("resample", "again"), [("none", ()), ("advantage", (0, 1)), ("outcome", (0, 1, 3))])
def test_progress_is_a_signal_where_all_rewards_are_equal(
    tmp_path: Path, pool: GraderPool, resample: str, again: tuple[int, ...]
) -> None:
    changes = (f"sampling.resample={resample}", "prover={type: boxed_answer, branches: 2, max_tokens: 4}")
    layout = sample(run_with(tmp_path / "run", *changes, recipe="small_world/mrt_online"), pool)
    assert reader(layout).is_complete()
    thrown = set[int]()
    for place, group in zip(places(layout), read_iteration(layout, 0), strict=True):
        thrown |= {kind(problem) for problem in place[: group.statistics.thrown_groups]}
        assert group.rollouts[0].problem_id == place[-1] or kind(group.rollouts[0].problem_id) not in again
    assert thrown == {*again}
