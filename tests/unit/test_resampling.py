"""Groups without a signal: which are sampled again, and that it does not depend on who samples them, or when."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import pytest
from basics import INFERENCE, TRAINER
from commands import refusal, typed
from run_of import publish_some, read_events, run_of, say, task_of
from warm_start import build_tokenizer

from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.protocol import Request
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import Prompt
from mrt_hpc.roles.sampling.grading import grader_pool
from mrt_hpc.roles.sampling.round_sampler import Round, Rounds, RoundSampler, rollout_plan
from mrt_hpc.roles.training.iteration_data import RolloutReader
from mrt_hpc.run.archive import read_iteration
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import commit_group, complete_groups
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import draw_places, read_problems
from mrt_hpc.run.records import FinishReason
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.run.weights import Weights

TOKENIZER = build_tokenizer()
END = TOKENIZER.eos_token_id
GROUPS, SIZE, LIMIT = 8, 4, 3
OUTCOME, ADVANTAGE = "sampling.resample=outcome", "sampling.resample=advantage"
CHANGES = (f"sampling.problems_per_iteration={GROUPS}", f"sampling.rollouts_per_problem={SIZE}", "data.problems=64")


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
    return [
        [p.id for p in place]
        for place in draw_places(read_problems(layout.train_data), task_of(layout, TRAINER).recipe, 0)
    ]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, pool: GraderPool) -> RunLayout:
    return sample(run_with(tmp_path_factory.mktemp("reference") / "run", OUTCOME), pool)


@pytest.mark.parametrize(
    ("way", "resample"),
    [("another order", OUTCOME), ("three tasks", OUTCOME), ("a kill", OUTCOME), ("a kill", ADVANTAGE)],
)
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
        assert 0 < len(read_iteration(layout, 0)) < GROUPS
    while not reader(layout).is_complete():
        sample(layout, pool, index := next(tasks), order=index + 7)
    learnt, wanted = reader(layout).data(), reader(reference).data()
    assert learnt.digest == wanted.digest
    assert [list(s.token_ids) for s in learnt.sequences] == [list(s.token_ids) for s in wanted.sequences]


def has_signal(problem: str, recipe: Recipe) -> bool:
    """By the answers of the server, for groups whose rewards are compared."""
    plan = rollout_plan(recipe, 0, SIZE)
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
    assert sorted(complete_groups(layout.groups(0))) == [0, *range(2, GROUPS)]


def test_the_plan_says_how_much_more_may_be_sampled_and_too_few_problems_are_refused(tmp_path: Path) -> None:
    shown = typed("plan", "small_world/grpo", "--set", OUTCOME, "--set", "sampling.resample_limit=5").output
    assert "up to 5 times the groups of an iteration" in shown
    refused = refusal(run_with, tmp_path / "run", OUTCOME, f"data.problems={LIMIT * GROUPS - 1}")
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
