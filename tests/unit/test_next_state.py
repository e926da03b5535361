"""What becomes of a task when an attempt at it ends: properties of ``next_state``, and its tables in ARCHITECTURE."""

import re
from dataclasses import replace
from itertools import cycle, islice

import pytest
from documents import ARCHITECTURE
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.attempt.next_state import MOST_RETURNS, Ending, EndKind, is_open, kind_of_code, next_state
from mrt_hpc.errors import ExitCode
from mrt_hpc.run.task_state import RUNS_AGAIN, TaskRecord, TaskState

MINE, EARLIER = "7.1", "7.0"
STATES = [state for state in TaskState if state is not TaskState.UNREADABLE]
NUMBERS = st.integers(0, 2 * MOST_RETURNS)
RECORDS = st.builds(
    TaskRecord, state=st.sampled_from(STATES), attempt=st.sampled_from(["", EARLIER, MINE]), message=st.text(),
    failures=NUMBERS, returns=NUMBERS, waits=NUMBERS, finished=NUMBERS, awaited=st.sampled_from([(), ("inference",)]),
)  # fmt: skip
ENDINGS = st.builds(
    Ending, kind=st.sampled_from(EndKind), attempt=st.just(MINE), message=st.text(max_size=3), progressed=st.booleans(),
    retries=st.integers(0, 5), awaited=st.sampled_from([(), ("inference",)]), finished=NUMBERS, worked=st.booleans(),
    near_limit=st.sampled_from(["", "resources.trainer.time_limit_minutes"]),
)  # fmt: skip


@given(RECORDS, ENDINGS)
def test_each_end_of_each_state_has_one_next_state(record: TaskRecord, ending: Ending) -> None:
    """What is told twice counts once, and what is done stays done."""
    after = next_state(record, ending)
    assert next_state(after, ending) == after
    assert after == record or record.state is not TaskState.DONE
    if is_open(record, MINE) and ending.kind is not EndKind.NOT_QUEUED:
        assert after.state in {*RUNS_AGAIN, TaskState.DONE, TaskState.FAILED}
        assert (after.attempt, after.awaited) == (MINE, ending.awaited)
    else:
        assert after == record or (after.state, after.attempt) == (TaskState.FAILED, record.attempt)


@given(st.lists(ENDINGS, min_size=1), st.integers(0, 5))
def test_attempts_that_finish_nothing_come_to_an_end(endings: list[Ending], retries: int) -> None:
    """Whatever their reasons are, one after the other, where nothing from outside stops them."""
    most = retries + 2 * MOST_RETURNS + 1
    record = TaskRecord(TaskState.WAITING)
    for number, ending in enumerate(islice(cycle(endings), most)):
        kind = EndKind.LEFT if ending.kind in (EndKind.STOPPED, EndKind.NOT_QUEUED, EndKind.DONE) else ending.kind
        running = replace(record, state=TaskState.RUNNING, attempt=f"7.{number}")
        alone = replace(ending, kind=kind, attempt=running.attempt, progressed=False, retries=retries, finished=3)
        record = next_state(running, alone)
        if record.state not in RUNS_AGAIN:
            break
    assert record.state is TaskState.FAILED


def test_what_an_exit_code_says_of_an_attempt_that_recorded_no_end() -> None:
    for code, kind in ((143, EndKind.LEFT), (142, EndKind.LEFT), (ExitCode.GIVE_BACK, EndKind.RETURNED)):
        assert [kind_of_code(code, said) for said in (set(), {"stopped"})] == [kind, kind]
    for code, said in ((143, {"retrying"}), (142, {"failed"}), (137, {"stopped"}), (0, set()), (ExitCode.FATAL, set())):
        assert kind_of_code(code, said) is EndKind.FAILED


# -- the page ----------------------------------------------------------------------------------------------------------

SECTION = ARCHITECTURE.read_text().partition("## The states of a task")[2].partition("\n## ")[0]
LIMIT = "resources.trainer.time_limit_minutes"
HOW = {
    "returned while it worked": {"worked": True},
    "returned while it worked, near its time limit": {"worked": True, "near_limit": LIMIT},
    "returned while it waited": {"near_limit": LIMIT},
    "returned as no awaited job runs": {"awaited": ("inference",), "finished": 9},
}
"""The ends that need more words than their kind."""


