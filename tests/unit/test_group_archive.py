"""The groups of a passed iteration in one file: nothing is lost on the way, and damage is found."""

import dataclasses
import math
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from run_of import bare_run
from samples import rollout, sampled

from mrt_hpc import PrefixValue, UserError
from mrt_hpc.run import archive as archives
from mrt_hpc.run import groups
from mrt_hpc.run.archive import archive_groups, read_sampled, sampled_manifest, sampled_positions, unpack
from mrt_hpc.run.groups import Group, commit_group, complete_groups, read_group
from mrt_hpc.run.layout import COLLECTION, RunLayout
from mrt_hpc.run.manifest import DamagedError, Manifest, verify

GROUPS = 5


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    made = bare_run(tmp_path)
    for position in range(GROUPS):
        commit_group(made.group(3, position), sampled(rollout(f"p{position}", 0)), holder={"index": position})
    made.leases(3).mkdir()
    (made.leases(3) / "00000.000").write_text("{}")
    return made


def everything(layout: RunLayout) -> dict[int, Group]:
    return {position: read_sampled(layout, 3, position) for position in sampled_positions(layout, 3)}


@pytest.mark.parametrize("lost_at", ["_write", "_remove", "rmtree"])
def test_archived_groups_are_what_they_were(layout: RunLayout, monkeypatch: pytest.MonkeyPatch, lost_at: str) -> None:
    before = {position: read_group(layout.group(3, position)) for position in range(GROUPS)}
    archive_groups(layout, 3, GROUPS + 1)
    archive_groups(layout, COLLECTION, 0)  # which was never sampled
    assert not layout.group_archive(3).exists() and not layout.iteration(COLLECTION).exists(), "a group is missing"

    def lost(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil if lost_at == "rmtree" else archives, lost_at, lost)
        with pytest.raises(KeyboardInterrupt):
            archive_groups(layout, 3, GROUPS)
    assert everything(layout) == before
    archive_groups(layout, 3, GROUPS)
    assert [path.name for path in layout.iteration(3).iterdir()] == ["groups.zip"]
    assert everything(layout) == before
    assert sampled_manifest(layout, 3, 2).about["holder"] == {"index": 2}


def test_a_group_that_is_archived_while_it_is_read_is_found(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_group(layout.group(3, 1))

    def slow(path: Path) -> Manifest:
        archive_groups(layout, 3, GROUPS)
        return verify(path)

    monkeypatch.setattr(archives, "verify", slow)
    assert read_sampled(layout, 3, 1) == expected


def changed(path: Path, whole: bytes, at: int, bits: int) -> None:
    path.write_bytes(whole[:at] + bytes([whole[at] ^ bits]) + whole[at + 1 :])


def test_damage_is_found_and_the_groups_without_it_are_given_back(layout: RunLayout) -> None:
    before = everything(layout)
    archive_groups(layout, 3, GROUPS)
    path = layout.group_archive(3)
    whole = path.read_bytes()
    start = whole.index(b"PK\1\2")
    for at in range(start, whole.index(b"PK\1\2", start + 1)):  # of the first of the names
        changed(path, whole, at, 1 << at % 8)
        with suppress(DamagedError):
            assert read_sampled(layout, 3, 0) == before[0]
    changed(path, whole, whole.index(b"00002/rollouts.parquet") + 200, 1)
    with pytest.raises(DamagedError):
        read_sampled(layout, 3, 2)
    unpack(layout, 3)
    path.unlink()
    assert everything(layout) == {position: group for position, group in before.items() if position != 2}
    shutil.rmtree(layout.groups(3))
    path.write_bytes(whole[:-40])
    with pytest.raises(DamagedError):
        sampled_positions(layout, 3)
    unpack(layout, 3)
    assert complete_groups(layout.groups(3)) == set()


def test_a_group_with_a_number_that_cannot_be_learnt_is_neither_kept_nor_taken(tmp_path: Path) -> None:
    estimate = PrefixValue(0, "p-7", 2, 0, 1.25, variance=math.nan, progress_variance=math.nan, branches=1, baseline=0)
    good = dataclasses.replace(sampled(rollout("p-7", 2)), values=[estimate])
    commit_group(tmp_path / "good", good)
    assert read_group(tmp_path / "good").values[0].value == 1.25, "an unbiased estimate may be above 1"
    for number, (record, field, value) in enumerate((
        *(("rollouts", "reward", wrong) for wrong in (math.nan, 1.5, -0.5)),
        *(("rollouts", "logprobs", [-0.5, wrong, -0.5]) for wrong in (math.nan, -math.inf, 0.01)),
        *(("values", *wrong) for wrong in (("value", math.nan), ("value", math.inf), ("baseline", math.nan))),
        ("statistics", "rollouts", "x"), ("statistics", "rollout_tokens", math.nan), ("statistics", "branches", -1),
        ("statistics", "seconds", {"a": math.inf}),
    )):  # fmt: skip
        part, of_all = getattr(good, record), record == "statistics"
        changed = dataclasses.replace(part if of_all else part[0], **{field: value})
        bad = dataclasses.replace(good, **{record: changed if of_all else [changed]})
        path, place = tmp_path / str(number), "statistics" if of_all else "problem p-7"
        with pytest.raises(UserError, match=place if of_all else "iteration 0, problem p-7, sample 2"):
            commit_group(path, bad)
        assert not path.exists()
        with pytest.MonkeyPatch.context() as earlier:  # as a version wrote it that did not look
            earlier.setattr(groups, "wrong_number", lambda _: None)
            commit_group(path, bad)
        with pytest.raises(DamagedError, match=place):
            read_group(path)
