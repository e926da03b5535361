"""What is taken for success, for a job of a run, and for an answer, whatever a queue, its commands or its site do."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from slurm_texts import squeue_prints

from mrt_hpc.attempt.ledger import record_submission
from mrt_hpc.backends.slurm import arrays, queue
from mrt_hpc.backends.slurm.answers import MARKS
from mrt_hpc.backends.slurm.commands import run_slurm
from mrt_hpc.backends.slurm.parameters import queue_name, require_plain_path
from mrt_hpc.backends.slurm.queue import QueueState
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.submit.create import create_or_open
from mrt_hpc.submit.submission import Listener, start

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
AWAY = "echo 'sacct: error: Connection refused' >&2; exit 1"
LIMIT = "echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2; echo 'sbatch: error: Job violates policy' >&2; exit 1"


@dataclass
class Commands:
    """Scripts in the place of Slurm's commands, and the queue that they list."""

    folder: Path

    def put(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f'#!/bin/sh\ncd "$(dirname "$0")"\n{script}\n')
        (self.folder / name).chmod(0o755)

    def queue(self, *records: str) -> None:
        (self.folder / "queue").write_text(squeue_prints(*records))


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """A queue that is empty, and commands that do what they are told."""
    found = Commands(tmp_path / "bin")
    found.folder.mkdir()
    monkeypatch.setenv("PATH", f"{found.folder}:{os.environ['PATH']}")
    found.queue()
    found.put("squeue", "cat queue")
    found.put("sacct", "exit 0")
    found.put("scontrol", "exit 0")
    found.put("scancel", 'sed -i "/(|$1|/d" queue')
    found.put("sbatch", "echo x >> calls; echo $((70 + $(wc -l < calls)))")
    return found


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    recipe = load_recipe(QUICKSTART)
    return create_or_open(tmp_path / "run", recipe, compile_plan(recipe, SlurmSite(name="x")))


def submit(layout: RunLayout, told: list[str]) -> None:
    recipe, site = load_recipe(QUICKSTART), SlurmSite(name="x")
    start(recipe, compile_plan(recipe, site), layout, site, Listener(told.append, told.append, nullcontext))


@pytest.mark.parametrize(
    ("records", "state"),
    [
        (["12|REVOKED|N/A|None|"], QueueState.RUNNING),
        (["12|RUNNING|1795669200|None|n1", "12|COMPLETED|1|None|"], QueueState.RUNNING),
        (["12|COMPLETED|1|None|", "12|RUNNING|1795669200|None|n1"], QueueState.RUNNING),
        (["12|EXPEDITING|N/A|None|"], QueueState.PENDING),
        (["12|?|N/A|None|"], QueueState.PENDING),
    ],
)
def test_what_the_queue_lists_is_not_over_because_its_word_is_not_known(
    commands: Commands, records: list[str], state: QueueState
) -> None:
    commands.queue(*records)
    assert queue.queue_states(["12"])["12"].state is state


def test_accounting_that_a_user_may_not_ask_leaves_the_answer_of_the_queue(commands: Commands) -> None:
    commands.queue("12|RUNNING|1795669200|None|n1")
    (commands.folder / "sacct").chmod(0o644)
    assert queue.queue_states(["12"])["12"].state is QueueState.RUNNING


def test_a_list_of_tasks_that_accounting_cuts_is_passed_over(commands: Commands) -> None:
    commands.put("sacct", "echo '12_[0,2-3,5-6...%2]|CANCELLED by 5|0:0|None assigned|0'")
    assert {task.state for task in queue.queue_states(["12"]).values()} == {QueueState.UNKNOWN}


def test_a_child_that_a_wrapper_leaves_running_does_not_hold_the_answer(commands: Commands) -> None:
    commands.put("sbatch", "sleep 60 & echo 71")
    assert run_slurm(["sbatch"], timeout_s=30.0).strip() == "71"


def test_a_submission_without_an_answer_may_have_been_queued(commands: Commands, layout: RunLayout) -> None:
    commands.put("sbatch", "echo 'Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1")
    with pytest.raises(UserError, match="may be queued all the same") as refused:
        submit(layout, [])
    assert refused.value.exit_code is ExitCode.RETRYABLE


def test_a_job_finds_its_call_also_where_nothing_can_be_told(commands: Commands, layout: RunLayout) -> None:
    commands.put("sbatch", "echo Projekt; echo x >> calls; echo $((70 + $(wc -l < calls)))")

    def closed(line: str) -> None:
        raise BrokenPipeError(line)

    recipe, site = load_recipe(QUICKSTART), SlurmSite(name="x")
    jobs = compile_plan(recipe, site).jobs
    with pytest.raises(BrokenPipeError, match="Projekt"):
        arrays.submit(jobs, site, layout, known_ids={}, record=lambda *_: None, tell=closed)
    assert (layout.logs / jobs[0].name / "71_submitted.pkl").exists()


@pytest.mark.parametrize("mark", MARKS)
def test_a_path_that_the_marks_of_a_listing_would_cut_is_refused(tmp_path: Path, mark: str) -> None:
    with pytest.raises(UserError, match="the run directory's path holds"):
        require_plain_path(RunLayout(tmp_path / f"a{mark}b"))


