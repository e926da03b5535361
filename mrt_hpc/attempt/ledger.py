"""The ledger records under which id each job of the plan was submitted, and which process runs the plan on this
machine. Each entry is one file, so an interrupted submission has recorded every job that was accepted. The files of a
kind are numbered, and a number is taken by creating its file exclusively: it says what came later, which the clocks of
several login nodes do not.
"""

import json
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mrt_hpc.errors import UserError, word
from mrt_hpc.plan.jobs import Job
from mrt_hpc.recipe.load import SiteFile
from mrt_hpc.recipe.site import SiteSettings
from mrt_hpc.recipe.user_code import import_from, named_modules, origin, refuse_changeable
from mrt_hpc.run.atomic import create_text, write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import NO_BEAT, Beat, Heart, read_beat
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.typed_file import Moment, ProcessNumber, UnreadableError, Whole, read_if_there, read_typed, readable

_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.@\[\]-]{0,99}")
"""What an id may look like, of any queue: it becomes part of a file's name, and of lists with colons."""
LOCAL = "local"
"""Where a job has its name: the heartbeats of the processes that have held the run, by their claims."""
_CANCELLED = "cancelled.json"
UNRECORDED = "slurm"
"""The kind of a site whose profile is not recorded: the only one that comes with the package and has a queue."""


@dataclass(frozen=True)
class Submission:
    """One job that a queue has accepted."""

    job: str
    job_id: str
    """The id that the queue gave it."""
    time: Moment
    """Seconds since the epoch, by the clock of the submitting machine: to be shown, not to be compared."""
    site: str
    """Name of the site profile."""
    tasks: tuple[Whole, ...] | None = None
    """Indices of the tasks that it runs; None for all tasks of the job."""


@dataclass(frozen=True)
class LocalProcess:
    """The process that runs the plan on its own machine."""

    pid: ProcessNumber
    started: str
    """The start time that the kernel reports; a later process with the same number has another one."""
    host: str
    generation: Whole = 0
    """The number of its claim on the run, and of its heartbeat."""
    held: bool = False
    """Whether it has held the run, which it writes down once it does."""
    ended: bool = False
    """Whether it holds the run no more: it may have gone on to another run of a family."""

    @property
    def name(self) -> str:
        """A name that no other process on any host has at any time."""
        return f"{self.host}:{self.pid}:{self.started}"

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, and the run in it."""
        return not self.ended and self.host == socket.gethostname() and _kernel_start(self.pid) == self.started


@dataclass(frozen=True)
class Cancellation:
    """The last time that the user cancelled the run."""

    time: Moment
    """Seconds since the epoch, by the clock of the machine where it was typed: to be shown, not to be compared."""
    submission: Whole
    """The number of the newest submission then, and 0 where there was none."""
    claim: Whole
    """The number of the newest claim of a process then, and 0 where there was none."""


@dataclass(frozen=True)
class SiteRecord:
    """A site profile that jobs were submitted with."""

    site: dict[str, Any]
    """The fields that are not the defaults."""
    folder: Path | None = None
    """The folder of its module, where its kind is a class of the user's own."""


@dataclass(frozen=True)
class LastSite:
    """The site that the run was submitted to last."""

    name: str
    """The name of its profile."""
    file: Path | None = None
    """The profile, which the user may have changed since; None where it is in no file."""


def record_submission(layout: RunLayout, job: str, job_id: str, site: str, tasks: Sequence[int] | None = None) -> None:
    """Add one submitted job to the ledger; ``tasks`` are the indices that it runs where these are not all.

    Raises:
        UserError: the id is no word that a queue can give a job.
    """
    if not _JOB_ID.fullmatch(job_id):
        raise UserError(
            f"the queue's answer to the submission of {job} is no id of a job; the job may be queued all the same",
            value=job_id,
            where=layout.jobs,
            expected="letters, digits and . @ [ ] -",
            advice="look for it in the queue, and take it out by hand, before mrt-hpc submit RUN",
        )
    some = {} if tasks is None else {"tasks": list(tasks)}
    entry = {"job": job, "job_id": job_id, "time": time.time(), "site": site, **some}
    newest = max(map(_number, _submitted(layout)), default=0)
    for number in count(newest + 1):
        if create_text(layout.jobs / f"queued-{number:06d}.json", json.dumps(entry)):
            return


