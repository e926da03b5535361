"""Files of a run directory: whole or absent, first commit wins, damage is seen."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.recipe.errors import UserError
from mrt_hpc.run.atomic import commit_directory, creating, is_temporary, replacing, temporary_sibling, write_json
from mrt_hpc.run.events import EventKind, EventLog, read_events
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.lineage import set_aside_after
from mrt_hpc.run.records import Branch, FinishReason, Rollout, ShardStatistics
from mrt_hpc.run.shards import commit_iteration_shard, commit_shard, complete_shards, read_iteration_shard, read_shard
from mrt_hpc.run.tasks import TaskState, read_task, write_task
from mrt_hpc.run.weights import prune, publish, published_versions, verify

if TYPE_CHECKING:
    from pathlib import Path


def rollout(sample: int = 0, text: str = "x") -> Rollout:
    return Rollout(
        iteration=3, problem_id="p", sample=sample, seed=7, weights_version=2, prompt_ids=[1], token_ids=[2, 3],
        logprobs=[-0.5, -1.5], finish_reason=FinishReason.STOP, text=text, answer=None, reward=1.0, boundaries=[0, 1],
        started=1.0, seconds=0.5,
    )  # fmt: skip


def branch() -> Branch:
    return Branch(
        iteration=3, problem_id="p", sample=0, boundary=1, branch=0, seed=9, weights_version=2, token_ids=[4],
        logprobs=[-0.1], finish_reason=FinishReason.LENGTH, text="y", answer="5", reward=0.0, prompt_tokens=8,
        cached_tokens=None,
    )  # fmt: skip


COST = ShardStatistics(1, 1, 2, 1, 8, 0, {"generation": 1.5})


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["f.json"]


def test_the_first_commit_wins(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with creating(path) as first:
        first.temporary.write_text("first")
    with creating(path) as second:
        second.temporary.write_text("second")
    assert (first.won, second.won) == (True, False)
    assert path.read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_the_first_directory_wins_and_the_late_one_is_removed(tmp_path: Path) -> None:
    for content in ("first", "second"):
        temporary = temporary_sibling(tmp_path / "d")
        assert is_temporary(temporary)
        temporary.mkdir()
        (temporary / "f").write_text(content)
        assert commit_directory(temporary, tmp_path / "d") is (content == "first")
    assert (tmp_path / "d" / "f").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_shard_of_an_iteration_comes_back_as_it_was(tmp_path: Path) -> None:
    path = RunLayout(tmp_path).shard(3, 0)
    assert commit_iteration_shard(path, [rollout()], [branch()], COST)
    assert not commit_iteration_shard(path, [rollout(text="late")], [], COST)
    shard = read_iteration_shard(path)
    assert shard.rollouts == [rollout()]
    assert shard.branches == [branch()]
    assert shard.statistics == COST
    assert complete_shards(path.parent) == [path]


@given(st.text(), st.lists(st.floats(allow_nan=False), max_size=5))
def test_any_text_and_number_survives_a_shard(
    tmp_path_factory: pytest.TempPathFactory, text: str, logs: list[float]
) -> None:
    text = text.encode("utf-8", "replace").decode()
    record = dataclasses.replace(rollout(text=text), logprobs=logs)
    path = tmp_path_factory.mktemp("s") / "s.parquet"
    assert commit_shard(path, [record], Rollout)
    assert read_shard(path, Rollout) == [record]


@pytest.mark.parametrize("damage", ["cut", "other", "empty"])
def test_a_damaged_shard_is_an_error_with_advice(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "s.parquet"
    commit_shard(path, [rollout()], Rollout)
    content = path.read_bytes()
    if damage == "other":
        path.unlink()
        commit_shard(path, [branch()], Branch)
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    with pytest.raises(UserError, match="shard"):
        read_shard(path, Rollout)


def test_weights_versions_are_complete_or_absent(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)

    def fail(directory: Path) -> None:
        (directory / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        publish(layout, 1, fail)
    assert published_versions(layout) == []
    assert publish(layout, 1, lambda d: (d / "w").write_text("1") and None)
    assert not publish(layout, 1, lambda d: (d / "w").write_text("2") and None)
    assert verify(layout.weights_version(1)).about == {"version": 1}
    assert list(layout.weights.iterdir()) == [layout.weights_version(1)]


def test_a_changed_weights_file_is_found_out(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    publish(layout, 1, lambda d: (d / "w").write_bytes(b"12345678") and None)
    (layout.weights_version(1) / "w").write_bytes(b"12345679")
    with pytest.raises(UserError, match="differs from the manifest"):
        verify(layout.weights_version(1))


def test_pruning_keeps_what_is_named(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    for version in range(5):
        publish(layout, version, lambda d: (d / "w").write_text("w") and None)
    assert prune(layout, {0, 3, 4}) == [1, 2]
    assert published_versions(layout) == [0, 3, 4]


def test_what_lies_after_the_checkpoint_is_set_aside_with_its_reason(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    for version in (1, 2, 3):
        publish(layout, version, lambda d: (d / "w").write_text("w") and None)
        write_json(layout.metrics(version - 1), {})
        commit_iteration_shard(layout.shard(version - 1, 0), [rollout()], [], COST)
    moved = set_aside_after(layout, 1, "because")
    assert published_versions(layout) == [1]
    assert [layout.metrics(i).exists() for i in range(3)] == [True, False, False]
    assert all(layout.shard(i, 0).exists() for i in range(3))
    assert sorted(p.name for p in moved) == [
        "iterations-000001-metrics.json", "iterations-000002-metrics.json", "weights-v000002", "weights-v000003",
    ]  # fmt: skip
    assert (moved[0].parent / "REASON").read_text() == "because\n"
    assert set_aside_after(layout, 1, "again") == []


def test_events_of_all_processes_are_read_in_order_and_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    EventLog(tmp_path / "a.jsonl").emit(EventKind.STEP, iteration=1)
    EventLog(tmp_path / "b.jsonl").emit(EventKind.PUBLISHED, version=2)
    with (tmp_path / "b.jsonl").open("a") as stream:
        stream.write('{"time": 1, "ki')
    assert [e["kind"] for e in read_events(tmp_path)] == ["step", "published"]
    assert read_events(tmp_path, EventKind.PUBLISHED)[0]["version"] == 2


def test_task_states(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert read_task(layout, "j", 3).state is TaskState.WAITING
    write_task(layout, "j", 3, TaskState.FAILED, attempt="a", message="why")
    assert (read_task(layout, "j", 3).state, read_task(layout, "j", 3).message) == (TaskState.FAILED, "why")