@pytest.mark.parametrize(
    ("scancel", "asked", "left"),
    [
        pytest.param('sed -i "/(|$1|/d" queue', ["1", "2", "3"], set(), id="done as told"),
        pytest.param('sed -i "/(|$1|/d" queue; echo Invalid job id >&2; exit 1', ["1", "2"], set(), id="refused, done"),
        pytest.param('sed -i "/(|$1|/d" queue', ["1", "Submitted batch job 2", "3"], set(), id="a word that is no id"),
        pytest.param('sed -i "/(|$1|/d" queue', ["1", "9", "2"], set(), id="one that has ended"),
        pytest.param("echo Invalid job id specified >&2; exit 1", ["1", "2"], {"1", "2"}, id="refused as unknown"),
        pytest.param("exit 0", ["1", "2"], {"1", "2"}, id="nothing done"),
        pytest.param('[ $1 = 2 ] || sed -i "/(|$1|/d" queue', ["1", "2", "3"], {"2"}, id="a part done"),
    ],
)  # fmt: skip
def test_what_was_cancelled_is_what_the_queue_no_longer_holds(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, scancel: str, asked: list[str], left: set[str]
) -> None:
    monkeypatch.setattr(queue, "GONE_S", 0.1)
    commands.put("scancel", scancel)
    commands.queue(*(f"{job}|PENDING|N/A|Priority|" for job in "123"))
    if left:
        with pytest.raises(UserError) as refused:
            queue.cancel(asked)
        assert {word.strip(",") for word in str(refused.value.value).partition("(")[0].split()} == left
    else:
        assert set(queue.cancel(asked)) == {*asked} & {*"123"}
    assert {job for job in "123" if f"(|{job}|" in (commands.folder / "queue").read_text()} == {*"123"} - {
        *asked
    } | left


FOREIGN = "40|PENDING|N/A|a\n12|line break|/home/me/x.sh"


@pytest.mark.parametrize(
    ("name", "script", "found"),
    [
        pytest.param("{name}", "{root}/logs/prepare/submission.sh", True, id="as it was submitted"),
        pytest.param("rewritten", "{root}/logs/prepare/submission.sh", True, id="another name"),
        pytest.param("rewritten", "{link}/logs/prepare/submission.sh", True, id="through a link"),
        pytest.param("{name}", "(null)", True, id="no script"),
        pytest.param("{name}", "/var/spool/wrapped/submission.sh", True, id="a script of the site's"),
        pytest.param("{name}", "{copy}/logs/prepare/submission.sh", False, id="of a copy of the run"),
        pytest.param("run.prepare.00000000", "(null)", False, id="of another run of this name"),
        pytest.param("run.prepare", "(null)", False, id="of this name without a token"),
        pytest.param("rewritten", "(null)", False, id="no mark"),
    ],
)
def test_a_job_of_a_run_is_known_by_several_marks(
    commands: Commands, layout: RunLayout, tmp_path: Path, name: str, script: str, found: bool
) -> None:
    (tmp_path / "link").symlink_to(layout.root)
    shutil.copytree(layout.root, tmp_path / "copy")
    places = {
        "name": queue_name("prepare", layout),
        "root": layout.root,
        "link": tmp_path / "link",
        "copy": tmp_path / "copy",
    }
    record = f"12|PENDING|N/A|{name}|{script}".format(**places)
    commands.queue(FOREIGN, record, record.replace("12|PENDING", "11|RUNNING"))
    assert queue.unrecorded_jobs(layout.root, []) == ({"prepare": ["11", "12"]} if found else {})
    assert queue.unrecorded_jobs(layout.root, ["11", "12"]) == {}


@pytest.mark.parametrize("sacct", [AWAY, "echo 'sacct: fatal: Bad job/step specified' >&2; exit 1", "exec sleep 60"])
def test_accounting_that_is_away_keeps_nothing_from_being_submitted(
    commands: Commands, layout: RunLayout, monkeypatch: pytest.MonkeyPatch, sacct: str
) -> None:
    monkeypatch.setattr(queue, "ACCOUNTING_S", 0.5)
    commands.put("sacct", sacct)
    record_submission(layout, "prepare", "12", "x")
    commands.queue("12|RUNNING|N/A|None|n1")
    told: list[str] = []
    began = time.monotonic()
    submit(layout, told)
    assert time.monotonic() - began < 20
    assert len([line for line in told if line.startswith("submitted ")]) == 4, "all but the one that runs"


@pytest.mark.parametrize(("refusals", "code"), [(1, None), (9, ExitCode.RETRYABLE)])
def test_room_below_a_limit_of_ones_own_jobs_is_waited_for(
    commands: Commands, layout: RunLayout, monkeypatch: pytest.MonkeyPatch, refusals: int, code: ExitCode | None
) -> None:
    monkeypatch.setattr(arrays, "ROOM_S", 1.0)
    monkeypatch.setattr(arrays, "OFFER_EVERY_S", 0.2)
    commands.put("sbatch", f"echo x >> calls; n=$(wc -l < calls); [ $n -gt {refusals} ] || {{ {LIMIT}; }}; echo $n")
    told: list[str] = []
    if code is None:
        submit(layout, told)
    else:
        with pytest.raises(UserError) as refused:
            submit(layout, told)
        assert refused.value.exit_code is code
    assert [line for line in told if "AssocMaxSubmitJobLimit" in line] == told[:1], "once"


def test_what_a_site_says_to_those_who_submit_is_shown_once(commands: Commands, layout: RunLayout) -> None:
    note = "sbatch: You have used 99 % of project lab"
    commands.put("sbatch", f"echo x >> calls; echo '{note}' >&2; echo banner; echo $((70 + $(wc -l < calls)))")
    told: list[str] = []
    submit(layout, told)
    assert [sum(word in line for line in told) for word in (note, "banner")] == [1, 1]


@pytest.mark.parametrize("job_id", ["Submitted batch job 4", "", "a/b", "1_2", "71;box", "1\n2", "x" * 200])
def test_the_ledger_holds_nothing_that_is_no_id(layout: RunLayout, job_id: str) -> None:
    with pytest.raises(UserError):
        record_submission(layout, "prepare", job_id, "x")
    assert list(layout.jobs.iterdir()) == []
