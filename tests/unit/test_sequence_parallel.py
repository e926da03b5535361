"""Rows that several ranks share: how they are cut, and how heads and positions are exchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen2Config

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.training.attention import RowRanks, repeated
from mrt_hpc.training.micro_batch import MicroBatch, arrange, lay_out, part_of
from mrt_hpc.training.policy import load_policy
from mrt_hpc.training.settings import TrainingSequence

if TYPE_CHECKING:
    from pathlib import Path

IN_ONE_ROW = [Batching.PACKED, Batching.SHARED]
LENGTHS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 12)), max_size=6)


def sequence(seed: int, prompt: int, tokens: int) -> TrainingSequence:
    """Tokens of a small vocabulary, so that some sequences begin alike; every third one is not trained."""
    rng = np.random.default_rng(seed)
    return TrainingSequence(
        rng.integers(0, 2, prompt).tolist(),
        rng.integers(0, 2, tokens).tolist(),
        rng.normal(size=tokens).astype(np.float32),
        rng.normal(size=tokens).astype(np.float32),
        np.arange(tokens) % 3 > 0,
    )


def sequences(lengths: list[tuple[int, int]]) -> list[TrainingSequence]:
    """A sequence for each pair of lengths."""
    return [sequence(number, *pair) for number, pair in enumerate(lengths)]


def joined(parts: list[MicroBatch], name: str) -> torch.Tensor:
    """A tensor of all parts, end to end."""
    return torch.cat([getattr(p, name).reshape(-1) for p in parts])


@pytest.mark.parametrize("batching", IN_ONE_ROW)
@given(lengths=LENGTHS, count=st.integers(1, 5))
def test_the_parts_of_a_row_are_the_row(batching: Batching, lengths: list[tuple[int, int]], count: int) -> None:
    """Each position and each trained token is in one part; what is filled up at the end trains nothing."""
    whole = lay_out(batching, sequences(lengths))
    parts = [part_of(whole, number, count) for number in range(count)]
    width = whole.input_ids.shape[1]
    held = {p.input_ids.shape[1] for p in parts}
    assert held == {-(-width // count)} == {p.position_ids.shape[1] for p in parts if p.position_ids is not None}
    assert whole.position_ids is not None
    assert torch.equal(joined(parts, "input_ids")[:width], whole.input_ids[0])
    assert torch.equal(joined(parts, "position_ids")[:width], whole.position_ids[0])
    starts = [number * p.input_ids.shape[1] for number, p in enumerate(parts)]
    found = torch.cat([p.positions + start for p, start in zip(parts, starts, strict=True)])
    order = [(whole.positions // max(held) == number).nonzero()[:, 0] for number in range(count)]
    assert torch.equal(found, whole.positions[torch.cat(order)])
    for name in ("targets", "advantages", "behaviour_logprobs"):
        assert torch.equal(joined(parts, name), getattr(whole, name)[torch.cat(order)])


@pytest.mark.parametrize("batching", IN_ONE_ROW)
@given(lengths=LENGTHS, count=st.integers(1, 5))
def test_every_part_knows_the_whole_row(batching: Batching, lengths: list[tuple[int, int]], count: int) -> None:
    """Its sequences and, attending to itself alone, what it is filled up with."""
    whole = lay_out(batching, sequences(lengths))
    parts = [part_of(whole, number, count) for number in range(count)]
    filled = count * parts[0].input_ids.shape[1]
    assert len({p.lengths for p in parts}) == 1
    assert sum(parts[-1].lengths or ()) == filled
    if whole.paths is not None:
        paths = parts[-1].paths or ()
        assert all(map(np.array_equal, paths[: len(whole.paths)], whole.paths))
        assert [p.tolist() for p in paths[len(whole.paths) :]] in ([], [[*range(whole.input_ids.shape[1], filled)]])
        assert len(paths) == len(parts[-1].lengths or ())


@pytest.mark.parametrize("batching", IN_ONE_ROW)
@given(lengths=LENGTHS, parts=st.integers(1, 4), rows=st.integers(1, 3))
def test_ranks_that_share_rows_have_the_plan_of_fewer_ranks(
    batching: Batching, lengths: list[tuple[int, int]], parts: int, rows: int
) -> None:
    found, alone = (
        arrange(batching, sequences(lengths), rows * parts, 20, parts),
        arrange(batching, sequences(lengths), rows, 20),
    )
    assert found.steps == alone.steps and found.shared == alone.shared
    assert found.positions - found.padding == alone.positions and found.positions % parts == 0
    rows_used = sum(bool(share) for step in found.steps for share in step)
    assert 0 <= found.padding <= rows_used * (parts - 1)


@pytest.mark.parametrize(("heads", "shared", "parts"), [(4, 4, 2), (4, 2, 4), (12, 2, 3), (12, 2, 4), (8, 1, 8)])
def test_a_query_head_keeps_its_head_of_keys(heads: int, shared: int, parts: int) -> None:
    """Also where ranks do not divide the heads of keys and values, or are more."""
    keys = repeated(torch.arange(shared).view(1, shared, 1).float(), parts)[0, :, 0]
    assert len(keys) % parts == 0 and heads % len(keys) == 0
    of_queries = torch.arange(shared).repeat_interleave(heads // shared)
    assert torch.equal(keys.repeat_interleave(heads // len(keys)).long(), of_queries)


def test_the_trainer_refuses_a_model_whose_heads_do_not_divide_over_the_ranks(tmp_path: Path) -> None:
    Qwen2Config(num_attention_heads=4, num_key_value_heads=2, hidden_size=16).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="4 attention heads do not divide over the ranks") as refused:
        load_policy(tmp_path, 1.0, Precision.FP32, row_ranks=RowRanks(3))
    assert refused.value.expected == "one of 1, 2, 4"
