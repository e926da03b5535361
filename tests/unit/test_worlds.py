"""The worlds of `check --referee`: their exact gradients, what credits do there, and what the command prints."""

import random
import shutil
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from basics import ROOT
from commands import typed
from predict_worlds import ARMS, PROBLEMS, ROLLOUTS, WorldTables, gradients, learnt_accuracies, shuffled
from study_worlds import EXACT, expected_gradient
from text_worlds import WORLDS as TEXT_WORLDS
from text_worlds import Asked

from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.algorithms.grpo import Grpo
from mrt_hpc.algorithms.mrt_online import MrtOnline
from mrt_hpc.testing.referee import GRPO, OWN, SHUFFLED, WorldFinding, with_shuffled_progress, world_findings
from mrt_hpc.testing.worlds import WORLDS, World, group_gradients, probabilities, rollout_of

STEP = 1e-5
NAMED = {world.name: world for world in WORLDS}


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_the_exact_gradient_is_that_of_finite_differences(world: World) -> None:
    logits = world.logits + np.linspace(-0.3, 0.3, len(world.starts))
    numbers = [0, len(logits) - 1]
    steps = STEP * np.eye(len(logits))[numbers]
    rises = [world.expected_reward(logits + s) - world.expected_reward(logits - s) for s in steps]
    np.testing.assert_allclose(world.exact_gradient(logits)[numbers], np.array(rises) / (2 * STEP), atol=1e-8)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_grpo_that_leaves_one_out_has_the_exact_gradient_on_average(world: World) -> None:
    groups = 600
    sequences = Grpo().learnt(world.batch(world.logits, groups, 4, seed=1)).sequences
    of_groups = group_gradients(sequences, world.logits, groups)
    errors = of_groups.std(axis=0) / np.sqrt(groups)
    assert (abs(of_groups.mean(axis=0) - world.exact_gradient(world.logits)) < 4 * errors).all()


ALGORITHMS = {
    "grpo": Grpo(), "grpo + constant": MrtOnline(credit="constant", alpha=0.2),
    "r - V_j": MrtOnline(baseline="prefix", alpha=0.0), "mrt_online, alpha 2": MrtOnline(alpha=2.0),
    "progress to go": MrtOnline(credit="to_go"), "area to go": MrtOnline(credit="area"),
}  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("world", [NAMED["ladder"], NAMED["trap"]], ids=lambda world: world.name)
def test_the_predictions_take_the_gradients_of_the_package(world: World, name: str) -> None:
    tables, logits = WorldTables(world), world.logits[None]
    sampled = tables.sample(logits, np.random.default_rng(0), update=1)
    algorithm, size = ALGORITHMS[name], len(world.starts)
    if name == "area to go":
        algorithm = algorithm.model_copy(update={"budget_tokens": size})
    rollouts, values = [], []
    for group, sample in np.ndindex(PROBLEMS, ROLLOUTS):
        decided = int(sampled.decided[0, group, sample].sum())
        thought = tuple(sampled.actions[0, group, sample, :decided].astype(int))
        right = bool(sampled.rewards[0, group, sample])
        rollouts.append(rollout_of(thought, probabilities(world.logits), group, sample, right=right))
        values.append(dict(enumerate(sampled.values[0, group, sample, : decided + 1])))
    sequences = algorithm.learnt(Batch(rollouts, values, [], "", np.zeros(0), [])).sequences
    expected = group_gradients(sequences, world.logits, PROBLEMS).mean(axis=0)
    arm = next(arm for arm in ARMS if arm.name == name)
    np.testing.assert_allclose(gradients(arm, sampled, logits)[0], expected, atol=1e-7)


def test_a_table_learns_what_the_enumeration_says() -> None:
    tables = WorldTables(NAMED["product"])
    logits = np.array([NAMED["product"].logits, NAMED["product"].logits + 1.0])
    np.testing.assert_allclose(tables.accuracies(logits), [NAMED["product"].expected_reward(row) for row in logits])
    assert (learnt_accuracies(tables, ARMS[0], 0.4, seeds=3)[:, -1] > 0.95).all()


def test_permuted_progress_keeps_its_numbers_within_each_batch() -> None:
    tables = WorldTables(NAMED["trap"])
    sampled = tables.sample(np.tile(tables.world.logits, (2, 1)), np.random.default_rng(0), update=1)
    steps = np.diff(sampled.values)
    moved = shuffled(steps, sampled)
    for seed in range(2):
        own = sampled.decided[seed]
        np.testing.assert_array_equal(np.sort(moved[seed][own]), np.sort(steps[seed][own]))
        assert not moved[seed][~own].any()
    assert not np.array_equal(moved, steps)


