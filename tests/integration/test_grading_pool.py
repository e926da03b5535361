"""The grader pool with real processes and real math-verify: hostile answers score 0 and hold nothing up."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import ROOT
from graded import grade_all

from mrt_hpc.domains import grader_queue
from mrt_hpc.domains.base import Judgement, Solution
from mrt_hpc.domains.grader_queue import GraderPool, Pair, Verdict, VerdictStatus
from mrt_hpc.domains.verifiers import MathVerifier, may_take_long
from mrt_hpc.errors import UserError
from mrt_hpc.run.retries import wait_until

LONGEST_HOLD_S = 60.0  # of an answer that is judged; far more than its processor time, as the machine may be busy
LONG_LIMIT_S = 60.0  # a time limit, in processor seconds, that no test waits for
TOWER, NESTED = "9^9^9^9", "(" * 300 + "1" + ")" * 300
UNBALANCED = ["\\frac{1}{", "\\left( 3", "\\sqrt{", "}{", "\\begin{pmatrix} 1 \\\\", "{" * 1000, "\\"]
UNEXPECTED = "\\sin(((((({}^{{99}})^{{99}})^{{99}})^{{99}})^{{99}})^{{99}})"
HANGS = ["9^{9^{9^{9}}}", "\\sin((10^9)!)", "\\sum_{n=1}^{10^{9}} \\frac{1}{n^2}"]


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    with GraderPool(MathVerifier(), processes=1) as started:
        yield started


def grade_with_times(pool: GraderPool, pairs: list[Pair]) -> list[tuple[Verdict, float]]:
    """Each verdict with the seconds from the submission of all pairs to its arrival."""
    started = time.monotonic()

    async def timed(pair: Pair) -> tuple[Verdict, float]:
        return (await pool.grade([pair]))[0], time.monotonic() - started

    async def all_at_once() -> list[tuple[Verdict, float]]:
        return await asyncio.gather(*map(timed, pairs))

    return asyncio.run(all_at_once())


@pytest.mark.parametrize("hostile", [TOWER, NESTED, *UNBALANCED, *HANGS])
def test_a_hostile_answer_scores_zero_and_others_do_not_wait_for_its_time_limit(pool: GraderPool, hostile: str) -> None:
    others: list[Pair] = [(f"\\frac{{{numerator}}}{{{len(hostile) + 7}}}", "2") for numerator in range(20)]
    (verdict, its_seconds), *rest = grade_with_times(pool, [(hostile, "7"), *others])
    assert verdict.reward == 0.0
    longest = its_seconds if verdict.status is VerdictStatus.TIMED_OUT else LONGEST_HOLD_S
    assert max(seconds for _, seconds in rest) < longest
    assert {other.status for other, _ in rest} == {VerdictStatus.GRADED}


def test_a_busy_machine_makes_no_right_answer_wrong() -> None:
    """Its process gets no core for longer than the time limit: the processor time is what counts."""

    async def grade_without_a_core(pool: GraderPool) -> bool:
        attempt = pool.slow.judge(Solution("\\sum_{n=1}^{600} n^2", "72180100", "", ""), 1.0)  # takes a quarter of that
        grading = asyncio.ensure_future(attempt)
        before = _members(os.getsid(0))
        await asyncio.to_thread(wait_until, lambda: _working(before), reason="a process at work", deadline_s=60)
        ends = time.monotonic() + 3.0
        await asyncio.to_thread(wait_until, lambda: _stopped() and time.monotonic() > ends, reason="3 s", deadline_s=60)
        _signal_children(signal.SIGCONT)
        return bool((await grading)[0].correct)

    with GraderPool(MathVerifier(), processes=1) as pool:
        assert asyncio.run(grade_without_a_core(pool))


def _working(before: dict[int, int]) -> bool:
    children = {child.pid for child in multiprocessing.active_children()}
    return any(ticks - before.get(pid, 0) >= 3 for pid, ticks in _members(os.getsid(0)).items() if pid in children)


def _stopped() -> bool:
    """Stops all grader processes, those as well that came since the last call."""
    _signal_children(signal.SIGSTOP)
    return True


def _signal_children(number: signal.Signals) -> None:
    for child in multiprocessing.active_children():
        assert child.pid is not None
        os.kill(child.pid, number)


def test_hangs_together_step_aside_for_the_others() -> None:
    """Three hangs that do not look so, and one process: the others, which are asked for later, are graded after three
    short first attempts, while the hangs still hang.
    """
    hangs: list[Pair] = [(UNEXPECTED.format(20 + number), "7") for number in range(3)]
    assert not any(may_take_long(answer) for answer, _ in hangs)
    others: list[Pair] = [(f"\\frac{{{numerator}}}{{101}}", "2") for numerator in range(20)]

    async def graded(pool: GraderPool) -> list[list[Verdict]]:
        hanging, grading = ([asyncio.ensure_future(pool.grade([p])) for p in pairs] for pairs in (hangs, others))
        verdicts = await asyncio.gather(*grading)
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()
        return verdicts

    with GraderPool(MathVerifier(), processes=1, time_limit_s=LONG_LIMIT_S) as pool:
        assert {verdict.status for (verdict,) in asyncio.run(graded(pool))} == {VerdictStatus.GRADED}


def test_an_answer_that_looks_slow_holds_up_no_other(pool: GraderPool, monkeypatch: pytest.MonkeyPatch) -> None:
    judged, judge = list[str](), pool.fast.judge

    async def noting(solution: Solution, limit_s: float) -> tuple[Judgement, float]:
        judged.append(solution.answer or "")
        return await judge(solution, limit_s)

    monkeypatch.setattr(pool.fast, "judge", noting)
    hangs: list[Pair] = [(f"{20 + number}^{{9^{{9^{{9}}}}}}", "7") for number in range(3)]
    timed = grade_with_times(pool, [*hangs, ("\\frac{1}{107}", "2"), ("2^{3^2}+x", "512+x")])
    assert [verdict.status for verdict, _ in timed[:3]] == [VerdictStatus.TIMED_OUT] * 3
    assert judged == ["\\frac{1}{107}"], "the process of the others gets nothing that looks slow"
    assert timed[3][1] < min(seconds for _, seconds in timed[:3])
    assert timed[4][0].reward == 1.0, "what looks slow is graded as well"


def test_a_malformed_answer_is_logged_once_with_its_beginning(
    pool: GraderPool, caplog: pytest.LogCaptureFixture
) -> None:
    malformed = "\\frac{1}{" + "y" * 100
    for _ in range(2):
        assert grade_all(pool, [(malformed, "7")])[0].status is VerdictStatus.MALFORMED
    (message,) = caplog.messages
    assert repr(malformed[:80]) in message and "y" * 80 not in message


def test_equal_pairs_are_graded_once_and_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grader_queue, "TASKS_PER_PROCESS", 5)
    pairs: list[Pair] = [(f"\\frac{{{n}}}{{2}}", f"{n / 2}") for n in range(23)]
    with GraderPool(MathVerifier(), processes=1, cache_size=2) as small:
        grade_all(small, [("1/2", "0.5")] * 3 + [("1/4", "0.25"), ("1/5", "0.2")])
        assert [asked[:2] for asked in small._cache] == [("1/4", "0.25"), ("1/5", "0.2")]
        assert all(verdict.reward == 1.0 for verdict in grade_all(small, [("1/2", "0.5"), *pairs]))


def test_an_answer_whose_process_is_killed_is_graded_again(pool: GraderPool) -> None:
    """Also where all are killed while they have nothing to do."""
    _signal_children(signal.SIGKILL)
    assert grade_all(pool, [("\\frac{3}{6}", "\\frac{1}{2}")])[0].reward == 1.0

    async def kill_while_grading() -> list[Verdict]:
        grading = asyncio.ensure_future(pool.grade([(NESTED + "+0", "7"), ("\\frac{5}{10}", "0.5")]))
        await asyncio.to_thread(wait_until, lambda: pool.slow.unfinished, reason="a task", deadline_s=60)
        _signal_children(signal.SIGKILL)
        return await grading

    assert [verdict.reward for verdict in asyncio.run(kill_while_grading())] == [0.0, 1.0]


def test_a_broken_pool_loses_no_pair_that_waits_in_it() -> None:
    """Pebble refuses tasks for a pool that broke; the pairs in it have no result yet."""
    pairs: list[Pair] = [(f"\\frac{{{n}}}{{2}}", f"{n / 2}") for n in range(1, 40, 2)]

    async def grade_in_a_broken_pool(pool: GraderPool) -> list[list[Verdict]]:
        assert _stopped() and pool.fast.pool is not None
        waiting = asyncio.ensure_future(pool.grade(pairs))
        await asyncio.to_thread(wait_until, lambda: len(pool.fast.unfinished) == 20, reason="tasks", deadline_s=60)
        pool.fast.pool.close()
        return await asyncio.gather(waiting, pool.grade([("\\frac{5}{10}", "0.5")]))

    with GraderPool(MathVerifier(), processes=1) as pool:
        pool.fast.start()
        verdicts = asyncio.run(grade_in_a_broken_pool(pool))
    assert [verdict.reward for group in verdicts for verdict in group] == [1.0] * 21


@pytest.mark.parametrize(("kills", "is_graded"), [
    (grader_queue.REPLACEMENTS, True), (grader_queue.REPLACEMENTS + 1, False)
])  # fmt: skip
def test_a_broken_pool_is_replaced_a_few_times(kills: int, is_graded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle processes are killed before the pair is sent: pebble gives such a pool up."""
    start = grader_queue.Lane.start
    left = iter(range(kills))

    def broken(self: grader_queue.Lane) -> grader_queue.ProcessPool:
        pool = start(self)
        if next(left, None) is not None:
            _signal_children(signal.SIGKILL)
            wait_until(lambda: not pool.active, reason="a broken pool", deadline_s=60)
        return pool

    with GraderPool(MathVerifier(), processes=1) as small:
        monkeypatch.setattr(grader_queue.Lane, "start", broken)
        if is_graded:
            assert grade_all(small, [("\\frac{3}{6}", "\\frac{1}{2}")])[0].reward == 1.0
        else:
            with pytest.raises(UserError, match="killed as soon as they start"):
                grade_all(small, [("\\frac{3}{6}", "\\frac{1}{2}")])


