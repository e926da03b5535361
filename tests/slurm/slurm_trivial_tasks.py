"""Tasks for the tests of the Slurm backend: each does next to nothing and leaves a line that says what it was."""

import json
import os
import signal
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from submitted import latest_ids

from mrt_hpc.backends.slurm.commands import run_slurm
from mrt_hpc.backends.slurm.environment import SlurmTask
from mrt_hpc.backends.slurm.task import TaskCall
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.task.peers import Peers, PeersAwayError
from mrt_hpc.run.events import EventKind, Use
from mrt_hpc.run.retries import wait_until

TOLD = "word-to-go-on"  # the file in a run directory for which a task may wait; ``told`` is a folder of the run itself
AWAITED = {"awaits": "after-blocker", "abandoned": "after-other"}
"""Tasks that give their node back since no task of another job runs."""
SPENT_S = (6, 5, 8)  # what `spends` takes for sampling, waiting and going on


@dataclass(frozen=True)
class TrivialCall(TaskCall):
    """Calls a function of this module in the place of the plan's role."""

    function: str = ""

    def __call__(self) -> None:
        globals()[self.function](self.run_dir, self.job_name)


def _note(run_dir: str, what: str, job_name: str) -> None:
    task = SlurmTask.from_environment()
    assert task is not None
    line = {
        "what": what, "job": job_name, "index": task.array_index, "rank": task.rank, "world_size": task.world_size,
        "node": task.node, "restarts": task.restarts, "time": time.time(), "uid": os.getuid(),
        "container": os.environ.get("APPTAINER_CONTAINER"),
    }  # fmt: skip
    with (Path(run_dir) / "notes.jsonl").open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def brief(run_dir: str, job_name: str) -> None:
    """Take a second, long enough for tasks to overlap; a job named ``first`` waits for a file of the test's."""
    if job_name == "first":
        wait_until((Path(run_dir) / TOLD).exists, reason="the word of the test", deadline_s=600)
    _note(run_dir, "start", job_name)
    time.sleep(1)
    _note(run_dir, "end", job_name)


def slow_to_leave(run_dir: str, job_name: str) -> None:
    """The first attempt of a job named ``slow`` does not heed SIGTERM, so it is killed some time after it; all others
    end well at once.
    """
    before = (Path(run_dir) / "notes.jsonl").exists()
    _note(run_dir, "start", job_name)
    if job_name == "slow" and not before:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _note(run_dir, "deaf", job_name)
        time.sleep(600)
    _note(run_dir, "end", job_name)


def greedy(run_dir: str, job_name: str) -> None:
    """Touches more memory than any test's job asks for."""
    _note(run_dir, "start", job_name)
    held = bytearray(700 * 2**20)
    time.sleep(60)
    del held


# -- whole lives as tasks of a plan ------------------------------------------------------------------------------------


def lives(run_dir: str, job_name: str) -> None:
    """With work that depends on the job's name and on the attempt."""
    TaskCall(run_dir, job_name, _work)()
    if job_name == "stumbles":
        sys.exit(9)  # as a library might, when Python ends


def _work(task: Task) -> None:
    """A signal may come as soon as the start is noted: a task that saves something heeds safe points from there on."""
    with task.shutdown.defer_to_safe_points() if task.job.name == "saves" else nullcontext():
        _note(str(task.layout.root), "start", task.job.name)
        _meet(task)
        _act(task, task.job.name)


def _meet(task: Task) -> None:
    """Wait until all ranks have started, as the ranks of a trainer do: a rank that starts when the task is done ends at
    once and leaves no note.
    """
    wait_until(
        lambda: len({note["rank"] for note in _starts(task)}) == task.world_size, reason="all ranks", deadline_s=300
    )


def _act(task: Task, what: str) -> None:
    if what == "crashes":
        raise RuntimeError("every time")
    if (len(_starts(task)) == 1 or what == "abandoned") and not what.startswith(("after", "stumbles", "done")):
        if what in AWAITED:
            wait_until(lambda: AWAITED[what] in latest_ids(task.layout), reason="the ledger", deadline_s=60)
            peers = tuple(job for job in task.plan.jobs if job.name == AWAITED[what])
            raise PeersAwayError("does not run", Peers(task.layout, peers, task.observer))
        if what == "until-told":
            wait_until((task.layout.root / TOLD).exists, reason="the word to end", deadline_s=600)
            return
        if what == "gives-back":
            raise UserError("no task is running", exit_code=ExitCode.GIVE_BACK)
        if what == "saves":
            wait_until(lambda: task.shutdown.is_given, reason="the request to shut down", deadline_s=600)
            _note(str(task.layout.root), "saved", what)
            task.shutdown.leave_if_given()
        if what == "outlasts":
            with task.shutdown.defer_to_safe_points():
                wait_until(_time_is_over, reason="the end of the grace", deadline_s=600, longest_pause_s=0.1)
        else:
            wait_until(lambda: False, reason="the end", deadline_s=600)
    _note(str(task.layout.root), "end", what)


def _starts(task: Task) -> list[dict[str, object]]:
    """The notes that the task has started, so far and under whatever id."""
    notes = map(json.loads, (task.layout.root / "notes.jsonl").read_text().splitlines())
    return [n for n in notes if (n["what"], n["job"], n["index"]) == ("start", task.job.name, task.index)]


def _time_is_over() -> bool:
    """Whether Slurm's clock, which counts seconds, is past this task's time, which a preemption moves to the end of its
    grace.
    """
    task = SlurmTask.from_environment()
    assert task is not None
    return time.time() > int(run_slurm(["squeue", "--noheader", f"--jobs={task.task_id}", "--format=%e"]).strip()) + 1.2


def spends(run_dir: str, job_name: str) -> None:
    """With time that has several uses."""
    TaskCall(run_dir, job_name, _spend)()


def _spend(task: Task) -> None:
    """Sample something, wait, and go on. The first attempt of task 0 of a job named ``requeued`` goes on until it is
    told to end.
    """
    sampling_s, waiting_s, going_on_s = SPENT_S
    _note(str(task.layout.root), "start", task.job.name)
    task.spend(Use.GENERATING)
    time.sleep(sampling_s)
    task.events.emit(EventKind.GROUP_COMMITTED, rollout_tokens=30, branch_tokens=10)
    task.spend(Use.WAITING)
    time.sleep(waiting_s)
    task.spend(Use.GENERATING)
    _note(str(task.layout.root), "goes on", task.job.name)
    until_told = task.job.name == "requeued" and task.index == 0 and len(_starts(task)) == 1
    time.sleep(600 if until_told else going_on_s)
    task.spend(Use.ENDING)
