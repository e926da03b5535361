"""Packing: every sequence once, budgets kept, ranks in step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.training.packing import blocks_of, pack, pack_end_to_end, padded_tokens, split_by_group

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
