"""The noise of samples on CPU: keys of steps by seed and place, through the operation of vLLM that draws with them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from mrt_hpc.inference.vllm_on_cpu import step_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytest.importorskip("vllm")
if torch.cuda.is_available():
    pytest.skip("vLLM's kernel for CPUs is part of its build for CPUs", allow_module_level=True)
from mrt_hpc.inference.vllm_on_cpu import CountingSampler

P = torch.tensor([0.3, 0.25, 0.2, 0.1, 0.08, 0.05, 0.02])
SEEDS = np.arange(40_000, dtype=np.uint64)
RARE = 1e-4
"""The chance with which right noise would fail one test; seeds and places are fixed, so that it never changes."""


def drawn(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """One token of distribution ``P`` for each seed and place."""
    keys = torch.from_numpy(step_keys(seeds, positions).view(np.int64))
    ids: NDArray[np.int64] = torch.ops._C.fused_gumbel_argmax(P.log().repeat(len(keys), 1), keys).numpy()
    return ids


def at(position: int) -> NDArray[np.int64]:
    return np.full(len(SEEDS), position)


def assert_drawn_from(table: NDArray[Any], expected: NDArray[Any]) -> None:
    """Pearson's test of counts against the probabilities of their cells."""
    expected = expected * table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    assert chi2.sf(statistic, table.size - 1) > RARE


def assert_independent(first: NDArray[np.int64], second: NDArray[np.int64]) -> None:
    table = np.zeros((len(P), len(P)))
    np.add.at(table, (first, second), 1)
    assert_drawn_from(table, np.outer(P, P))


@pytest.mark.parametrize("position", [0, 1, 2000])
def test_tokens_of_many_seeds_follow_the_distribution(position: int) -> None:
    assert_drawn_from(np.bincount(drawn(SEEDS, at(position)), minlength=len(P)), P.numpy())


@pytest.mark.parametrize("seed", [0, 1, 2**63 + 11])
def test_tokens_of_one_seed_follow_the_distribution(seed: int) -> None:
    ids = drawn(np.full(len(SEEDS), seed, np.uint64), SEEDS.astype(np.int64))
    assert_drawn_from(np.bincount(ids, minlength=len(P)), P.numpy())
    assert_independent(ids[:-1], ids[1:])


@pytest.mark.parametrize("lag", [1, 2, 64])
def test_places_of_a_sample_are_independent(lag: int) -> None:
    assert_independent(drawn(SEEDS, at(5)), drawn(SEEDS, at(5 + lag)))


@pytest.mark.parametrize(("seeds", "places"), [(1, 0), (1, 1), (1, -1), (64, 0), (2**32, 0)])
def test_samples_are_independent_of_those_of_near_seeds(seeds: int, places: int) -> None:
    assert_independent(drawn(SEEDS, at(5)), drawn(SEEDS + np.uint64(seeds), at(5 + places)))


def test_no_two_of_many_keys_are_equal() -> None:
    seeds, places = np.meshgrid(SEEDS[:1000], np.arange(1000))
    assert len(np.unique(step_keys(seeds.ravel(), places.ravel()))) == 1_000_000


# -- the sampler -------------------------------------------------------------------------------------------------------


def sampler(generated: list[int], prompts: list[int]) -> CountingSampler:
    totals = np.array(generated) + np.array(prompts)
    batch = SimpleNamespace(num_tokens_no_spec=totals, num_prompt_tokens=np.array(prompts))
    return CountingSampler(SimpleNamespace(input_batch=batch))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_token_follows_from_seed_place_and_logits_alone() -> None:
    logits = torch.randn(1, 5000, generator=generator(0))
    alone, _ = sampler([7], [3])(logits.clone(), {0: generator(9)}, None, None)
    batch = {0: generator(1), 2: generator(9), 3: generator(9)}
    many, _ = sampler([0, 0, 7, 8], [5, 5, 90, 3])(logits.repeat(4, 1), batch, None, None)
    assert many[2] == alone[0]
    assert many[3] != many[2]


def test_rows_without_a_seed_differ_from_call_to_call() -> None:
    one = sampler([0], [1])
    assert len({int(one(torch.zeros(1, 10_000), {}, None, None)[0]) for _ in range(4)}) > 1


def test_only_the_tokens_of_top_k_and_top_p_are_drawn_and_log_probabilities_are_those_of_the_rest() -> None:
    rows = 300
    logits, seeds = P.log().repeat(rows, 1), {i: generator(i) for i in range(rows)}
    k, p = torch.full((rows,), 3), torch.full((rows,), 0.5)
    by_k, of_k = sampler([0] * rows, [1] * rows)(logits.clone(), seeds, k, None)
    by_p, of_p = sampler([0] * rows, [1] * rows)(logits.clone(), seeds, None, p)
    assert (set(by_k.tolist()), set(by_p.tolist())) == ({0, 1, 2}, {0, 1})
    assert torch.allclose(of_k[0, :3].exp(), P[:3] / P[:3].sum())
    assert torch.allclose(of_p[0, :2].exp(), P[:2] / P[:2].sum())
    assert bool(of_k[0, 3:].isneginf().all())
