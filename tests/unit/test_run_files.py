"""Files of a run directory, and the groups of a passed iteration in one file: whole or absent, the first commit wins,
nothing is lost on the way, and damage is seen.
"""

import dataclasses
import errno
import hashlib
import json
import math
import multiprocessing
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import samples
from commands import refusal
from run_of import bare_run, publish_some, read_events
from samples import rollout

from mrt_hpc import UserError
from mrt_hpc.run import archive as archives
from mrt_hpc.run import atomic, groups, retries
from mrt_hpc.run.archive import archive_groups, read_sampled, sampled_manifest, sampled_positions, unpack
from mrt_hpc.run.atomic import commit_directory, create_file, is_temporary, replace_file, temporary_sibling, write_json
from mrt_hpc.run.event_stream import EventStream, Process, last_event, process_of
from mrt_hpc.run.events import EventKind, EventLog
from mrt_hpc.run.groups import PARTS, Group, Sampled, commit_group, complete_groups, read_group
from mrt_hpc.run.layout import COLLECTION, RunLayout, collecting_version, collection_of, is_collection
from mrt_hpc.run.manifest import DamagedError, Manifest, read_manifest, verify, write_manifest
from mrt_hpc.run.parquet import read_records, write_records
from mrt_hpc.run.quarantine import set_aside, younger_than
from mrt_hpc.run.records import AnswerProbability, Branch, FinishReason, GroupStatistics, PrefixValue, Rollout
from mrt_hpc.run.task_state import TaskRecord, TaskState, forget_failures, read_task, write_task
from mrt_hpc.run.weights import prune, published_versions

BRANCH = samples.branch_with(
    [4], iteration=3, problem_id="p", boundary=1, seed=9, weights_version=2, logprobs=[-0.1], text="y", answer="5",
    finish_reason=FinishReason.LENGTH, reward=0.0, known=True, look_ahead=0.25, prompt_tokens=8,
)  # fmt: skip
COST = GroupStatistics(1, 1, 2, 1, 8, 0, 10, {"generation": 1.5})
VALUE = PrefixValue(3, "p", 0, 1, 0.5, variance=0.0625, progress_variance=0.03125, branches=1, baseline=0.25)
ANSWER = AnswerProbability(iteration=3, problem_id="p", sample=0, boundary=1, answer="7", probability=0.75, reward=1.0)


def sampled(text: str = "\x00\r\n\u2028 é 数学 🙂") -> Sampled:
    traces = samples.sampled(dataclasses.replace(rollout("p", 0, text), logprobs=[-0.1, -1e-320, -1e300]))
    return dataclasses.replace(traces, branches=[BRANCH], answers=[ANSWER], values=[VALUE], statistics=COST)


def test_a_failed_write_leaves_the_old_content_and_no_litter_and_the_first_commit_wins(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), replace_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert json.loads(path.read_text()) == {"a": 1}
    for content in ("first", "second"):
        with create_file(tmp_path / "f") as made:
            made.temporary.write_text(content)
        temporary = temporary_sibling(tmp_path / "d")
        assert is_temporary(temporary)
        temporary.mkdir()
        (temporary / "f").write_text(content)
        assert made.won is commit_directory(temporary, tmp_path / "d") is (content == "first")
    assert (tmp_path / "f").read_text() == (tmp_path / "d" / "f").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "f", "f.json"]