def submissions(layout: RunLayout) -> list[Submission]:
    """All submitted jobs of the run, the oldest first, by the numbers of their records.

    Raises:
        UnreadableError: the record of one is damaged.
    """
    return [_submission(path) for path in _submitted(layout)]


def shown_submissions(layout: RunLayout) -> tuple[list[Submission], list[str]]:
    """The submitted jobs whose records can be read, to be shown, and a line for each of the others."""
    return readable(_submitted(layout), _submission)


def _submitted(layout: RunLayout) -> list[Path]:
    return sorted(list_directory(layout.jobs, "queued-*.json"), key=_number)


def _number(path: Path) -> int:
    """The number of an entry of the ledger; 0 for a file that is none."""
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _submission(path: Path) -> Submission:
    advice = f"squeue --me shows whether that job is still queued; then rm -r {word(path)}, and the same command again"
    return read_typed(path, Submission, "the record of a submitted job", advice=advice)


def record_cancellation(layout: RunLayout) -> None:
    """Record that the user has cancelled all that was submitted or started until now."""
    write_json(layout.jobs / _CANCELLED, asdict(Cancellation(time.time(), *_newest_numbers(layout))))


def cancelled_at(layout: RunLayout) -> float | None:
    """When the user cancelled the run; None where it was not cancelled, or was submitted or started again since.

    Raises:
        UnreadableError: the record is damaged.
    """
    path = layout.jobs / _CANCELLED
    advice = f"rm -r {word(path)}: it only says that the run was cancelled"
    found = read_if_there(path, Cancellation, "the record of a cancellation", None, advice=advice)
    return None if found is None or (found.submission, found.claim) != _newest_numbers(layout) else found.time


def _newest_numbers(layout: RunLayout) -> tuple[int, int]:
    """The numbers of the newest submission and of the newest claim."""
    claims = list_directory(layout.jobs, "local-*.json")
    return max(map(_number, _submitted(layout)), default=0), max(map(_number, claims), default=0)


def record_site(layout: RunLayout, site: SiteSettings) -> None:
    """Record the profile that jobs are submitted with: ``status`` and ``cancel`` get only the run directory."""
    values = site.model_dump(mode="json", exclude_defaults=True) | {"type": site.type, "name": site.name}
    folder = origin(site.type)
    write_json(_site_file(layout, site.name), {"site": values, "folder": None if folder is None else str(folder)})


def remember_site(layout: RunLayout, site: SiteSettings) -> None:
    """Record that the run goes on at this site, wherever the next submission is typed."""
    write_json(_last_site(layout), {"name": site.name, "file": None if site.read_from is None else str(site.read_from)})


def last_site(layout: RunLayout) -> LastSite | None:
    """The site that the run was submitted to last; None where it never was.

    Raises:
        UnreadableError: the record is damaged.
    """
    path = _last_site(layout)
    advice = f"rm -r {word(path)}, and the same command again with --site SITE"
    return read_if_there(path, LastSite, "the record of the run's site", None, advice=advice)


def _last_site(layout: RunLayout) -> Path:
    return layout.jobs / "site.json"


