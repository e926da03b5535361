"""Files of a run directory: whole or absent, first commit wins, damage is seen."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import multiprocessing
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st
from run_of import publish_some
from samples import rollout

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run import atomic, retries
from mrt_hpc.run.atomic import commit_directory, creating, is_temporary, replacing, temporary_sibling, write_json
from mrt_hpc.run.events import EventKind, EventLog, EventStream, Process, last_event, process_of, read_events
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

BRANCH = Branch(
    iteration=3, problem_id="p", sample=0, boundary=1, branch=0, seed=9, weights_version=2, token_ids=[4],
    logprobs=[-0.1], finish_reason=FinishReason.LENGTH, text="y", answer="5", reward=0.0, known=True, look_ahead=0.25,
    prompt_tokens=8, cached_tokens=None,
)  # fmt: skip
COST = GroupStatistics(1, 1, 2, 1, 8, 0, 10, {"generation": 1.5})
VALUE = PrefixValue(3, "p", 0, 1, 0.5, variance=0.0625, progress_variance=0.03125, branches=1, baseline=0.25)
ANSWER = AnswerProbability(iteration=3, problem_id="p", sample=0, boundary=1, answer="7", probability=0.75, reward=1.0)


def sampled(text: str = "x") -> Sampled:
    traces = samples.sampled(rollout("p", 0, text))
    return dataclasses.replace(traces, branches=[BRANCH], answers=[ANSWER], values=[VALUE], statistics=COST)


# -- a file or a directory takes its place


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_the_first_commit_wins_and_the_late_one_is_removed(tmp_path: Path) -> None:
    for content in ("first", "second"):
        with creating(tmp_path / "f") as made:
            made.temporary.write_text(content)
        temporary = temporary_sibling(tmp_path / "d")
        assert is_temporary(temporary)
        temporary.mkdir()
        (temporary / "f").write_text(content)
        assert made.won is commit_directory(temporary, tmp_path / "d") is (content == "first")
    assert (tmp_path / "f").read_text() == (tmp_path / "d" / "f").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "f"]


def tree_to_commit(path: Path) -> Path:
    temporary = temporary_sibling(path)
    (temporary / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        (temporary / name).write_text(name)
    return temporary


def opened(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


@pytest.fixture
def synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, bool]]:
    """What was forced to the disk, each with whether something stood at the place ``d`` then."""
    fsync, told = os.fsync, list[tuple[Path, bool]]()

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        told.append((opened(descriptor), (tmp_path / "d").exists()))

    monkeypatch.setattr(os, "fsync", noted)
    return told


def test_a_directory_is_on_the_disk_before_it_takes_its_place_and_its_name_after(
    tmp_path: Path, synced: list[tuple[Path, bool]]
) -> None:
    temporary, late = (tree_to_commit(tmp_path / "d") for _ in range(2))
    assert commit_directory(temporary, tmp_path / "d")
    before = [temporary, *(temporary / name for name in ("a", "b", "sub", "sub/c"))]
    assert sorted(synced[:-1]) == sorted((path, False) for path in before)
    assert synced[-1] == (tmp_path, True)
    synced.clear()
    assert not commit_directory(late, tmp_path / "d")
    assert synced[-1] == (tmp_path, True), "who was second forces the name of the first to the disk"


def test_a_files_content_is_on_the_disk_before_its_name(tmp_path: Path, synced: list[tuple[Path, bool]]) -> None:
    write_json(tmp_path / "d", {})
    (content, named_before), name = synced
    assert (is_temporary(content), named_before) == (True, False)
    assert name == (tmp_path, True)


@pytest.mark.parametrize(
    ("call", "fails_on", "commit"),
    [
        ("scandir", "sub", lambda temporary, place: commit_directory(temporary, place)),
        ("scandir", "sub", lambda temporary, _: write_manifest(temporary)),
        ("fsync", "c", lambda temporary, place: commit_directory(temporary, place)),
    ],
)
def test_what_cannot_be_listed_or_forced_to_the_disk_takes_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, fails_on: str, commit: Callable[[Path, Path], object]
) -> None:
    temporary, real = tree_to_commit(tmp_path / "d"), getattr(os, call)

    def failing(what: Path | str | int) -> object:
        if (opened(what) if isinstance(what, int) else Path(what)).name == fails_on:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(what)

    monkeypatch.setattr(os, call, failing)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        commit(temporary, tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_a_sync_that_fails_is_told_when_all_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    for name in "ab":
        (tmp_path / name).touch()

    def sync(path: Path) -> None:
        if path.name == "a":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        ended.append(path.name)

    monkeypatch.setattr(atomic, "sync_file", sync)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        atomic.sync_tree(tmp_path)
    assert sorted(ended) == sorted([tmp_path.name, "b"])


def test_a_forked_child_syncs_with_threads_of_its_own(tmp_path: Path) -> None:
    def sync() -> None:
        os._exit(atomic.sync_tree(tmp_path) is not None)

    atomic.sync_tree(tmp_path)
    child = multiprocessing.get_context("fork").Process(target=sync)
    child.start()
    child.join(timeout=60)
    assert child.exitcode == 0


# -- groups and records


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
def test_any_text_and_number_survives_a_file_of_records(text: str, logs: list[float]) -> None:
    record = dataclasses.replace(rollout("p", 0), text=text.encode("utf-8", "replace").decode(), logprobs=logs)
    with tempfile.TemporaryDirectory() as folder:
        write_records(Path(folder) / "records", [record], Rollout)
        assert read_records(Path(folder) / "records", Rollout) == [record]


def test_a_log_probability_of_a_server_takes_its_four_bytes_at_most(tmp_path: Path) -> None:
    """Servers give 32 bits, which the record holds in 64."""
    logs = (-np.random.default_rng(0).exponential(size=4096)).astype(np.float32).tolist()
    path = tmp_path / "records.parquet"
    write_records(path, [dataclasses.replace(rollout("p", 0), token_ids=[0] * 4096, logprobs=logs)], Rollout)
    assert path.stat().st_size < 4 * 4096 + 8192, "8 KiB for the other columns and the description of the file"


def test_a_file_of_records_that_is_damaged_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.parquet"
    write_records(path, [rollout("p", 0)], Rollout)
    content = path.read_bytes()
    write_records(path, [BRANCH], Branch)
    for wrong in (path.read_bytes(), content[: len(content) // 2], b""):
        path.write_bytes(wrong)
        with pytest.raises(UserError, match=path.name):
            read_records(path, Rollout)


def test_each_collection_has_a_place_and_a_number_of_its_own(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert layout.iteration(collection_of(0)) == tmp_path / "collection", "as in runs of earlier versions"
    assert layout.iteration(collection_of(62)) == tmp_path / "collections" / "v000062"
    assert layout.iteration(0) == tmp_path / "iterations" / "000000"
    numbers = [collection_of(version) for version in range(100)]
    assert all(map(is_collection, numbers))
    assert [collecting_version(number) for number in numbers] == [*range(100)]


# -- weights versions and manifests


def test_weights_versions_are_complete_or_absent_until_they_are_pruned(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)

    def fail(directory: Path) -> None:
        (directory / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        publish(layout, 1, fail)
    assert published_versions(layout) == []
    publish_some(layout, 1)
    assert not publish(layout, 1, lambda directory: (directory / "late").touch())
    assert verify(layout.weights_version(1)).about == {"place": [], "version": 1}
    assert list(layout.weights.iterdir()) == [layout.weights_version(1)]
    (layout.weights_version(1) / "model.safetensors").write_text("weightS")
    with pytest.raises(DamagedError):
        verify(layout.weights_version(1))
    publish_some(layout, 0, 2, 3, 4)
    assert prune(layout, {0, 3, 4}) == [1, 2]
    assert published_versions(layout) == [0, 3, 4]


def test_what_lies_after_the_checkpoint_is_set_aside_with_its_reason(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    for version in (1, 2, 3):
        publish_some(layout, version)
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
    contents = {name: 3 * name.encode() for name in "abcde"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    known = hashlib.sha256(b"aaa").hexdigest()
    assert write_manifest(tmp_path, {"a": (3, known)}).files["a"] == (3, known)
    digests = {name: (3, hashlib.sha256(content).hexdigest()) for name, content in contents.items()}
    assert verify(tmp_path).files == digests
    with pytest.raises(DamagedError, match="3 bytes"):
        write_manifest(tmp_path, {"a": (4, known)})
    (tmp_path / "a").write_bytes(b"abX")  # which did not arrive as it was written
    write_manifest(tmp_path, {"a": (3, known)})
    with pytest.raises(DamagedError):
        verify(tmp_path)


# -- events and states of tasks


NAME = "segment-000.trainer.00000.0.1234_5.0.jsonl"


def line(time: float, kind: str = "step", **fields: object) -> str:
    return json.dumps({"time": time, "kind": kind, "host": "a", "pid": 1, **fields}) + "\n"


def append(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as stream:
        stream.write(text)


def times(stream: EventStream) -> list[float]:
    return [event.time for event in stream.new()]


def test_events_of_all_processes_are_read_in_order_and_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    EventLog(tmp_path / "a.jsonl").emit(EventKind.STEP, iteration=1)
    EventLog(tmp_path / "b.jsonl").emit(EventKind.PUBLISHED, version=2)
    append(tmp_path / "b.jsonl", '{"time": 1, "ki')
    assert [e["kind"] for e in read_events(tmp_path)] == ["step", "published"]
    assert read_events(tmp_path, EventKind.PUBLISHED)[0]["version"] == 2
    with pytest.raises(ValueError, match="pid"):  # which would hide who emitted it
        EventLog(tmp_path / "a.jsonl").emit(EventKind.SERVER_STARTED, pid=7)


def test_a_stream_gives_each_event_once_when_its_line_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    stream, path = EventStream(folder), folder / NAME
    assert times(stream) == [], "there is no folder yet"
    append(path, line(3.0) + line(5.0))
    append(folder / "prepare.00000.0.ab.jsonl", line(4.0))
    assert times(stream) == [3.0, 4.0, 5.0]
    append(path, line(6.0)[:20])
    assert times(stream) == []
    append(path, line(6.0)[20:] + line(7.0, "task_ended", outcome="done"))
    assert times(stream) == [6.0, 7.0]
    path.unlink()
    path.mkdir()  # opening it would fail now, and after the end of its attempt nothing is added
    assert times(stream) == []


@pytest.mark.parametrize(
    "torn", ['{"time": 1.0, "ki', "[1]", '{"time": "late", "kind": "step"}', "\x00\x00", '{"time": 1}']
)
def test_a_line_that_is_no_event_is_passed_over(tmp_path: Path, torn: str) -> None:
    append(tmp_path / NAME, f"{torn}\n{line(2.0)}")
    assert times(EventStream(tmp_path)) == [2.0]


def test_frequent_events_are_passed_over_except_the_last(tmp_path: Path) -> None:
    append(tmp_path / NAME, line(1.0, "dull") + line(2.0) + line(3.0, "dull") + line(4.0, "dull"))
    stream = EventStream(tmp_path, lambda text: b"dull" not in text)
    assert times(stream) == [2.0, 4.0]
    append(tmp_path / NAME, line(5.0, "dull") + line(6.0))
    assert times(stream) == [6.0]


def test_the_name_of_a_file_tells_the_process_and_its_last_whole_line_the_last_event(tmp_path: Path) -> None:
    names = (NAME, "prepare.00000.1.6806a73c.jsonl", "segment-012.eval-1.00042.0.12345.10.jsonl", "submission.jsonl")
    assert [process_of(name) for name in names] == [
        Process("segment-000.trainer", 0, 0, "1234_5.0"),
        Process("prepare", 0, 1, "6806a73c"),
        Process("segment-012.eval-1", 42, 0, "12345.10"),
        None,
    ]
    append(tmp_path / NAME, line(1.0) + line(2.0, "checkpoint") + '{"time": 3')
    event = last_event(tmp_path / NAME)
    assert event and (event.time, event.kind) == (2.0, "checkpoint")
    (tmp_path / "empty.jsonl").touch()
    assert last_event(tmp_path / "empty.jsonl") is None


def test_an_event_that_a_full_disk_cuts_short_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = os.write
    room = [10, 0]

    def short(descriptor: int, text: bytes) -> int:
        left = room.pop(0) if room else len(text)
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(descriptor, text[:left])

    monkeypatch.setattr(os, "write", short)
    monkeypatch.setattr(retries.time, "sleep", lambda _: None)
    log = EventLog(tmp_path / "a.jsonl")
    log.emit(EventKind.STEP, iteration=1)
    log.emit(EventKind.STEP, iteration=2)
    assert room == []
    assert [e["iteration"] for e in read_events(tmp_path)] == [1, 2]


def test_a_task_that_fails_too_often_or_fatally_is_not_run_again(tmp_path: Path) -> None:
    layout, states = RunLayout(tmp_path), []
    record = read_task(layout, "j", 3)
    assert record.state is TaskState.WAITING
    for _ in range(3):
        record = record.failed("why", ExitCode.RETRYABLE, retries=2, progressed=False)
        states.append(record.state)
    assert states == [TaskState.RETRYING, TaskState.RETRYING, TaskState.FAILED]
    fatal = TaskRecord(TaskState.RUNNING).failed("why", ExitCode.FATAL, retries=2, progressed=True)
    assert fatal.state is TaskState.FAILED
    write_task(layout, "j", 3, record)
    write_task(layout, "j", 2, TaskRecord(TaskState.DONE))
    assert (read_task(layout, "j", 3).message, read_task(layout, "j", 3).failures) == ("why", 3)
    forget_failures(layout, "j", range(4))
    assert [read_task(layout, "j", index).state for index in (2, 3)] == [TaskState.DONE, TaskState.WAITING]


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"state": "odd"}', '{"state": "done", "waits": "1"}'])
def test_a_damaged_state_of_a_task_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    path = task_file(RunLayout(tmp_path), "j", 0)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(UserError, match=path.name):
        read_task(RunLayout(tmp_path), "j", 0)