def test_memory_is_limited_and_the_process_goes_on_and_ends_with_its_pool() -> None:
    before = {child.pid for child in multiprocessing.active_children()}
    with GraderPool(MathVerifier(), processes=1, memory_limit_gib=0.05) as tight:
        with pytest.raises(MemoryError):
            tight.fast.start().schedule(bytearray, args=(200 * 2**20,)).result()
        assert grade_all(tight, [("\\frac{1}{2}", "0.5")])[0].reward == 1.0
        assert {child.pid for child in multiprocessing.active_children()} - before
    assert not {child.pid for child in multiprocessing.active_children()} - before


PARENT = """
import asyncio
import sys
from mrt_hpc.domains.verifiers import MathVerifier
from mrt_hpc.domains.grader_queue import GraderPool

if __name__ == "__main__":
    with GraderPool(MathVerifier(), processes=2, time_limit_s=300) as pool:
        pool.fast.start()
        print("started", flush=True)
        asyncio.run(pool.grade([(sys.argv[1], "7")]))
"""


def test_no_process_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    """One process idle, one deep inside a multiplication that holds the interpreter lock."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command, environment = [sys.executable, str(script), HANGS[0]], {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert parent.stdout is not None and parent.stdout.readline() == b"started\n"
        before = _members(parent.pid)

        def is_deep_in_the_hang() -> bool:
            return any(ticks - before.get(pid, 0) > 100 for pid, ticks in _members(parent.pid).items())

        wait_until(is_deep_in_the_hang, reason="a process that has spent a second on it", deadline_s=60)
        assert len(_members(parent.pid)) >= 4  # parent, fork server, two workers
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not _members(parent.pid), reason="the end of all grader processes", deadline_s=5)


def _members(session: int) -> dict[int, int]:
    """The processes of a session and the processor time each has used, clock ticks."""
    found: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = path.read_text().rsplit(")", 1)[1].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found[int(path.parent.name)] = int(fields[11])
    return found
