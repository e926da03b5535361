"""A run on a cluster without a cluster: its ledger, and scripts in the place of Slurm's commands."""

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from basics import executable, look_first_in
from run_of import run_of
from slurm_texts import squeue_prints
from submitted import age

from mrt_hpc.attempt.ledger import Submission, record_submission, submissions
from mrt_hpc.backends.slurm.parameters import SCRIPT, queue_name
from mrt_hpc.plan.jobs import Plan, read_plan
from mrt_hpc.run.events import event_file
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task

PREPARE = "prepare"


@dataclass
class CannedRun:
    """A run directory, and a folder of commands that stand before all others."""

    layout: RunLayout
    commands: Path

    @property
    def plan(self) -> Plan:
        return read_plan(self.layout.plan)

    def queue(self, *lines: str) -> None:
        """What squeue prints: ``id|STATE|end|reason|nodes``, each with the name, the script and the time of the run's
        submission, or of another job where the run has none with this id; sacct knows nothing.
        """
        sent = submissions(self.layout)
        self.prints(*(f"{line}|{self.marks(line, sent)}" for line in lines))

    def prints(self, *lines: str) -> None:
        """What squeue prints, with all fields of each line."""
        (self.commands / "queue").write_text(squeue_prints(*lines))
        self.command("squeue", f"cat {self.commands}/queue")
        self.command("sacct", "exit 0")

    def marks(self, line: str, every: Sequence[Submission] | None = None) -> str:
        """What Slurm shows of a job beside its id, with which a line begins: ``name|script|submitted``."""
        job_id = line.partition("|")[0].partition("_")[0]
        for sent in submissions(self.layout) if every is None else every:
            if sent.job_id == job_id:
                script = self.layout.logs / sent.job / SCRIPT
                return f"{queue_name(sent.job, self.layout)}|{script}|{int(sent.time)}"
        return "thesis|/home/me/thesis.sh|1795669200"

    def accounts(self, *lines: str) -> None:
        """What sacct prints: ``id|STATE|exit code|nodes|seconds``, each with time and name as of :meth:`queue`."""
        marks = [self.marks(line).split("|") for line in lines]
        texts = [f"{line}|{submitted}|{name}" for line, (name, _, submitted) in zip(lines, marks, strict=True)]
        self.command("sacct", f"cat << 'END'\n{chr(10).join(texts)}\nEND")

    def unreached(self) -> None:
        """Let squeue fail as it does where the controller does not answer."""
        self.command("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")

    def claim(self, pid: int, started: str | None = None, host: str | None = None) -> None:
        """Record the process that runs the plan: without more words a live one of this machine."""
        started = started or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        claim = {"pid": pid, "started": started, "host": host or socket.gethostname()}
        (self.layout.jobs / "local-00001.json").write_text(json.dumps(claim))

    def command(self, name: str, script: str) -> None:
        """Put a script in the place of a command; each call adds its name to the file ``calls``. A job is taken where
        sbatch only tests it.
        """
        test = '[ "$1" != --test-only ] || exit 0\n' if name == "sbatch" else ""
        executable(self.commands / name, f"{test}echo {name} >> {self.commands}/calls\n{script}")

    @property
    def calls(self) -> list[str]:
        path = self.commands / "calls"
        return path.read_text().split() if path.exists() else []

    def submitted(self, *, cluster: str | None = None, ago_s: float = 3600.0, **ids: str) -> None:
        """Record jobs of these roles as submitted so long ago."""
        for role, job_id in ids.items():
            name = next(job.name for job in self.plan.jobs if job.name.rpartition(".")[2] == role)
            record_submission(self.layout, name, job_id, "cluster", cluster=cluster)
        age(self.layout, ago_s)

    def done(self, *jobs: str) -> None:
        """Record all tasks of jobs as done; of all jobs where none is named."""
        for job in self.plan.jobs:
            for index in range(job.tasks) if job.name in jobs or not jobs else ():
                write_task(self.layout, job.name, index, TaskRecord(TaskState.DONE))

    def task(self, job: str, state: TaskState, index: int = 0, **fields: object) -> None:
        write_task(self.layout, job, index, TaskRecord(state, **fields))  # type: ignore[arg-type]

    def events(self, job: str, attempt: str, *events: dict[str, object], index: int = 0, begun: float = 1000.0) -> None:
        path = event_file(self.layout.events, job, index, 0, attempt)
        path.parent.mkdir(exist_ok=True)
        lines = [{"time": begun + n, "host": "node7", "pid": 7, **event} for n, event in enumerate(events)]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def log(self, name: str, text: str) -> Path:
        path = self.layout.logs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def canned_run(root: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str, name: str = "run") -> CannedRun:
    """A run of the quickstart of which nothing is submitted; squeue and sacct know nothing."""
    commands = root / "bin"
    commands.mkdir(exist_ok=True)
    look_first_in(commands, monkeypatch)
    monkeypatch.setenv("SLURM_CONF", os.devnull)  # a real cluster of this process gets none of these jobs
    run = CannedRun(run_of(root / name, *overrides), commands)
    run.queue()
    return run


def submitted_run(root: Path, monkeypatch: pytest.MonkeyPatch, name: str = "run") -> CannedRun:
    run = canned_run(root, monkeypatch, "resources.inference.tasks=4", name=name)
    run.submitted(prepare="11", inference="12", trainer="13", evaluation="14", report="15")
    run.done(PREPARE)
    return run
