"""A sweep of two values by two seeds, typed in an empty folder with an empty home: it starts, the same command
continues it after a kill, and one command compares its arms.
"""

import json
import signal
from collections import Counter
from pathlib import Path

import pytest
from families import servers_of
from forked_commands import WITH_TASKS
from new_user import AT_WORK, NewUser
from run_of import read_events

from mrt_hpc.run.events import EventKind
from mrt_hpc.run.family import runs_of
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import wait_until

SWEEP = ("submit", "quickstart", "--sweep", "seed=0..1", "--sweep", "algorithm.alpha=0.5,1")
TINY = {
    "schedule.iterations": 1, "schedule.iterations_per_job": 1, "sampling.problems_per_iteration": 4,
    "sampling.rollouts_per_problem": 4, "evaluation.benchmarks.0.problems.problems": 8, "serving.kv_cache_gib": 0.25,
}  # fmt: skip
WORDS = (*SWEEP, *(word for field, value in TINY.items() for word in ("--set", f"{field}={value}")))


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> NewUser:
    return NewUser.of(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="module")
def family(user: NewUser) -> Path:
    """The directory of the family, once the command was killed in its second member and typed again."""
    root = user.folder / "runs" / "quickstart-sweep"
    with user.started(*WORDS) as process:
        assert process.stdout is not None
        members = 0
        for line in process.stdout:
            members += " of 4: " in line
            if members == 2 and AT_WORK in line:
                break
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_until(lambda: not servers_of(root), reason="the end of what the command had started", deadline_s=60)
    assert [RunLayout(run).report.is_file() for run in runs_of(root)] == [True, False, False, False], "it was killed"
    status, printed = user.types_in_fork(*WORDS, program=WITH_TASKS)
    assert status == 0, printed
    assert printed.count("run directory: ") == 4 and printed.count("done; the report: ") == 4
    return root


@pytest.mark.timeout(1800)
def test_every_member_has_its_report_and_is_computed_once(family: Path) -> None:
    for run in map(RunLayout, runs_of(family)):
        assert run.report.is_file()
        published = Counter(event["version"] for event in read_events(run.events, EventKind.PUBLISHED))
        assert published == {0: 1, 1: 1}, run.root.name


def test_one_command_compares_the_arms_and_one_shows_the_family(user: NewUser, family: Path) -> None:
    status, printed = user.types_in_fork("compare", family.relative_to(user.folder))
    assert status == 0, printed
    assert all(f"alpha {value}" in printed for value in ("0.5", "1"))
    status, printed = user.types_in_fork("status", "runs/quickstart-sweep", "--json")
    assert (status, {run["state"] for run in json.loads(printed)}) == (0, {"finished"})
