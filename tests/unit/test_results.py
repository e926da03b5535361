"""The results folder: batches of samples under a fingerprint."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from samples import rollout, sampled

from mrt_hpc.roles.stored_parts import StoredSamples, samples_of
from mrt_hpc.run.evaluation_settings import Fingerprint
from mrt_hpc.run.manifest import DamagedError

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.run.groups import Sampled

MINE, OTHER = "a" * 64, "b" * 64
"""The digests of two graders."""
FIELDS = {
    "method": 1, "weights": "w", "benchmark": "held-out", "problems": "p", "seed": 0, "sampling": {"temperature": 0.6},
    "mode": {}, "episodes": {}, "prover": None, "dtype": "bfloat16", "code": {}, "engine": {"vllm": "0.32.0"},
}  # fmt: skip
CHANGES = {
    "method": 2, "weights": "x", "benchmark": "x", "problems": "x", "seed": 1, "sampling": {"temperature": 0.7},
    "mode": {"type": "linearised"}, "episodes": {"group_size": 2}, "prover": {"type": "forced_answer"},
    "dtype": "float32", "code": {"my:Mode": "x"}, "engine": {"vllm": "0.33.0"},
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> StoredSamples:
    return StoredSamples.of(tmp_path, Fingerprint.model_validate(FIELDS))


def batch(numbers: range, problem: str = "p") -> Sampled:
    return sampled(*(rollout(problem, number) for number in numbers))


def test_each_field_makes_another_fingerprint_and_the_folder_names_them_all(store: StoredSamples) -> None:
    assert CHANGES.keys() == FIELDS.keys() == Fingerprint.model_fields.keys()
    digests = {Fingerprint.model_validate({**FIELDS, name: value}).digest for name, value in CHANGES.items()}
    mine = Fingerprint.model_validate(json.loads(store.readable_fingerprint.read_text()))
    assert mine == Fingerprint.model_validate(FIELDS)
    assert len({*digests, mine.digest}) == 1 + len(CHANGES)


def test_more_samples_are_added_to_those_that_are_there(store: StoredSamples) -> None:
    assert store.lacking(3, 20) == range(20)
    store.commit(3, range(20), batch(range(20)), MINE)
    assert [len(store.lacking(3, count)) for count in (8, 20)] == [0, 0]
    assert store.lacking(3, 64) == range(20, 64)
    store.commit(3, range(20, 64), batch(range(20, 64)), MINE)
    taken = [(b.samples, numbers) for b, numbers in store.chosen(3, 30, MINE)]
    assert taken == [(range(20), list(range(20))), (range(20, 64), list(range(20, 30)))]


def test_a_batch_is_written_once_and_verdicts_of_the_wanted_grader_are_preferred(store: StoredSamples) -> None:
    assert store.commit(0, range(2), batch(range(2)), OTHER)
    assert not store.commit(0, range(2), batch(range(2), "late"), OTHER)
    ((first, numbers),) = store.chosen(0, 2, MINE)
    assert {r.problem_id for r in store.read(first, numbers).rollouts} == {"p"}
    assert first.grader == OTHER[:12]
    store.commit(0, range(2), batch(range(2)), MINE)
    for grader in (MINE, OTHER):
        assert [b.grader for b, _ in store.chosen(0, 2, grader)] == [grader[:12]]


def test_a_damaged_batch_leaves_a_gap_that_is_sampled_again(store: StoredSamples) -> None:
    for numbers in (range(2), range(2, 4)):
        store.commit(0, numbers, batch(numbers), MINE)
    (damaged, numbers), _ = store.chosen(0, 4, MINE)
    (damaged.path / "rollouts.parquet").write_bytes(b"damaged")
    with pytest.raises(DamagedError):
        store.read(damaged, numbers)
    place = store.set_aside(damaged)
    assert place is not None and place.is_dir()
    assert store.lacking(0, 4) == range(2)
    assert store.set_aside(damaged) is None, "another task has moved it"


def test_some_samples_of_a_batch_have_their_own_counts_and_all_of_their_stages() -> None:
    some = samples_of(batch(range(5)), [1, 3])
    assert [r.sample for r in some.rollouts] == [1, 3]
    assert (some.statistics.rollouts, some.statistics.rollout_tokens) == (2, 6)
    rounds = [replace(rollout("p", number), stage=number % 3, stages=3) for number in range(6)]
    assert [r.sample for r in samples_of(sampled(*rounds), [1]).rollouts] == [3, 4, 5]
