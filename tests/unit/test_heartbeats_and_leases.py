"""Hearts judged by the observer's clock, and leases that pass on when a heart stands still."""

import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_of import bare_run

from mrt_hpc import RunLayout, UserError
from mrt_hpc.recipe import ownership
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.leases import BEATS_A_LIMIT, NO_BEAT, Heart, Holder, Leases, Observer, group_leases, read_beat
from mrt_hpc.run.retries import wait_until

LIMIT_S = 10.0


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=100.0)


@pytest.fixture
def observer(clock: SimpleNamespace) -> Observer:
    return Observer(LIMIT_S, lambda: clock.now)


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return bare_run(tmp_path)


def beat(path: Path, attempt: str, number: int) -> None:
    write_json(path, {"attempt": attempt, "beat": number})


def test_a_heart_beats_while_its_block_lasts_and_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "heart.json"
    with Heart(path, "a", limit_s=0.05 * BEATS_A_LIMIT):
        assert read_beat(path).attempt == "a"
        first = read_beat(path).beat
        wait_until(lambda: read_beat(path).beat > first + 1, reason="two beats", deadline_s=10)
    assert read_beat(path) == NO_BEAT
    with Heart(path, "a", limit_s=1000):
        beat(path, "b", 1)
    assert read_beat(path).attempt == "b", "the heart of a later attempt is left alone"


def test_a_heart_that_cannot_be_written_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (bare_run(tmp_path).root / "file").write_text("")
    heart = Heart(tmp_path / "file" / "heart.json", "a", limit_s=1000)
    for _ in range(100):
        heart.beat()
    assert len(caplog.records) == 7  # 1, 2, 4, ... 64


def test_a_look_counts_only_soon_after_a_beat_that_was_written(tmp_path: Path) -> None:
    heart, looks = Heart(bare_run(tmp_path).root / "heart.json", "a", limit_s=0.1), [0.06, 0.0]
    assert heart.beat_and(lambda: time.sleep(looks[0]) or looks.pop(0)) == 0.0, "it stood still at the first one"
    (tmp_path / "file").touch()
    for path, pause in (("file/heart.json", 0.0), ("heart.json", 0.06)):
        with pytest.raises(UserError, match="cannot be written in time"):
            Heart(tmp_path / path, "a", limit_s=0.1).beat_and(partial(time.sleep, pause))


def test_a_heart_lives_while_it_moves_and_longer(tmp_path: Path, observer: Observer, clock: SimpleNamespace) -> None:
    path = tmp_path / "heart.json"
    assert observer.living_attempt(path) is None
    beat(path, "a", 1)
    clock.now += 1000
    assert observer.living_attempt(path) == "a", "an observer that has just started cannot call it dead"
    clock.now += LIMIT_S - 1
    assert observer.living_attempt(path) == "a"
    beat(path, "a", 2)
    clock.now += LIMIT_S - 1
    assert observer.living_attempt(path) == "a", "it has moved in between"
    clock.now += LIMIT_S
    assert observer.living_attempt(path) is None
    beat(path, "a", 3)
    assert observer.living_attempt(path) == "a", "one that was only slow is back"
    for content in ("", "{", "[]", '{"attempt": "a"}', '{"attempt": "a", "beat": "x"}'):
        (tmp_path / "unreadable.json").write_text(content)
        assert observer.living_attempt(tmp_path / "unreadable.json") is None, content


def leases(layout: RunLayout, observer: Observer, index: int, attempt: str = "a") -> Leases:
    """The leases as a task sees them whose heart beats."""
    beat(layout.heart("inference", index), attempt, 1)
    return group_leases(layout, 4, Holder(layout.root, "inference", index, attempt), observer)


def test_a_group_is_leased_to_one_task_at_a_time(layout: RunLayout, observer: Observer, clock: SimpleNamespace) -> None:
    first, second = leases(layout, observer, 0), leases(layout, observer, 1)
    assert [first.claim(7), first.claim(100_000), second.claim(7)] == [True, True, False]
    assert second.free([6, 7, 8, 100_000]) == [6, 8] and second.claim(8)
    clock.now += LIMIT_S + 1
    beat(layout.heart("inference", 1), "a", 2)
    assert second.free([7, 8]) == [7, 8], "the first is lost, and a task may take again what it holds itself"
    assert second.claim(7)
    beat(layout.heart("inference", 0), "a", 2)
    assert first.free([7, 8]) == [], "it comes back, and its lease has passed on"
    assert not first.claim(7)
    same = layout.leases(4) / "00009.000"
    assert (first._create(same), second._create(same)) == (True, False), "of two who see a free group one gets it"


def test_a_look_reads_each_file_once(layout: RunLayout, observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    for index in range(4):
        assert all(map(leases(layout, observer, index).claim, range(100 * index, 100 * (index + 1))))
    another, opened = leases(layout, observer, 4), ownership._stream
    monkeypatch.setattr(ownership, "_stream", lambda path: (read.append(path), opened(path))[1])
    for number in (404, 4):
        read.clear()
        assert another.free(list(range(500))) == list(range(400, 500))
        assert len(read) == number


def test_no_complete_group_is_leased_and_no_damaged_lease_counts(layout: RunLayout, observer: Observer) -> None:
    layout.group(4, 6).mkdir(parents=True)
    layout.leases(4).mkdir(parents=True)
    (layout.leases(4) / "00007.000").write_text("{")
    mine = leases(layout, observer, 0)
    assert [mine.claim(position) for position in (6, 7, 8)] == [False, True, True]
    assert (layout.leases(4) / "00007.001").is_file()
