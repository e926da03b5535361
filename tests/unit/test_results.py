"""The results folder: batches of samples under a fingerprint, which several evaluations share."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from samples import rollout, sampled

from mrt_hpc.run.evaluation_settings import Fingerprint
from mrt_hpc.run.heartbeats import Heart, Observer
from mrt_hpc.run.leases import Holder, Leases
from mrt_hpc.run.manifest import DamagedError
from mrt_hpc.run.results import StoredSamples, samples_of

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.run.groups import Sampled

MINE, OTHER = "a" * 64, "b" * 64
"""The digests of two graders."""


def fingerprint(**changes: object) -> Fingerprint:
    fields = {
        "weights": "w", "benchmark": "held-out", "problems": "p", "seed": 0, "sampling": {"temperature": 0.6},
        "mode": {}, "episodes": {}, "prover": None, "engine": {"vllm": "0.32.0", "dtype": "bfloat16"},
    }  # fmt: skip
    return Fingerprint.model_validate({**fields, **changes})


@pytest.fixture
def store(tmp_path: Path) -> StoredSamples:
    return StoredSamples.of(tmp_path, fingerprint())


def batch(numbers: range) -> Sampled:
    return sampled(*(rollout("p", number) for number in numbers))


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "x"}, {"benchmark": "x"}, {"problems": "x"}, {"seed": 1}, {"sampling": {"temperature": 0.7}},
        {"episodes": {"group_size": 2}}, {"mode": {"type": "linearised"}},
        {"prover": {"type": "forced_answer"}}, {"engine": {"vllm": "0.33.0"}},
    ],
)  # fmt: skip
def test_each_field_makes_another_fingerprint(change: dict[str, object]) -> None:
    assert fingerprint(**change).digest != fingerprint().digest
    assert fingerprint().digest == fingerprint().digest


def test_the_folder_says_what_it_holds(store: StoredSamples) -> None:
    assert Fingerprint.model_validate(json.loads(store.readable_fingerprint.read_text())) == fingerprint()


def test_more_samples_are_added_to_those_that_are_there(store: StoredSamples) -> None:
    assert store.lacking(3, 20) == range(20)
    store.commit(3, range(20), batch(range(20)), MINE)
    assert not store.lacking(3, 20)
    assert not store.lacking(3, 8)
    assert store.lacking(3, 64) == range(20, 64)
    store.commit(3, range(20, 64), batch(range(20, 64)), MINE)
    taken = [(b.samples, numbers) for b, numbers in store.chosen(3, 30, MINE)]
    assert taken == [(range(20), list(range(20))), (range(20, 64), list(range(20, 30)))]


def test_a_batch_is_written_once(store: StoredSamples) -> None:
    assert store.commit(0, range(2), batch(range(2)), MINE)
    assert not store.commit(0, range(2), sampled(rollout("late", 0), rollout("late", 1)), MINE)
    ((first, numbers),) = store.chosen(0, 2, MINE)
    assert {r.problem_id for r in store.read(first, numbers).rollouts} == {"p"}


def test_verdicts_of_the_wanted_grader_are_preferred(store: StoredSamples) -> None:
    store.commit(0, range(2), batch(range(2)), OTHER)
    assert [b.grader for b, _ in store.chosen(0, 2, MINE)] == [OTHER[:12]]
    store.commit(0, range(2), batch(range(2)), MINE)
    assert [b.grader for b, _ in store.chosen(0, 2, MINE)] == [MINE[:12]]
    assert [b.grader for b, _ in store.chosen(0, 2, OTHER)] == [OTHER[:12]]


def test_a_damaged_batch_leaves_a_gap_that_is_sampled_again(store: StoredSamples) -> None:
    store.commit(0, range(2), batch(range(2)), MINE)
    store.commit(0, range(2, 4), batch(range(2, 4)), MINE)
    ((damaged, numbers), _) = store.chosen(0, 4, MINE)
    (damaged.path / "rollouts.parquet").write_bytes(b"damaged")
    with pytest.raises(DamagedError):
        store.read(damaged, numbers)
    place = store.set_aside(damaged)
    assert place is not None
    assert place.is_dir()
    assert store.lacking(0, 4) == range(2)
    assert store.set_aside(damaged) is None, "another task has moved it"


def test_some_samples_of_a_batch_have_their_own_counts() -> None:
    some = samples_of(batch(range(5)), [1, 3])
    assert [r.sample for r in some.rollouts] == [1, 3]
    assert (some.statistics.rollouts, some.statistics.rollout_tokens) == (2, 6)


def test_a_problem_is_leased_to_one_evaluation_until_it_is_released(store: StoredSamples, tmp_path: Path) -> None:
    first, second = (Holder(tmp_path / name, "evaluation", 0, name) for name in ("one", "two"))
    observer = Observer(60.0)

    def leases(holder: Holder) -> Leases:
        return Leases(store.leases, holder, observer, lambda place: not store.lacking(place, 2), store.heart)

    with Heart(store.heart(first), first.attempt, 60.0):
        assert leases(first).claim(0)
        assert not leases(second).claim(0)
        assert leases(second).claim(1)
        leases(first).release(0)
        assert leases(second).claim(0)
        store.commit(2, range(2), batch(range(2)), MINE)
        assert not leases(first).claim(2), "what is there is not sampled"


def test_a_lease_ends_with_the_heart_of_its_holder(store: StoredSamples, tmp_path: Path) -> None:
    first, second = (Holder(tmp_path / name, "evaluation", 0, name) for name in ("one", "two"))
    with Heart(store.heart(first), first.attempt, 60.0):
        assert Leases(store.leases, first, Observer(60.0), lambda _: False, store.heart).claim(0)
    assert Leases(store.leases, second, Observer(60.0), lambda _: False, store.heart).claim(0)


def test_a_sample_has_all_of_its_stages() -> None:
    """With three rounds the traces of sample 1 have the numbers 3, 4 and 5."""
    rounds = [replace(rollout("p", number), stage=number % 3, stages=3) for number in range(6)]
    assert [r.sample for r in samples_of(sampled(*rounds), [1]).rollouts] == [3, 4, 5]