def test_shuffled_progress_is_the_same_numbers_on_other_episodes() -> None:
    batch = NAMED["ladder"].batch(NAMED["ladder"].logits, 4, 4, seed=0)
    shuffled = with_shuffled_progress(batch, seed=0)
    steps = [np.concatenate([np.diff(v) for v in one.value_arrays]) for one in (batch, shuffled)]
    assert Counter(np.round(steps[0], 9)) == Counter(np.round(steps[1], 9))
    assert not np.allclose(*steps)


@pytest.mark.parametrize("name", EXACT)
def test_a_thought_in_text_is_worth_what_the_enumeration_says(name: str) -> None:
    """And its first paragraphs are as often right as the policy's first decisions."""
    text, exact = TEXT_WORLDS[name], EXACT[name]
    rng = random.Random(0)
    by_value: dict[float, list[bool]] = defaultdict(list)
    first: list[bool] = []
    for _ in range(3000):
        task = text.task(rng)
        thought = text.thought(task, rng)
        decisions = text.decisions("\n\n".join(thought))
        first.append(decisions[0])
        asked = task.asked[0] if isinstance(text, Asked) else 0
        right = text.answer(task, thought, rng) == text.solution(task)
        by_value[exact.value(tuple(map(int, decisions)), asked)].append(right)
    for value, rights in [*by_value.items(), (exact.starts[0], first)]:
        assert abs(np.mean(rights) - value) <= 4 * np.sqrt(value * (1 - value) / len(rights)), value


@pytest.mark.parametrize("name", ["asked3", "trap"])
def test_the_study_expects_the_exact_gradient_of_an_outcome(name: str) -> None:
    expected = expected_gradient(EXACT[name], Grpo())
    np.testing.assert_allclose(expected, EXACT[name].exact_gradient(EXACT[name].logits), atol=1e-12)


def found(algorithm: MrtOnline, *names: str) -> list[WorldFinding]:
    return list(world_findings(algorithm, "own", [NAMED[name] for name in names]))


def test_a_credit_pays_where_steps_are_many_and_leads_into_the_trap() -> None:
    many, few, ladder, trap = found(MrtOnline(), "asked, 12 steps", "asked, 3 steps", "ladder", "trap")
    gains = [finding.ratio(OWN, GRPO) for finding in (many, few)]
    assert gains[0] is not None and gains[1] is not None
    assert gains[0].low > gains[1].high
    for finding in (many, ladder):
        assert finding.verdict.endswith("leads to more reward, and it has more signal than its shuffled self")
    assert "leads away from reward" in trap.verdict


def test_progress_to_go_never_leads_into_the_trap() -> None:
    [trap] = found(MrtOnline(credit="to_go", alpha=4.0), "trap")
    assert "leads to more reward" in trap.verdict


def test_values_have_a_price() -> None:
    [finding] = found(MrtOnline(alpha=0.0), "asked, 3 steps")
    rollouts, tokens = finding.ratio(OWN, GRPO), finding.ratio_for_tokens(OWN, GRPO)
    assert rollouts is not None
    assert tokens is not None
    assert rollouts.value == pytest.approx(1.0)
    assert tokens.value == pytest.approx(np.sqrt(42 / 50))  # three episodes of 14 tokens, and four values of 2
    assert finding.ratio(OWN, SHUFFLED) == rollouts


def test_a_user_types_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "recipes" / "examples" / "my_method.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    said = typed("check", "my_method:LastEpisode", "--referee", "--set", "algorithm.weight=0.5").output
    assert "my_method:LastEpisode, shuffled" in said
    assert all(f"\n{world.name} (" in said for world in WORLDS)


@pytest.mark.parametrize(("arguments", "expected"), [
    (("my_method:Cautious", "--referee"), "my_method.py has LastEpisode, GainsOnly"),
    (("my_method:GainsOnly",), "neither is named"),
    (("my_method:LastEpisode", "--referee", "--set", "algorithm.weight=-1"), "a number of at least 0"),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused(
    arguments: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ROOT / "recipes" / "examples" / "my_method.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert expected in " ".join(typed("check", *arguments, exits=2).output.split())