def rows(head: str) -> list[list[str]]:
    """The cells of a table of the section."""
    lines = SECTION.partition(f"| {head} |")[2].partition("\n\n")[0].split("\n")[2:]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


ENDS = rows("the attempt")
KEYS = ("failures", "returns", "waits")


def ending_in(row: list[str], retries: int = 5) -> Ending:
    how, finished = row[:2]
    kind = EndKind(how.split(" ")[0] if how in HOW else how)
    return Ending(kind, MINE, "why", finished == "something", retries, **HOW.get(how, {}))  # type: ignore[arg-type]


def before(row: list[str], **numbers: int) -> TaskRecord:
    """A record that takes this end."""
    state = TaskState.RETRYING if row[0] == "not queued" else TaskState.RUNNING
    return replace(TaskRecord(state, MINE, failures=2, returns=3, waits=4, finished=9), **numbers)


@pytest.mark.parametrize("row", ENDS, ids=lambda row: ", ".join(row[:2]))
def test_each_row_of_the_page_is_what_the_function_does(row: list[str]) -> None:
    record, ending, expected = before(row), ending_in(row), dict(zip(KEYS, row[3:6], strict=True))
    after = next_state(record, ending)
    assert after.state == row[2]
    for name, change in expected.items():
        number = getattr(record, name)
        wanted = {"=": number, "+1": number + 1}.get(change)
        assert getattr(after, name) == (int(change) if wanted is None else wanted), name
    if not row[6]:
        assert next_state(before(row, **dict.fromkeys(KEYS, 1000)), ending).state == row[2], "no number makes it fail"
        return
    name, bound = row[6].split(" > ")
    for retries in (1, 5):
        most = {"retries": retries, "2 × retries": 2 * retries}.get(bound) or int(bound)
        if expected[name] == "1":
            assert next_state(record, replace(ending, retries=0)).state is TaskState.FAILED
            continue
        states = [next_state(before(row, **{name: most - 1 + n}), replace(ending, retries=retries)) for n in (0, 1)]
        assert [after.state for after in states] == [row[2], TaskState.FAILED], "at the bound, and beyond it"


def test_the_page_has_each_end_with_and_without_progress() -> None:
    plain = {kind.value for kind in EndKind} - {"returned"}
    expected = {(how, finished) for how in plain | HOW.keys() for finished in ("nothing new", "something")}
    assert {tuple(row[:2]) for row in ENDS} == expected - {("not queued", "something")}
    assert len(ENDS) == len(expected) - 1


def test_the_page_says_which_records_an_end_changes() -> None:
    named: list[str] = []
    for states, *cells in rows("the record"):
        for state in states.split(", "):
            named.append(state)
            for (attempt, kind), cell in zip(
                ((MINE, EndKind.FAILED), (EARLIER, EndKind.FAILED), (MINE, EndKind.NOT_QUEUED)), cells, strict=True
            ):
                record = TaskRecord(TaskState(state), attempt, "before")
                stays = next_state(record, Ending(kind, MINE, "why", retries=5)) == record
                assert stays == (cell == "stays"), (state, attempt, kind)
                assert cell in ("stays", "by the table")
    assert sorted(named) == sorted(STATES)


def test_the_diagram_has_the_edges_of_the_function() -> None:
    edges = set(re.findall(r"^    (\w+) --> (\w+)", SECTION, re.MULTILINE))
    of_ends = {(start, end) for start, end in edges if end != "running" and start != "done"}
    found = {("running", next_state(before(row), ending_in(row)).state) for row in ENDS if row[0] != "not queued"}
    found |= {(state, "failed") for state in RUNS_AGAIN}
    assert of_ends == {(start.replace(" ", "_"), end.replace(" ", "_")) for start, end in found}
    started = {start for start, end in edges if end == "running"}
    assert started == {"waiting", "gave_back", "retrying", "stopped", "failed"}
