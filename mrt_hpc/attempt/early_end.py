"""Records how an attempt ended that recorded nothing itself, from the notes of its job script and its exit code.

A job may end before any Python of this package has begun, as where srun is not found or a setup line of the site
profile fails.
"""

import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mrt_hpc.attempt.ledger import is_later, last_site
from mrt_hpc.attempt.next_state import Ending, EndKind, is_open, kind_of_code, next_state
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.run.event_stream import EventStream, has_progressed, outcomes
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import retry_action
from mrt_hpc.run.task_state import TaskRecord, read_task, write_task

UNSEEN = 128 + 53
"""The exit code of a job whose log Slurm could not open, which it reports as ``0:53``."""
CANNOT_START = {
    126: "a command is there and cannot be run, as one that is built for another kind of machine",
    127: "a command was not found",
    128 + signal.SIGILL: "a program is built for another kind of processor",
}
_MEANINGS = CANNOT_START | {
    128 + signal.SIGABRT: "a program aborted itself",
    128 + signal.SIGBUS: "a bus error, because /dev/shm is full, or because a signal has ended the mount of the image: "
    "container.unpack of the site profile",
    128 + signal.SIGKILL: "killed, often because memory ran out",
    128 + signal.SIGSEGV: "compiled code crashed",
    UNSEEN: "Slurm could not open the log of the job, as where the node does not see the run directory",
}
"""Likely meanings of exit codes of attempts that recorded nothing."""


def exit_code_text(exit_code: int) -> str:
    sent = f" (signal {exit_code - 128})" if exit_code > 128 else ""
    said = "0:53" if exit_code == UNSEEN else f"{exit_code}{sent}"
    meaning = _MEANINGS.get(exit_code)
    return f"exit code {said}" + (f": {meaning}" if meaning else "")


@dataclass
class ScriptNotes:
    attempt: str = ""
    node: str = ""
    code: int | None = None
    """How srun has ended; None where the script did not come so far."""
    setup: str = ""
    """The setup line that failed first, with its exit code in words."""
    lacks: set[str] = field(default_factory=set)
    """Of ``srun`` and ``python``, what could not be started."""

    def take(self, event: dict[str, Any]) -> None:
        stage, code = event.get("stage"), event.get("code", 0)
        if event["kind"] == EventKind.ALLOCATION_ENDED:
            self.code = code
        elif stage == "setup":
            self.setup = self.setup or f"the setup line `{event.get('line', '')}` ended with {exit_code_text(code)}"
        elif stage in ("srun", "python"):
            self.lacks.add(stage)


def notes_of_scripts(layout: RunLayout, of: str = "*.script.*") -> dict[tuple[str, int, str], ScriptNotes]:
    """The notes are by job, index and attempt; ``of`` is a pattern for the names of their files."""
    notes: dict[tuple[str, int, str], ScriptNotes] = {}
    for recorded in EventStream(layout.events, pattern=f"{of}.jsonl").new():
        event = recorded.event
        if event.get("job") is None:
            continue  # of a version whose scripts noted their end only
        key = event["job"], event.get("task", 0), event["attempt"]
        notes.setdefault(key, ScriptNotes(event["attempt"], str(event.get("host", "")))).take(event)
    return notes


@dataclass(frozen=True)
class EarlyEnd:
    """How an attempt ended that recorded nothing itself."""

    notes: ScriptNotes
    code: int
    """The exit code as shells have it; 0 where it is not known."""

    @property
    def facts(self) -> list[str]:
        lacking = " and ".join(sorted(self.notes.lacks))
        facts = (exit_code_text(self.code) if self.code else "", self.notes.setup)
        return [fact for fact in (*facts, f"{lacking} could not be started" if lacking else "") if fact]

    @property
    def _cause(self) -> str:
        if self.code == UNSEEN:
            return "mv the run directory to NEWPATH on a filesystem that all nodes see"
        if "srun" in self.notes.lacks or (self.notes.setup and (self.notes.code is None or 0 < self.code < 128)):
            return "correct setup in the site profile"
        if self.notes.lacks or self.code in CANNOT_START:
            return "correct python, container or setup in the site profile"
        return ""

    def next(self, layout: RunLayout) -> str:
        """Advice about the cause; empty where that is not known."""
        if not (cause := self._cause):
            return ""
        place = Advice("NEWPATH") if self.code == UNSEEN else layout.word
        site = None
        with suppress(UserError):  # the record of the site cannot be read
            site = last_site(layout)
        return Advice(
            "{cause}; mrt-hpc doctor {options} --on-node tries it; then mrt-hpc submit {place}",
            cause=Advice(cause),
            options=[*(["--site", site.name] if site is not None else []), "--run", place],
            place=place,
        )


def settle(layout: RunLayout, job: str, index: int, attempt: str, exit_code: int, retries: int) -> TaskRecord:
    """Return the final record of an attempt that has ended. Where it recorded no end itself, the record follows from
    its exit code, and is written here. An exit code above 128 holds the signal's number; ``retries`` are failures in a
    row that a task may have.
    """
    record = read_task(layout, job, index)
    if is_later(layout, record.attempt, attempt) or not is_open(record, attempt):
        return record
    kind = kind_of_code(exit_code, outcomes(layout.events, job, index, attempt))
    message = record.message if kind is EndKind.RETURNED else _reason(layout, job, index, attempt, exit_code)
    progressed = has_progressed(layout.events, job, index, attempt)
    after = next_state(record, Ending(kind, attempt, message, progressed, retries))
    if kind is EndKind.RETURNED:
        with suppress(OSError):  # a full disk may have kept the attempt from saying so
            write_task(layout, job, index, after)
    else:
        retry_action(lambda: write_task(layout, job, index, after), "the state of the task")
    return after


def _reason(layout: RunLayout, job: str, index: int, attempt: str, exit_code: int) -> str:
    noted = notes_of_scripts(layout, f"{job}.{index:05d}.script.{attempt}")
    early = EarlyEnd(noted.get((job, index, attempt), ScriptNotes()), exit_code)
    message = f"ended without a record of its reason: {'; '.join(early.facts)}"
    return message + (f"\n  next:     {advice}" if (advice := early.next(layout)) else "")