def tree_to_commit(path: Path) -> Path:
    temporary = temporary_sibling(path)
    (temporary / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        (temporary / name).write_text(name)
    return temporary


def opened(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def test_content_is_on_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, synced, place = os.fsync, list[tuple[Path, bool]](), tmp_path / "d"

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append((opened(descriptor), place.exists()))

    monkeypatch.setattr(os, "fsync", noted)
    write_json(place, {})
    assert (is_temporary(synced[0][0]), synced[0][1], synced[1]) == (True, False, (tmp_path, True))
    assert synced[2:] == [(above, True) for above in tmp_path.parents[: len(synced) - 2]], "the folders above, once"
    place.unlink()
    synced.clear()
    temporary, late = (tree_to_commit(place) for _ in range(2))
    assert commit_directory(temporary, place)
    before = [temporary, *(temporary / name for name in ("a", "b", "sub", "sub/c"))]
    assert (sorted(synced[:-1]), synced[-1]) == (sorted((path, False) for path in before), (tmp_path, True))
    synced.clear()
    assert not commit_directory(late, place)
    assert synced[-1] == (tmp_path, True), "who was second forces the name of the first to the disk"


@pytest.mark.parametrize(("call", "fails_on"), [("scandir", "sub"), ("fsync", "c")])
def test_a_directory_that_cannot_be_read_or_forced_to_the_disk_takes_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, fails_on: str
) -> None:
    temporary, real = tree_to_commit(tmp_path / "d"), getattr(os, call)

    def failing(what: Path | str | int) -> object:
        if (opened(what) if isinstance(what, int) else Path(what)).name == fails_on:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(what)

    monkeypatch.setattr(os, call, failing)
    if call == "scandir":
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            write_manifest(temporary)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        commit_directory(temporary, tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_a_forked_child_syncs_with_threads_of_its_own(tmp_path: Path) -> None:
    atomic.sync_tree(tmp_path)
    child = multiprocessing.get_context("fork").Process(target=atomic.sync_tree, args=[tmp_path])
    child.start()
    child.join(timeout=60)
    assert child.exitcode == 0


def test_a_group_comes_back_as_it_was_and_a_late_one_is_dropped(tmp_path: Path) -> None:
    path = bare_run(tmp_path).group(3, 7)
    assert commit_group(path, sampled(), holder="first")
    assert not commit_group(path, sampled("late"), holder="late")
    group = read_group(path)
    assert {name: getattr(group, name) for name in PARTS} == {name: getattr(sampled(), name) for name in PARTS}
    assert (group.statistics, read_manifest(path).about["holder"]) == (COST, "first")
    assert (complete_groups(path.parent), list(path.parent.iterdir())) == ({7}, [path])


@pytest.mark.parametrize("file", [*(f"{name}.parquet" for name in PARTS), "MANIFEST.json"])
def test_a_byte_changed_anywhere_in_a_group_is_found_out(tmp_path: Path, file: str) -> None:
    path = bare_run(tmp_path).group(3, 7)
    commit_group(path, sampled())
    content = (path / file).read_bytes()
    for place in range(0, len(content), 29):
        (path / file).write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        refusal(read_group, path)


def test_a_file_of_records_that_is_damaged_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.parquet"
    write_records(path, [rollout("p", 0)], Rollout)
    content = path.read_bytes()
    write_records(path, [BRANCH], Branch)
    for wrong in (path.read_bytes(), content[: len(content) // 2], b""):
        path.write_bytes(wrong)
        assert path.name in str(refusal(read_records, path, Rollout))


def test_each_collection_has_a_place_and_a_number_of_its_own(tmp_path: Path) -> None:
    layout, numbers = RunLayout(tmp_path), [collection_of(version) for version in range(100)]
    assert layout.iteration(numbers[0]) == tmp_path / "collection", "as in runs of earlier versions"
    assert layout.iteration(numbers[62]) == tmp_path / "collections" / "v000062"
    assert all(map(is_collection, numbers)) and not is_collection(0)
    assert [collecting_version(number) for number in numbers] == [*range(100)]


def test_weights_versions_stay_until_they_are_pruned(tmp_path: Path) -> None:
    layout = bare_run(tmp_path)
    publish_some(layout, 0, 1, 2, 3, 4)
    place = [layout.identity.read_text().strip(), "weights/v000001"]
    assert verify(layout.weights_version(1)).about == {"place": place, "version": 1}
    assert (prune(layout, {0, 3, 4}), published_versions(layout)) == ([1, 2], [0, 3, 4])


def test_what_lies_after_the_checkpoint_is_set_aside_with_its_reason(tmp_path: Path) -> None:
    layout = bare_run(tmp_path)
    for version in (1, 2, 3):
        publish_some(layout, version)
        write_json(layout.metrics(version - 1), {})
        commit_group(layout.group(version - 1, 0), sampled())
    moved = set_aside(layout, younger_than(layout, 1), "because")
    assert (published_versions(layout), [layout.metrics(i).exists() for i in range(3)]) == ([1], [True, False, False])
    assert all(layout.group(i, 0).exists() for i in range(3))
    metrics, weights = (f"iterations-{i:06}-metrics.json" for i in (1, 2)), (f"weights-v{v:06}" for v in (2, 3))
    assert sorted(p.name for p in moved) == [*metrics, *weights]
    assert (moved[0].parent / "REASON").read_text() == "because\n"
    assert younger_than(layout, 1) == set_aside(layout, [layout.weights_version(2)], "gone by now") == []


def test_a_manifest_takes_over_the_checksums_that_writers_know(tmp_path: Path) -> None:
    for name in "abcde":
        (tmp_path / name).write_text(3 * name)
    digests = {name: (3, hashlib.sha256(3 * name.encode()).hexdigest()) for name in "abcde"}
    known = digests["a"][1]
    assert write_manifest(tmp_path, {"a": (3, known)}).files == verify(tmp_path).files == digests
    with pytest.raises(DamagedError, match="3 bytes"):
        write_manifest(tmp_path, {"a": (4, known)})
    (tmp_path / "a").write_bytes(b"abX")  # which did not arrive as it was written
    write_manifest(tmp_path, {"a": (3, known)})
    with pytest.raises(DamagedError):
        verify(tmp_path)


NAME = "segment-000.trainer.00000.0.1234_5.0.jsonl"


def line(time: float, kind: str = "step", **fields: object) -> str:
    return json.dumps({"time": time, "kind": kind, "host": "a", "pid": 1, **fields}) + "\n"


def append(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as stream:
        stream.write(text)


def times(stream: EventStream) -> list[float]:
    return [event.time for event in stream.new()]


def test_a_stream_gives_each_event_once_when_its_line_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    stream, path = EventStream(folder), folder / NAME
    assert times(stream) == [], "there is no folder yet"
    append(path, line(3.0) + line(5.0))
    append(folder / "prepare.00000.0.ab.jsonl", line(4.0))
    assert times(stream) == [3.0, 4.0, 5.0]
    append(path, line(6.0)[:20])
    assert times(stream) == []
    append(path, line(6.0)[20:])
    for torn in ('{"time": 1.0, "ki', "[1]", '{"time": "late", "kind": "step"}', "\x00\x00", '{"time": 1}'):
        append(path, f"{torn}\n")
    append(path, line(7.0, "task_ended", outcome="done"))
    assert times(stream) == [6.0, 7.0]
    (fault,) = stream.faults
    assert "damaged" in fault and str(path) in fault
    path.unlink()
    path.mkdir()  # opening it would fail now, and after the end of its attempt nothing is added
    (folder / "b.jsonl").mkdir()
    assert times(stream) == []
    assert [("no file" in fault, str(path) in fault) for fault in stream.faults] == [(True, False), (False, True)]
    (folder / "b.jsonl").rmdir()
    path.rmdir()
    append(path, line(1.0, "dull") + line(2.0) + line(3.0, "dull") + line(4.0, "dull"))
    assert times(EventStream(folder, lambda text: b"dull" not in text)) == [2.0, 4.0, 4.0], "the last of each file"


def test_the_process_of_a_file_and_its_last_event(tmp_path: Path) -> None:
    assert process_of("segment-012.eval-1.00042.0.12345.10.jsonl") == Process("segment-012.eval-1", 42, 0, "12345.10")
    assert process_of("submission.jsonl") is None
    with pytest.raises(ValueError, match="pid"):  # which would hide who emitted it
        EventLog(tmp_path / NAME).emit(EventKind.SERVER_STARTED, pid=7)
    append(tmp_path / NAME, line(1.0) + line(2.0, "checkpoint") + '{"time": 3')
    event = last_event(tmp_path / NAME)
    assert event and (event.time, event.kind) == (2.0, "checkpoint")
    (tmp_path / "empty.jsonl").touch()
    assert last_event(tmp_path / "empty.jsonl") is None


def test_an_event_that_a_full_disk_cuts_short_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, room = os.write, [10, 0]

    def short(descriptor: int, text: bytes) -> int:
        if not (left := room.pop(0) if room else len(text)):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, text[:left])

    monkeypatch.setattr(os, "write", short)
    monkeypatch.setattr(retries.time, "sleep", lambda _: None)
    for iteration in (1, 2):
        EventLog(tmp_path / "a.jsonl").emit(EventKind.STEP, iteration=iteration)
    assert (room, [e["iteration"] for e in read_events(tmp_path)]) == ([], [1, 2])


def test_failures_are_forgotten_and_what_is_done_stays_done(tmp_path: Path) -> None:
    layout = bare_run(tmp_path)
    write_task(layout, "j", 3, TaskRecord(TaskState.FAILED, "7.2", "why", failures=3))
    write_task(layout, "j", 2, TaskRecord(TaskState.DONE))
    assert (read_task(layout, "j", 3).message, read_task(layout, "j", 3).failures) == ("why", 3)
    forget_failures(layout, "j", range(4))
    assert [read_task(layout, "j", index).state for index in (2, 3)] == [TaskState.DONE, TaskState.WAITING]


# -- the groups of a passed iteration in one file


GROUPS = 5


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    made = bare_run(tmp_path)
    for position in range(GROUPS):
        commit_group(made.group(3, position), samples.sampled(rollout(f"p{position}", 0)), holder={"index": position})
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
    good = dataclasses.replace(samples.sampled(rollout("p-7", 2)), values=[estimate])
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
