"""Events are read once, while they are written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.run.events import EventStream, Process, last_event, process_of

if TYPE_CHECKING:
    from pathlib import Path

NAME = "segment-000.trainer.00000.0.1234_5.0.jsonl"


def line(time: float, kind: str = "step", **fields: object) -> str:
    return json.dumps({"time": time, "kind": kind, "host": "a", "pid": 1, **fields}) + "\n"


def append(path: Path, text: str) -> None:
    with path.open("a") as stream:
        stream.write(text)


def times(stream: EventStream) -> list[float]:
    return [event.time for event in stream.new()]


def test_each_event_is_returned_once_and_by_time(tmp_path: Path) -> None:
    stream = EventStream(tmp_path)
    assert times(stream) == []
    append(tmp_path / NAME, line(3.0) + line(5.0))
    append(tmp_path / "prepare.00000.0.ab.jsonl", line(4.0))
    assert times(stream) == [3.0, 4.0, 5.0]
    append(tmp_path / NAME, line(6.0))
    assert times(stream) == [6.0]
    assert times(stream) == []


def test_there_may_be_no_folder_yet(tmp_path: Path) -> None:
    assert EventStream(tmp_path / "events").new() == []


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    stream, text = EventStream(tmp_path), line(1.0)
    append(tmp_path / NAME, text[:20])
    assert times(stream) == []
    append(tmp_path / NAME, text[20:])
    assert times(stream) == [1.0]


@pytest.mark.parametrize(
    "torn", ['{"time": 1.0, "ki', "[1]", '{"time": "late", "kind": "step"}', "\x00\x00", '{"time": 1}']
)
def test_a_line_that_is_no_event_is_passed_over(tmp_path: Path, torn: str) -> None:
    append(tmp_path / NAME, f"{torn}\n{line(2.0)}")
    assert times(EventStream(tmp_path)) == [2.0]


def test_a_file_is_not_opened_again_after_the_end_of_its_attempt(tmp_path: Path) -> None:
    stream, path = EventStream(tmp_path), tmp_path / NAME
    append(path, line(1.0, "task_ended", outcome="done"))
    assert times(stream) == [1.0]
    path.unlink()
    path.mkdir()  # opening it would fail now
    assert times(stream) == []


def test_frequent_events_are_passed_over_except_the_last(tmp_path: Path) -> None:
    append(tmp_path / NAME, line(1.0, "dull") + line(2.0) + line(3.0, "dull") + line(4.0, "dull"))
    stream = EventStream(tmp_path, lambda text: b"dull" not in text)
    assert times(stream) == [2.0, 4.0]
    append(tmp_path / NAME, line(5.0, "dull") + line(6.0))
    assert times(stream) == [6.0]


@pytest.mark.parametrize(
    ("name", "process"),
    [
        (NAME, Process("segment-000.trainer", 0, 0, "1234_5.0")),
        ("prepare.00000.1.6806a73c.jsonl", Process("prepare", 0, 1, "6806a73c")),
        ("segment-012.evaluation-1.00042.0.12345.10.jsonl", Process("segment-012.evaluation-1", 42, 0, "12345.10")),
        ("submission.jsonl", None),
    ],
)
def test_the_name_of_a_file_tells_the_process(name: str, process: Process | None) -> None:
    assert process_of(name) == process


def test_the_last_event_of_a_file_is_found_behind_a_torn_line(tmp_path: Path) -> None:
    append(tmp_path / NAME, line(1.0) + line(2.0, "checkpoint") + '{"time": 3')
    event = last_event(tmp_path / NAME)
    assert event is not None
    assert (event.time, event.kind) == (2.0, "checkpoint")
    (tmp_path / "empty.jsonl").touch()
    assert last_event(tmp_path / "empty.jsonl") is None