def recorded_site(layout: RunLayout, name: str) -> SiteSettings:
    """The profile of this name, as jobs of the run were last submitted with it.

    Raises:
        UserError: its kind is a class of the user's own that is not there any more, or that another user can change.
    """
    path = _site_file(layout, name)
    advice = f"rm -r {word(path)}, and {layout.again}, which writes it"
    unrecorded = SiteRecord({"type": UNRECORDED, "name": name})
    entry = read_if_there(path, SiteRecord, "the record of a site profile", unrecorded, advice=advice)
    if named_modules(entry.site):
        refuse_changeable(path, f"the class of the site profile {name} is not imported")
        if entry.folder is not None:
            import_from(entry.folder, entry.site)
    try:
        return SiteFile.model_validate_json(json.dumps({"site": entry.site}), strict=True).site
    except ValidationError as error:
        raise UserError(
            f"the site profile {name} with which jobs were submitted cannot be read: {error.errors()[0]['msg']}",
            where=path,
            value=entry.site.get("type"),
            advice="put the module of that class back to where it was, and type the same command again",
        ) from error


def _site_file(layout: RunLayout, name: str) -> Path:
    return layout.jobs / f"site-{name}.json"


def current_submissions(layout: RunLayout) -> dict[str, list[Submission]]:
    """The latest submission of all tasks of each job of the plan, and later ones that sent some of them again.

    Raises:
        UnreadableError: the record of one is damaged.
    """
    return latest_of(submissions(layout))


def latest_of(sent: Iterable[Submission]) -> dict[str, list[Submission]]:
    """As :func:`current_submissions`, of submissions from the oldest to the latest."""
    latest: dict[str, list[Submission]] = {}
    for submission in sent:
        latest[submission.job] = (
            [submission] if submission.tasks is None else [*latest.get(submission.job, ()), submission]
        )
    return latest


def task_ids(job: Job, parts: Sequence[Submission]) -> list[str]:
    """The id of each task of a job in its queue, by its index: ``1234``, or ``1234_5`` for a task of an array.

    Args:
        job: of the plan.
        parts: its current submissions, the oldest first; there is one at least.
    """
    if job.tasks == 1:
        return [parts[-1].job_id]
    latest = {
        index: submission.job_id
        for submission in parts
        for index in (range(job.tasks) if submission.tasks is None else submission.tasks)
    }
    return [f"{latest.get(index, parts[0].job_id)}_{index}" for index in range(job.tasks)]


@contextmanager
def claimed(layout: RunLayout, heartbeat_limit_s: float) -> Iterator[None]:
    """Hold the run for this process during the block; its heartbeat shows other hosts that it runs. A claim is a file
    that is created exclusively, one for each generation: of two processes that claim at the same time, one is refused.
    A process that has claimed and does not beat yet seems dead, or is about to be refused: it looks for a later claim
    once it beats, and one that claims later looks for its beat once it beats itself, and for those of the claims before
    it, back to one that held the run. A node of a network filesystem may remember for some seconds that a name is not
    there, until it changes that folder: so each process looks after it has written there.

    Raises:
        UserError: another live process holds the run.
    """
    generation, other = _newest_claim(layout)
    before = _beats_back_to_a_holder(layout, other)  # before the question whether they live: later beats are seen below
    if (holder := next((p for p in before if _lives(layout, p, heartbeat_limit_s)), None)) is not None:
        raise _in_use(layout, holder)
    mine = LocalProcess(os.getpid(), _kernel_start(os.getpid()), socket.gethostname(), generation + 1)
    if not create_text(_claim(layout, mine.generation), json.dumps(asdict(mine))):
        raise _in_use(layout, _newest_claim(layout)[1] or mine)
    with Heart(layout.heart(LOCAL, mine.generation), mine.name, heartbeat_limit_s) as heart:
        try:
            if holder := next((p for p, beat in before.items() if _beat(layout, p) not in (beat, NO_BEAT)), None):
                raise _in_use(layout, holder)
            _refuse_later_claim(layout, mine)
            mine = replace(mine, held=True)
            write_json(_claim(layout, mine.generation), asdict(mine))
            heart.beat_and(lambda: _refuse_later_claim(layout, mine))
            yield
        finally:
            with suppress(OSError, UserError):  # the run may be gone; the end of this process will say the same
                write_json(_claim(layout, mine.generation), asdict(replace(mine, ended=True)))


