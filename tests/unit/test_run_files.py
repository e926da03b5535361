"""Files of a run directory: whole or absent, first commit wins, damage is seen."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import multiprocessing
import os
import random
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run import atomic
from mrt_hpc.run import retries as patience
from mrt_hpc.run.atomic import commit_directory, creating, is_temporary, replacing, temporary_sibling, write_json
from mrt_hpc.run.events import EventKind, EventLog, read_events
from mrt_hpc.run.groups import PARTS, Sampled, commit_group, complete_groups, read_group
from mrt_hpc.run.layout import RunLayout, collecting_version, collection_of, is_collection
from mrt_hpc.run.manifest import DamagedError, read_manifest, verify, write_manifest
from mrt_hpc.run.parquet import read_records, write_records
from mrt_hpc.run.quarantine import set_aside, younger_than
from mrt_hpc.run.records import AnswerProbability, Branch, FinishReason, GroupStatistics, PrefixValue, Rollout
from mrt_hpc.run.task_state import TaskRecord, TaskState, forget_failures, read_task, task_file, write_task
from mrt_hpc.run.weights import prune, publish, published_versions

if TYPE_CHECKING:
    from collections.abc import Callable


def rollout(sample: int = 0, text: str = "x") -> Rollout:
    return Rollout(
        iteration=3, problem_id="p", sample=sample, seed=7, weights_version=2, prompt_ids=[1], forced=0,
        token_ids=[2, 3], logprobs=[-0.5, -1.5], finish_reason=FinishReason.STOP, text=text, answer=None,
        reward=1.0, boundaries=[0, 1],
        started=1.0, seconds=0.5,
    )  # fmt: skip


def branch() -> Branch:
    return Branch(
        iteration=3, problem_id="p", sample=0, boundary=1, branch=0, seed=9, weights_version=2, token_ids=[4],
        logprobs=[-0.1], finish_reason=FinishReason.LENGTH, text="y", answer="5", reward=0.0, known=True,
        look_ahead=0.25,
        prompt_tokens=8, cached_tokens=None,
    )  # fmt: skip


COST = GroupStatistics(1, 1, 2, 1, 8, 0, 10, {"generation": 1.5})
VALUE = PrefixValue(
    iteration=3, problem_id="p", sample=0, boundary=1, value=0.5, variance=0.0625, progress_variance=0.03125,
    branches=1, baseline=0.25,
)  # fmt: skip
ANSWER = AnswerProbability(iteration=3, problem_id="p", sample=0, boundary=1, answer="7", probability=0.75, reward=1.0)


def sampled(text: str = "x") -> Sampled:
    return Sampled(
        rollouts=[rollout(text=text)], branches=[branch()], answers=[ANSWER], values=[VALUE], statistics=COST
    )


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


def tree_to_commit(path: Path) -> Path:
    temporary = temporary_sibling(path)
    (temporary / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        (temporary / name).write_text(name)
    return temporary


def opened(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def test_what_takes_its_place_is_on_the_disk_before_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "d"
    temporary, fsync, synced = tree_to_commit(place), os.fsync, []

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append((opened(descriptor), place.exists()))

    monkeypatch.setattr(os, "fsync", noted)
    assert commit_directory(temporary, place)
    before = [temporary, *(temporary / name for name in ("a", "b", "sub", "sub/c"))]
    assert sorted(synced[:-1]) == sorted((path, False) for path in before)
    assert synced[-1] == (tmp_path, True)


def test_a_files_content_is_on_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, fsync, synced = tmp_path / "f.json", os.fsync, []

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append((opened(descriptor), place.exists()))

    monkeypatch.setattr(os, "fsync", noted)
    write_json(place, {})
    (content, named_before), name = synced
    assert (is_temporary(content), named_before) == (True, False)
    assert name == (tmp_path, True)


def test_who_was_second_forces_the_name_of_the_first_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commit_directory(tree_to_commit(tmp_path / "d"), tmp_path / "d")
    late, fsync, synced = tree_to_commit(tmp_path / "d"), os.fsync, []

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(opened(descriptor))

    monkeypatch.setattr(os, "fsync", noted)
    assert not commit_directory(late, tmp_path / "d")
    assert synced[-1] == tmp_path


@pytest.mark.parametrize("commit", [lambda t, p: commit_directory(t, p), lambda t, _: write_manifest(t)])
def test_a_directory_that_cannot_be_listed_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: Callable[[Path, Path], object]
) -> None:
    temporary, scandir = tree_to_commit(tmp_path / "d"), os.scandir

    def failing(path: Path | str) -> object:
        if Path(path).name == "sub":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        commit(temporary, tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_what_cannot_be_forced_to_the_disk_takes_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary, fsync = tree_to_commit(tmp_path / "d"), os.fsync

    def failing(descriptor: int) -> None:
        if opened(descriptor).match("sub/c"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        commit_directory(temporary, tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_a_group_comes_back_as_it_was_and_a_late_one_is_dropped(tmp_path: Path) -> None:
    path = RunLayout(tmp_path).group(3, 7)
    assert commit_group(path, sampled(), holder="first")
    assert not commit_group(path, sampled("late"), holder="late")
    group = read_group(path)
    assert {name: getattr(group, name) for name in PARTS} == {name: getattr(sampled(), name) for name in PARTS}
    assert group.statistics == COST
    assert read_manifest(path).about["holder"] == "first"
    assert complete_groups(path.parent) == {7}
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("file", [*(f"{name}.parquet" for name in PARTS), "MANIFEST.json"])
def test_a_byte_changed_anywhere_in_a_group_is_found_out(tmp_path: Path, file: str) -> None:
    path = RunLayout(tmp_path).group(3, 7)
    commit_group(path, sampled())
    content = (path / file).read_bytes()
    for place in range(0, len(content), 7):
        changed = bytes([content[place] ^ 1])
        (path / file).write_bytes(content[:place] + changed + content[place + 1 :])
        with pytest.raises(UserError):
            read_group(path)


@given(st.text(), st.lists(st.floats(allow_nan=False), max_size=5))
def test_any_text_and_number_survives_a_file_of_records(
    tmp_path_factory: pytest.TempPathFactory, text: str, logs: list[float]
) -> None:
    text = text.encode("utf-8", "replace").decode()
    record = dataclasses.replace(rollout(text=text), logprobs=logs)
    path = tmp_path_factory.mktemp("s") / "records.parquet"
    write_records(path, [record], Rollout)
    assert read_records(path, Rollout) == [record]


def test_a_log_probability_of_a_server_takes_its_four_bytes_at_most(tmp_path: Path) -> None:
    """Servers give 32 bits, which the record holds in 64."""
    draws, count = random.Random(0), 4096
    logs = [struct.unpack("f", struct.pack("f", -draws.expovariate(1)))[0] for _ in range(count)]
    path = tmp_path / "records.parquet"
    write_records(path, [dataclasses.replace(rollout(), token_ids=[0] * count, logprobs=logs)], Rollout)
    assert read_records(path, Rollout)[0].logprobs == logs
    assert path.stat().st_size < 4 * count + 8192, "8 KiB for the other columns and the description of the file"


@pytest.mark.parametrize("damage", ["cut", "empty"])
def test_a_damaged_file_of_records_is_an_error_that_names_it(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "records.parquet"
    write_records(path, [rollout()], Rollout)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    with pytest.raises(UserError, match=path.name):
        read_records(path, Rollout)


def test_records_of_another_kind_are_refused(tmp_path: Path) -> None:
    write_records(tmp_path / "records.parquet", [branch()], Branch)
    with pytest.raises(UserError, match="other columns"):
        read_records(tmp_path / "records.parquet", Rollout)


def test_each_collection_has_a_place_and_a_number_of_its_own(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert layout.iteration(collection_of(0)) == tmp_path / "collection", "as in runs of earlier versions"
    assert layout.iteration(collection_of(62)) == tmp_path / "collections" / "v000062"
    assert layout.iteration(0) == tmp_path / "iterations" / "000000"
    numbers = [collection_of(version) for version in range(100)]
    assert all(map(is_collection, numbers))
    assert [collecting_version(number) for number in numbers] == [*range(100)]


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
    assert verify(layout.weights_version(1)).about == {"place": [], "version": 1}
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
        commit_group(layout.group(version - 1, 0), sampled())
    moved = set_aside(layout, younger_than(layout, 1), "because")
    assert published_versions(layout) == [1]
    assert [layout.metrics(i).exists() for i in range(3)] == [True, False, False]
    assert all(layout.group(i, 0).exists() for i in range(3))
    assert sorted(p.name for p in moved) == [
        "iterations-000001-metrics.json", "iterations-000002-metrics.json", "weights-v000002", "weights-v000003",
    ]  # fmt: skip
    assert (moved[0].parent / "REASON").read_text() == "because\n"
    assert younger_than(layout, 1) == []
    assert set_aside(layout, [layout.weights_version(2)], "gone by now") == []


def test_events_of_all_processes_are_read_in_order_and_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    EventLog(tmp_path / "a.jsonl").emit(EventKind.STEP, iteration=1)
    EventLog(tmp_path / "b.jsonl").emit(EventKind.PUBLISHED, version=2)
    with (tmp_path / "b.jsonl").open("a") as stream:
        stream.write('{"time": 1, "ki')
    assert [e["kind"] for e in read_events(tmp_path)] == ["step", "published"]
    assert read_events(tmp_path, EventKind.PUBLISHED)[0]["version"] == 2


def test_no_field_of_an_event_hides_who_emitted_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pid"):
        EventLog(tmp_path / "a.jsonl").emit(EventKind.SERVER_STARTED, pid=7)


def test_an_event_that_a_full_disk_cuts_short_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = os.write
    room = [10, 0]

    def short(descriptor: int, text: bytes) -> int:
        left = room.pop(0) if room else len(text)
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(descriptor, text[:left])

    monkeypatch.setattr(os, "write", short)
    monkeypatch.setattr(patience.time, "sleep", lambda _: None)
    log = EventLog(tmp_path / "a.jsonl")
    log.emit(EventKind.STEP, iteration=1)
    log.emit(EventKind.STEP, iteration=2)
    assert room == []
    assert [e["iteration"] for e in read_events(tmp_path)] == [1, 2]


def test_a_task_that_fails_too_often_or_fatally_is_not_run_again(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    record = read_task(layout, "j", 3)
    assert record.state is TaskState.WAITING
    states = []
    for _ in range(3):
        record = record.failed("why", ExitCode.RETRYABLE, retries=2, progressed=False)
        states.append(record.state)
    assert states == [TaskState.RETRYING, TaskState.RETRYING, TaskState.FAILED]
    assert (
        TaskRecord(TaskState.RUNNING).failed("why", ExitCode.FATAL, retries=2, progressed=True).state
        is TaskState.FAILED
    )
    write_task(layout, "j", 3, record)
    assert (read_task(layout, "j", 3).message, read_task(layout, "j", 3).failures) == ("why", 3)
    forget_failures(layout, "j", range(4))
    assert read_task(layout, "j", 3).state is TaskState.WAITING


def test_forgetting_failures_leaves_what_is_done(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    write_task(layout, "j", 0, TaskRecord(TaskState.DONE))
    forget_failures(layout, "j", range(1))
    assert read_task(layout, "j", 0).state is TaskState.DONE


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"state": "odd"}', '{"state": "done", "waits": "1"}'])
def test_a_damaged_state_of_a_task_is_an_error_with_advice(tmp_path: Path, content: str) -> None:
    layout = RunLayout(tmp_path)
    task_file(layout, "j", 0).parent.mkdir(parents=True)
    task_file(layout, "j", 0).write_text(content)
    with pytest.raises(UserError, match="cannot be read"):
        read_task(layout, "j", 0)


def test_checksums_are_computed_side_by_side_and_told_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / str(n) for n in range(5)]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number]) * 1000)
    both, one = threading.Barrier(2, timeout=10), atomic.checksum

    def meet(path: Path) -> str:
        if path in files[:2]:
            both.wait()  # breaks unless two files are read at a time
        return one(path)

    monkeypatch.setattr(atomic, "CHECKSUMS_AT_ONCE", 2)
    monkeypatch.setattr(atomic, "checksum", meet)
    assert atomic.checksums(files) == [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert atomic.checksums([]) == []


def test_a_manifest_takes_over_the_checksums_that_writers_know(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"def")
    known = hashlib.sha256(b"abc").hexdigest()
    assert write_manifest(tmp_path, {"a": (3, known)}).files["a"] == (3, known)
    assert verify(tmp_path).files["b"] == (3, hashlib.sha256(b"def").hexdigest())
    with pytest.raises(DamagedError, match="3 bytes"):
        write_manifest(tmp_path, {"a": (4, known)})


def test_bytes_that_did_not_arrive_as_they_were_written_are_found_by_the_reader(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abX")
    write_manifest(tmp_path, {"a": (3, hashlib.sha256(b"abc").hexdigest())})
    with pytest.raises(DamagedError, match="differs"):
        verify(tmp_path)


def test_a_forked_child_syncs_with_threads_of_its_own(tmp_path: Path) -> None:
    def sync() -> None:
        os._exit(atomic.sync_tree(tmp_path) is not None)

    atomic.sync_tree(tmp_path)
    child = multiprocessing.get_context("fork").Process(target=sync)
    child.start()
    child.join(timeout=60)
    assert child.exitcode == 0


def test_a_sync_that_fails_is_told_when_all_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / name).touch()
    ended: list[str] = []

    def sync(path: Path) -> None:
        if path.name == "a":
            raise OSError(5, "Input/output error")
        ended.append(path.name)

    monkeypatch.setattr(atomic, "sync_file", sync)
    with pytest.raises(OSError, match="Input/output"):
        atomic.sync_tree(tmp_path)
    assert sorted(ended) == sorted([tmp_path.name, "b"])
