"""Packing: every sequence once, budgets kept, ranks in step."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.training import packing
from mrt_hpc.training.packing import MicroStep, pack, pack_end_to_end, pack_shared
from mrt_hpc.training.packing import split_by_group as split

LENGTHS = st.lists(st.integers(1, 300), max_size=80)
IDS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), max_size=30)


def assert_in_step(plan: list[MicroStep], sequences: int, world_size: int) -> list[Sequence[int]]:
    """Every sequence is packed exactly once, and every rank takes part in every step; returns the micro-batches."""
    batches = [batch for step in plan for batch in step]
    assert sorted(i for batch in batches for i in batch) == list(range(sequences))
    assert all(len(step) == world_size and any(step) for step in plan)
    return batches


@given(LENGTHS, st.integers(1, 8), st.integers(1, 500))
def test_padded(lengths: list[int], world_size: int, max_tokens: int) -> None:
    """The budget holds, except for a longer sequence alone."""
    batches = assert_in_step(pack(lengths, world_size, max_tokens), len(lengths), world_size)
    assert all(len(batch) <= 1 or packing.padded_tokens(lengths, batch) <= max_tokens for batch in batches)


@given(LENGTHS, st.integers(1, 8), st.integers(1, 900))
def test_end_to_end(lengths: list[int], world_size: int, max_tokens: int) -> None:
    """The budget is one of real tokens. First fit leaves at most one micro-batch less than half full, so that there are
    at most twice as many steps as it takes.
    """
    plan = pack_end_to_end(lengths, world_size, max_tokens)
    batches = assert_in_step(plan, len(lengths), world_size)
    assert all(len(batch) <= 1 or sum(lengths[i] for i in batch) <= max_tokens for batch in batches)
    assert max_tokens < 300 or len(plan) <= 2 * -(-sum(lengths) // (max_tokens * world_size))


def test_plans_by_hand() -> None:
    for how, lengths, ranks, most, plan in (
        (pack, [10, 2, 9, 2, 2], 1, 20, [((0, 2),), ((1, 3, 4),)]),  # like lengths go together
        (pack, [8, 8, 8, 8], 2, 1000, [((0, 1), (2, 3))]),  # two ranks share the work that one pass could hold
        (pack, [300, 10, 10], 1, 100, [((0,),), ((1, 2),)]),  # a sequence beyond the budget goes alone
        (pack_end_to_end, [10, 2, 9, 2, 2], 1, 25, [((0, 1, 2, 3, 4),)]),  # unlike lengths share a micro-batch
        (pack_end_to_end, [8, 7, 2, 1], 2, 1000, [((0, 3), (1, 2))]),
        (split, ["a", "a", "b", "c", "c"], [5, 5, 4, 3, 3], 2, [[0, 1], [2, 3, 4]]),  # of like size
        (split, ["a", "a"], [1, 1], 3, [[0, 1]]),  # no more mini-batches than groups
    ):
        assert how(lengths, ranks, most) == plan


def sequences(ids: list[list[int]]) -> packing.SortedSequences:
    return packing.SortedSequences.of([np.array(tokens, dtype=np.int64) for tokens in ids])


def nodes(ids: list[list[int]]) -> int:
    """The number of different prefixes: the least number of positions that hold all sequences."""
    return len({tuple(tokens[: n + 1]) for tokens in ids for n in range(len(tokens))})


def positions(ids: list[list[int]], plan: list[MicroStep]) -> list[int]:
    return [nodes([ids[i] for i in share]) for step in plan for share in step]


@given(IDS.filter(len))
def test_a_shared_row_has_every_prefix_once_and_every_path(ids: list[list[int]]) -> None:
    row = packing.SharedRow.of([np.array(tokens) for tokens in ids])
    assert len(row.ids) == len(row.places) == sum(row.own) == nodes(ids)
    for index, path, own, end in zip(row.order, row.paths, row.own, accumulate(row.own), strict=True):
        assert (row.ids[path].tolist(), row.places[path].tolist()) == (ids[index], list(range(len(ids[index]))))
        assert path[len(path) - own :].tolist() == list(range(end - own, end))


@given(IDS, st.integers(1, 4), st.integers(1, 100))
def test_shared(ids: list[list[int]], world_size: int, max_tokens: int) -> None:
    """The budget is one of shared positions, and sharing never adds any."""
    for share in assert_in_step(pack_shared(sequences(ids), world_size, max_tokens), len(ids), world_size):
        assert nodes([ids[i] for i in share]) <= max(max_tokens, max((len(ids[i]) for i in share), default=0))
    assert sum(positions(ids, pack_shared(sequences(ids), 1, max_tokens))) <= sum(len(tokens) for tokens in ids)


def branches(problem: int, prefix: int, count: int, tokens: int) -> list[list[int]]:
    """Continuations of one prefix, all different from the first token on."""
    start = 1000 * problem
    return [[start] * prefix + [start + 1 + n] * tokens for n in range(count)]


def test_shared_positions_of_each_micro_batch() -> None:
    for ids, ranks, most, expected in (
        # branches of one prefix stay together and share it
        ([branches(problem, 50, 5, 10)[n] for n in range(5) for problem in (1, 2)], 1, 120, [100, 100]),
        # a prefix too long for one micro-batch is computed as seldom as the budget allows
        (branches(1, 50, 8, 10), 1, 100, [90, 90]),
        # equal sequences longer than the budget are computed once
        (branches(1, 200, 1, 10) * 3, 1, 100, [210]),
        # one rank gets all that is shared: it gains nothing by even micro-batches, but two end sooner
        (branches(1, 60, 6, 10), 1, 1000, [120]),
        (branches(1, 60, 6, 10), 2, 1000, [90, 90]),
        # a short prefix of long sequences does not keep them together, which would fill the micro-batches badly
        ([[1, 1, *[10 + n] * 40] for n in range(3)] + [[2, 2, *[20] * 54]], 1, 100, [82, 98]),
    ):
        assert sorted(positions(ids, pack_shared(sequences(ids), ranks, most))) == sorted(expected)


@given(LENGTHS, st.floats(0.1, 1.0))
def test_blocks_hold_every_sequence_once_and_are_as_full_as_asked(lengths: list[int], fullness: float) -> None:
    blocks = packing.blocks_of(lengths, fullness)
    assert sorted(i for block in blocks for i in block) == list(range(len(lengths)))
    for block in blocks:
        longest = lengths[block[0]]
        assert longest == max(lengths[i] for i in block)
        assert min(lengths[i] for i in block) >= fullness * longest


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", ""]), st.integers(1, 50)), max_size=40), st.integers(1, 5)
)
def test_mini_batches_keep_groups_together(sequences: list[tuple[str, int]], parts: int) -> None:
    groups = [group for group, _ in sequences]
    chosen = split(groups, [size for _, size in sequences], parts)
    assert sorted(i for part in chosen for i in part) == list(range(len(sequences)))
    for name in set(groups) - {""}:
        assert sum(any(groups[i] == name for i in part) for part in chosen) == 1