def _refuse_later_claim(layout: RunLayout, mine: LocalProcess) -> None:
    """Look for the next claim by its name: a listing may be some seconds old on a network filesystem."""
    if _claim(layout, mine.generation + 1).exists():
        raise _in_use(layout, _newest_claim(layout)[1] or mine)


def _beats_back_to_a_holder(layout: RunLayout, newest: LocalProcess | None) -> dict[LocalProcess, Beat]:
    """The beats of the processes that have claimed, from the newest back to the first that has held the run. Those
    that have claimed before it were dead then.
    """
    beats: dict[LocalProcess, Beat] = {}
    process = newest
    while process is not None:
        beats[process] = _beat(layout, process)
        earlier = _claim(layout, process.generation - 1)
        process = None if process.held or not earlier.exists() else _read_claim(earlier)
    return beats


def _beat(layout: RunLayout, process: LocalProcess) -> Beat:
    return read_beat(layout.heart(LOCAL, process.generation))


def _claim(layout: RunLayout, generation: int) -> Path:
    return layout.jobs / f"local-{generation:05d}.json"


def local_process(layout: RunLayout) -> LocalProcess | None:
    """The live process that runs the plan on this machine; None when there is none."""
    _, entry = _newest_claim(layout)
    return entry if entry is not None and entry.is_here and entry.pid != os.getpid() else None


def shown_process(layout: RunLayout) -> tuple[LocalProcess | None, list[str]]:
    """The process that held the run last, on any machine, whether it still runs or not; None where none did, or where
    its record is damaged, which the line beside says.
    """
    try:
        return _newest_claim(layout)[1], []
    except UnreadableError as error:
        return None, [error.line]


def process_elsewhere(layout: RunLayout) -> LocalProcess | None:
    """The process of another machine that ran the plan last; this machine cannot check whether it still runs."""
    _, entry = _newest_claim(layout)
    return entry if entry is not None and entry.host != socket.gethostname() else None


def _newest_claim(layout: RunLayout) -> tuple[int, LocalProcess | None]:
    paths = list_directory(layout.jobs, "local-*.json")
    if not paths:
        return 0, None
    # where the newest is damaged, no earlier one is an answer: its process may run
    return _number(paths[-1]), _read_claim(paths[-1])


def _read_claim(path: Path) -> LocalProcess:
    advice = f"make sure that no process runs the run; then rm -r {word(path)}, and the same command again"
    try:
        return read_typed(path, LocalProcess, "the record of a process", advice=advice)
    except FileNotFoundError as error:
        raise UnreadableError("the record of a process leads nowhere", where=path, advice=advice) from error


def _lives(layout: RunLayout, process: LocalProcess, heartbeat_limit_s: float) -> bool:
    """Whether a process runs the plan: of the one that claimed last the kernel knows it on this machine; every other
    one is known by the heartbeat.
    """
    if process.host == socket.gethostname():
        return process.is_here
    heart = layout.heart(LOCAL, process.generation)
    first, end = read_beat(heart), time.monotonic() + heartbeat_limit_s
    while first != NO_BEAT and time.monotonic() < end:
        if read_beat(heart) not in (first, NO_BEAT):
            return True
        time.sleep(min(1.0, heartbeat_limit_s / 10))
    return False


def _in_use(layout: RunLayout, other: LocalProcess) -> UserError:
    return UserError(
        f"process {other.pid} on {other.host} runs it already",
        where=layout.root,
        advice=f"mrt-hpc status {layout.word}, or mrt-hpc cancel {layout.word}",
    )


def _kernel_start(pid: int) -> str:
    """Field 22 of /proc/PID/stat; empty if there is no such process, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()  # a name is any bytes
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
