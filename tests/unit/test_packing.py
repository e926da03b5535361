"""Packing: every sequence once, budgets kept, ranks in step."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.training.packing import (
    MicroStep,
    blocks_of,
    pack,
    pack_end_to_end,
    pack_shared,
    padded_tokens,
    split_by_group,
)
from mrt_hpc.training.prefixes import SharedRow, SortedSequences

LENGTHS = st.lists(st.integers(1, 300), max_size=80)


@given(LENGTHS, st.integers(1, 8), st.integers(1, 500))
def test_every_sequence_is_packed_exactly_once(lengths: list[int], world_size: int, max_tokens: int) -> None:
    plan = pack(lengths, world_size, max_tokens)
    indices = [i for step in plan for batch in step for i in batch]
    assert sorted(indices) == list(range(len(lengths)))


@given(LENGTHS, st.integers(1, 8), st.integers(1, 500))
def test_every_rank_takes_part_in_every_step(lengths: list[int], world_size: int, max_tokens: int) -> None:
    plan = pack(lengths, world_size, max_tokens)
    assert all(len(step) == world_size for step in plan)
    assert all(any(batch for batch in step) for step in plan)


@given(LENGTHS, st.integers(1, 8), st.integers(1, 500))
def test_the_budget_holds_except_for_a_longer_sequence_alone(
    lengths: list[int], world_size: int, max_tokens: int
) -> None:
    batches = [batch for step in pack(lengths, world_size, max_tokens) for batch in step]
    assert all(len(batch) <= 1 or padded_tokens(lengths, batch) <= max_tokens for batch in batches)


@given(LENGTHS, st.integers(1, 300))
def test_more_ranks_never_need_more_steps(lengths: list[int], max_tokens: int) -> None:
    steps = [len(pack(lengths, world_size, max_tokens)) for world_size in (1, 2, 4)]
    assert steps == sorted(steps, reverse=True)


def test_like_lengths_go_together() -> None:
    assert pack([10, 2, 9, 2, 2], 1, 20) == [((0, 2),), ((1, 3, 4),)]


def test_two_ranks_share_the_work_that_one_pass_could_hold() -> None:
    assert pack([8, 8, 8, 8], 2, 1000) == [((0, 1), (2, 3))]


def test_a_rank_without_work_gets_a_filler() -> None:
    assert pack([5], 3, 100) == [((0,), (), ())]


def test_a_sequence_beyond_the_budget_goes_alone() -> None:
    assert pack([300, 10, 10], 1, 100) == [((0,),), ((1, 2),)]


def test_nothing_packs_into_nothing() -> None:
    assert pack([], 2, 100) == []


@given(LENGTHS, st.integers(1, 8), st.integers(1, 500))
def test_end_to_end_every_sequence_is_packed_once_and_every_rank_takes_part(
    lengths: list[int], world_size: int, max_tokens: int
) -> None:
    plan = pack_end_to_end(lengths, world_size, max_tokens)
    assert sorted(i for step in plan for batch in step for i in batch) == list(range(len(lengths)))
    assert all(len(step) == world_size and any(step) for step in plan)


@given(LENGTHS, st.integers(1, 8), st.integers(1, 500))
def test_end_to_end_the_budget_is_one_of_real_tokens(lengths: list[int], world_size: int, max_tokens: int) -> None:
    batches = [batch for step in pack_end_to_end(lengths, world_size, max_tokens) for batch in step]
    assert all(len(batch) <= 1 or sum(lengths[i] for i in batch) <= max_tokens for batch in batches)


@given(LENGTHS, st.integers(1, 8), st.integers(300, 900))
def test_end_to_end_needs_at_most_twice_the_least_number_of_steps(
    lengths: list[int], world_size: int, max_tokens: int
) -> None:
    """First fit leaves at most one micro-batch less than half full."""
    least = -(-sum(lengths) // (max_tokens * world_size))
    assert len(pack_end_to_end(lengths, world_size, max_tokens)) <= 2 * least


def test_end_to_end_unlike_lengths_share_a_micro_batch() -> None:
    assert pack_end_to_end([10, 2, 9, 2, 2], 1, 25) == [((0, 1, 2, 3, 4),)]
    assert pack([10, 2, 9, 2, 2], 1, 25) == [((0, 2),), ((1, 3, 4),)]


def test_end_to_end_two_ranks_get_equal_shares() -> None:
    assert pack_end_to_end([8, 7, 2, 1], 2, 1000) == [((0, 3), (1, 2))]


def test_end_to_end_a_rank_without_work_gets_a_filler_and_nothing_needs_no_step() -> None:
    assert pack_end_to_end([5], 3, 100) == [((0,), (), ())]
    assert pack_end_to_end([], 2, 100) == []


IDS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), max_size=30)


def sequences(ids: list[list[int]]) -> SortedSequences:
    return SortedSequences.of([np.array(tokens, dtype=np.int64) for tokens in ids])


def nodes(ids: list[list[int]]) -> int:
    """The number of different prefixes: the least number of positions that hold all sequences."""
    return len({tuple(tokens[: n + 1]) for tokens in ids for n in range(len(tokens))})


def positions(ids: list[list[int]], plan: list[MicroStep]) -> list[int]:
    """Of each micro-batch."""
    return [nodes([ids[i] for i in share]) for step in plan for share in step]


@given(IDS.filter(len))
def test_a_shared_row_has_every_prefix_once_and_every_path(ids: list[list[int]]) -> None:
    row = SharedRow.of([np.array(tokens) for tokens in ids])
    assert len(row.ids) == len(row.places) == sum(row.own) == nodes(ids)
    ends = list(accumulate(row.own))
    for index, path, own, end in zip(row.order, row.paths, row.own, ends, strict=True):
        assert row.ids[path].tolist() == ids[index]
        assert row.places[path].tolist() == list(range(len(ids[index])))
        assert path[len(path) - own :].tolist() == list(range(end - own, end))


@given(IDS, st.data())
def test_positions_are_counted_without_a_row(ids: list[list[int]], data: st.DataObject) -> None:
    found = sequences(ids)
    some = data.draw(st.lists(st.sampled_from(range(len(ids))), unique=True)) if ids else []
    assert found.positions(found.places(some)) == nodes([ids[i] for i in some])
    assert found.run_positions(slice(0, len(ids))) == nodes(ids) if ids else True


@given(IDS, st.integers(1, 4), st.integers(1, 100))
def test_shared_every_sequence_is_packed_once_and_the_budget_is_one_of_shared_positions(
    ids: list[list[int]], world_size: int, max_tokens: int
) -> None:
    plan = pack_shared(sequences(ids), world_size, max_tokens)
    assert sorted(i for step in plan for share in step for i in share) == list(range(len(ids)))
    assert all(len(step) == world_size and any(step) for step in plan)
    for step in plan:
        for share in step:
            longest = max((len(ids[i]) for i in share), default=0)
            assert nodes([ids[i] for i in share]) <= max(max_tokens, longest)


@given(IDS, st.integers(1, 100))
def test_sharing_never_adds_positions(ids: list[list[int]], max_tokens: int) -> None:
    assert sum(positions(ids, pack_shared(sequences(ids), 1, max_tokens))) <= sum(len(tokens) for tokens in ids)


def branches(problem: int, prefix: int, count: int, tokens: int) -> list[list[int]]:
    """Continuations of one prefix, all different from the first token on."""
    start = 1000 * problem
    return [[start] * prefix + [start + 1 + n] * tokens for n in range(count)]


def test_branches_of_one_prefix_stay_together_and_share_it() -> None:
    ids = [*branches(1, 50, 5, 10), *branches(2, 50, 5, 10)]
    order = [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]
    plan = pack_shared(sequences([ids[i] for i in order]), 1, 120)
    assert [{order[i] // 5 for i in share} for step in plan for share in step] in ([{0}, {1}], [{1}, {0}])
    assert positions([ids[i] for i in order], plan) == [100, 100]


def test_a_prefix_too_long_for_one_micro_batch_is_computed_as_seldom_as_the_budget_allows() -> None:
    ids = branches(1, 50, 8, 10)
    assert positions(ids, pack_shared(sequences(ids), 1, 100)) == [90, 90]


def test_equal_sequences_longer_than_the_budget_are_computed_once() -> None:
    ids = branches(1, 200, 1, 10) * 3
    assert positions(ids, pack_shared(sequences(ids), 1, 100)) == [210]


def test_a_short_prefix_of_long_sequences_does_not_keep_them_together() -> None:
    """Else the micro-batches would be filled badly: two of 40 of the first prompt, and one of 90 of the second."""
    ids = [[1, 1, *[10 + n] * size] for n, size in enumerate((40, 40, 40))] + [[2, 2, *[20] * 54]] * 1
    assert len(pack_shared(sequences(ids), 1, 100)) == 2


def test_shared_positions_are_even_over_the_ranks() -> None:
    ids = [tokens for problem in range(1, 9) for tokens in branches(problem, 20 + 3 * problem, 4, 5)]
    plan = pack_shared(sequences(ids), 4, 10_000)
    assert len(plan) == 1
    found = positions(ids, plan)
    assert sum(found) == nodes(ids) and max(found) <= 1.1 * sum(found) / 4


def test_one_rank_gets_all_that_is_shared() -> None:
    """A smaller budget would part branches, and a rank alone gains nothing by even micro-batches."""
    ids = branches(1, 60, 6, 10)
    assert positions(ids, pack_shared(sequences(ids), 1, 1000)) == [120]
    assert positions(ids, pack_shared(sequences(ids), 2, 1000)) == [90, 90]  # but two end sooner


@pytest.mark.parametrize("world_size", [1, 3])
def test_shared_nothing_packs_into_nothing_and_a_rank_without_work_gets_a_filler(world_size: int) -> None:
    assert pack_shared(sequences([]), world_size, 100) == []
    assert pack_shared(sequences([[1, 2, 3]]), world_size, 100) == [((0,), *[()] * (world_size - 1))]


@given(LENGTHS, st.floats(0.1, 1.0))
def test_blocks_hold_every_sequence_once_and_are_as_full_as_asked(lengths: list[int], fullness: float) -> None:
    blocks = blocks_of(lengths, fullness)
    assert sorted(i for block in blocks for i in block) == list(range(len(lengths)))
    for block in blocks:
        assert (
            min(lengths[i] for i in block) >= fullness * lengths[block[0]] == fullness * max(lengths[i] for i in block)
        )


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", ""]), st.integers(1, 50)), max_size=40), st.integers(1, 5)
)
def test_mini_batches_keep_groups_together(sequences: list[tuple[str, int]], parts: int) -> None:
    groups = [group for group, _ in sequences]
    chosen = split_by_group(groups, [size for _, size in sequences], parts)
    assert sorted(i for part in chosen for i in part) == list(range(len(sequences)))
    for name in set(groups) - {""}:
        assert sum(any(groups[i] == name for i in part) for part in chosen) == 1


def test_mini_batches_are_of_like_size() -> None:
    assert split_by_group(["a", "a", "b", "c", "c"], [5, 5, 4, 3, 3], 2) == [[0, 1], [2, 3, 4]]


def test_there_are_no_more_mini_batches_than_groups() -> None:
    assert split_by_group(["a", "a"], [1, 1], 3) == [[0, 1]]
