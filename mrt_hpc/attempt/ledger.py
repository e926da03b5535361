"""Records the id of each submitted job of the plan, and the process that runs the plan on this machine. Each entry is
one file, so an interrupted submission has recorded every accepted job. A process takes the next number of a kind by
creating its file exclusively: numbers say what came later, which the clocks of several login nodes do not.
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

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.plan.jobs import Job
from mrt_hpc.recipe.load import SiteFile
from mrt_hpc.recipe.ownership import refuse_changeable
from mrt_hpc.recipe.site import SiteSettings
from mrt_hpc.recipe.user_code import import_from, named_modules, origin
from mrt_hpc.run.atomic import create_text, make_durable, write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import NO_BEAT, Beat, Heart, read_beat
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.typed_file import Moment, ProcessNumber, UnreadableError, Whole, read_if_there, read_typed, readable

_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.@\[\]-]{0,99}")
"""What an id of any queue may look like: it becomes part of a file's name, and of lists with colons."""
_ATTEMPT = re.compile(r"(\d+)(?:_\d+)?\.(\d+)")
"""The name of an attempt of Slurm: the job, the task of an array, and how often it was started again."""
LOCAL = "local"
"""It stands for a job's name in the paths of heartbeats of processes that have held the run."""
_CANCELLED = "cancelled.json"
LISTED_WITHIN_S = 180.0
"""Seconds after which every listing of a queue holds a job: wrappers of squeue serve one for a minute or two."""
UNRECORDED = "slurm"
"""The kind of a site whose profile is not recorded: the package's only kind with a queue."""


@dataclass(frozen=True)
class Submission:
    job: str
    job_id: str
    time: Moment
    """Seconds since the epoch, by the clock of the submitting machine, which may be wrong by minutes."""
    site: str
    tasks: tuple[Whole, ...] | None = None
    """The indices of the tasks that it runs; None for all tasks of the job."""
    cluster: str | None = None
    """The cluster that gave the id; None where the queue names none, or in a record of an earlier version."""
    number: Whole = 0
    """The number of its record."""

    @property
    def is_new(self) -> bool:
        """Whether a listing of the queue may have been made before the job was submitted."""
        return abs(time.time() - self.time) < LISTED_WITHIN_S


@dataclass(frozen=True)
class LocalProcess:
    pid: ProcessNumber
    started: str
    """The start time that the kernel reports: a later process with the same number has another one."""
    host: str
    generation: Whole = 0
    """The number of its claim on the run, and of its heartbeat."""
    held: bool = False
    """Whether it has held the run."""
    ended: bool = False
    """Whether it holds the run no more: it may have gone on to another run of a family."""
    pid_space: str = ""
    """Where its number counts: the boot of a machine, and a PID namespace. Empty in a record of an earlier version."""
    folder: str = ""
    """Device and inode of the run directory, as a copy of the directory has the same records. Empty as above."""

    @property
    def name(self) -> str:
        """A name that no other process on any host has at any time."""
        return f"{self.host}:{self.pid}:{self.started}"

    @property
    def is_known_here(self) -> bool:
        """Whether the kernel of this machine knows whether it runs: several machines may have one name."""
        return self.host == socket.gethostname() and self.pid_space in ("", _pid_space())

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, and the run in it."""
        return not self.ended and self.is_known_here and _kernel_start(self.pid) == self.started


@dataclass(frozen=True)
class Cancellation:
    """The last time that the user cancelled the run."""

    time: Moment
    """Seconds since the epoch, by the clock of the machine where it was typed: to be shown, not to be compared."""
    submission: Whole
    """The number of the newest submission then; 0 for none."""
    claim: Whole
    """The number of a process's newest claim then; 0 for none."""
    stopped: bool = True
    """Whether anything was stopped; otherwise nothing was queued or ran."""


@dataclass(frozen=True)
class SiteRecord:
    site: dict[str, Any]
    """The fields that are not the defaults."""
    folder: Path | None = None
    """The folder of its module, where its kind is a class of the user's own."""


@dataclass(frozen=True)
class LastSite:
    name: str
    file: Path | None = None
    """The profile, which the user may have changed since; None where it is in no file."""
    text: str | None = None
    """What the profile held then."""


def record_submission(
    layout: RunLayout, job: str, job_id: str, site: str, tasks: Sequence[int] | None = None, cluster: str | None = None
) -> None:
    """Arguments are as the fields of :class:`Submission`. It refuses an id that no queue can give."""
    if not _JOB_ID.fullmatch(job_id):
        raise UserError(
            f"the queue's answer to the submission of {job} is no id of a job; the job may be queued all the same",
            value=job_id,
            where=layout.jobs,
            expected="letters, digits and . @ [ ] -",
            advice="look for it in the queue, and take it out by hand, before mrt-hpc submit RUN",
        )
    sent = Submission(job, job_id, time.time(), site, None if tasks is None else tuple(tasks), cluster)
    entry = {name: value for name, value in asdict(sent).items() if value is not None and name != "number"}
    newest = max(map(_number, _submission_files(layout)), default=0)
    for number in count(newest + 1):
        if create_text(layout.jobs / f"queued-{number:06d}.json", json.dumps(entry)):
            return


def submissions(layout: RunLayout) -> list[Submission]:
    """The oldest comes first. A damaged record is an UnreadableError."""
    return [_submission(path) for path in _submission_files(layout)]


def shown_submissions(layout: RunLayout) -> tuple[list[Submission], list[str]]:
    """Submissions whose records can be read, and a line for each of the others."""
    return readable(_submission_files(layout), _submission)


def _submission_files(layout: RunLayout) -> list[Path]:
    return sorted(list_directory(layout.jobs, "queued-*.json"), key=_number)


def _number(path: Path) -> int:
    """The number of an entry of the ledger; 0 for another file."""
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _submission(path: Path) -> Submission:
    advice = "squeue --me shows whether that job is still queued; then rm -r {path}, and the same command again"
    advice = Advice(advice, path=path)
    return replace(read_typed(path, Submission, "the record of a submitted job", advice=advice), number=_number(path))


def job_of(attempt: str) -> str | None:
    """The id of an attempt's job in the queue; None for an attempt of the local backend."""
    return (match := _ATTEMPT.fullmatch(attempt)) and match[1]


def comes_after(attempt: str, other: str) -> bool:
    """Whether an attempt is a later one of the same job of Slurm. The local backend has one attempt at a time."""
    first, second = _ATTEMPT.fullmatch(attempt), _ATTEMPT.fullmatch(other)
    return first is not None and second is not None and first[1] == second[1] and int(first[2]) > int(second[2])


def is_later(layout: RunLayout, attempt: str, other: str) -> bool:
    """Whether an attempt comes after another one, or its job was submitted later by the ledger: another cluster, or a
    controller that has lost its state, may give a later job a smaller number.
    """
    sent = {one.job_id: one.number for one in shown_submissions(layout)[0]}
    return comes_after(attempt, other) or sent.get(job_of(attempt) or "", 0) > sent.get(job_of(other) or "", 0)


def record_cancellation(layout: RunLayout, newest: tuple[int, int], *, stopped: bool) -> None:
    """Record that no queue holds a job of the run any more, and no process of this machine runs it. ``newest`` is from
    :func:`newest_numbers`, before the queues were asked. ``stopped`` says whether the user has stopped any of them; an
    earlier record that says so is kept.
    """
    if stopped or cancel_time(layout) is None:
        write_json(layout.jobs / _CANCELLED, asdict(Cancellation(time.time(), *newest, stopped)))


def cancel_time(layout: RunLayout) -> float | None:
    """When the user cancelled the run; None where it was not cancelled, or was started again since."""
    found = _cancellation(layout)
    is_newest = (found.submission, found.claim) == newest_numbers(layout)
    return found.time if found.stopped and is_newest else None


def newest_unqueued(layout: RunLayout) -> int:
    """The newest submission that, by a record, no queue holds any more, nor any before it."""
    return _cancellation(layout).submission


def _cancellation(layout: RunLayout) -> Cancellation:
    path = layout.jobs / _CANCELLED
    advice = Advice("rm -r {path}: it only says that the run was cancelled", path=path)
    none = Cancellation(0.0, 0, 0, stopped=False)
    return read_if_there(path, Cancellation, "the record of a cancellation", none, advice=advice)


def newest_numbers(layout: RunLayout) -> tuple[int, int]:
    claims = list_directory(layout.jobs, "local-*.json")
    return max(map(_number, _submission_files(layout)), default=0), max(map(_number, claims), default=0)


def record_site(layout: RunLayout, site: SiteSettings) -> None:
    """Record the profile that jobs are submitted with: ``status`` and ``cancel`` get only the run directory."""
    values = site.model_dump(mode="json", exclude_defaults=True) | {"type": site.type, "name": site.name}
    folder = origin(site.type)
    entry = {"site": values, "folder": None if folder is None else str(folder)}
    write_json(_site_file(layout, site.name), entry, private=True)  # its variables may be secrets


def remember_site(layout: RunLayout, site: SiteSettings) -> None:
    entry = {"name": site.name, "file": None if site.read_from is None else str(site.read_from), "text": site.text}
    write_json(last_site_file(layout), entry, private=True)


def last_site(layout: RunLayout) -> LastSite | None:
    path = last_site_file(layout)
    advice = Advice("rm -r {path}, and the same command again with --site SITE", path=path)
    return read_if_there(path, LastSite, "the record of the run's site", None, advice=advice)


def last_site_file(layout: RunLayout) -> Path:
    return layout.jobs / "site.json"


def recorded_site(layout: RunLayout, name: str) -> SiteSettings:
    """The profile of this name, as jobs of the run were last submitted with it. It refuses a class of the user's own
    that is gone, or that another user can change.
    """
    path = _site_file(layout, name)
    advice = Advice("rm -r {path}, and {again}, which writes it", path=path, again=layout.again)
    entry = SiteRecord({"type": UNRECORDED, "name": name})
    if not path.exists() or os.access(path, os.R_OK):  # its owner's variables are for the owner alone
        entry = read_if_there(path, SiteRecord, "the record of a site profile", entry, advice=advice)
    if named_modules(entry.site):
        path = refuse_changeable(path, f"the class of the site profile {name} is not imported")
        entry = read_typed(path, SiteRecord, "the record of a site profile", advice=advice)  # of the place looked at
        if entry.folder is not None:
            import_from(entry.folder, entry.site)
    try:
        return SiteFile.model_validate_json(json.dumps({"site": entry.site}), strict=True).site
    except ValidationError as error:
        first = error.errors()[0]
        gone = str(first["loc"][-1]) if first["type"] == "extra_forbidden" else None
        raise UserError(
            f"the site profile {name} with which jobs were submitted cannot be read: {first['msg']}",
            where=path,
            value=gone or entry.site.get("type"),
            expected=None if gone is None else "a profile without this field, which is not known any more",
            advice="put the module of that class back to where it was, and type the same command again"
            if gone is None
            else Advice("take {field} with its value out of {path}; then the same command", field=gone, path=path),
        ) from error


def _site_file(layout: RunLayout, name: str) -> Path:
    return layout.jobs / f"site-{name}.json"


def current_submissions(layout: RunLayout) -> dict[str, list[Submission]]:
    """The latest submission of all tasks of each job, and later ones that sent some of them again."""
    return latest_of(submissions(layout))


def latest_of(sent: Iterable[Submission]) -> dict[str, list[Submission]]:
    """The same as :func:`current_submissions`, of submissions from the oldest to the latest."""
    latest: dict[str, list[Submission]] = {}
    for submission in sent:
        before = [] if submission.tasks is None else latest.get(submission.job, [])
        latest[submission.job] = [*before, submission]
    return latest


def task_ids(job: Job, parts: Sequence[Submission]) -> list[str]:
    """The ids by index: ``1234``, or ``1234_5`` for a task of an array. ``parts`` are the job's current submissions,
    the oldest first; there is at least one.
    """
    if job.tasks == 1:
        return [parts[-1].job_id]
    latest = {
        index: submission.job_id
        for submission in parts
        for index in (range(job.tasks) if submission.tasks is None else submission.tasks)
    }
    return [f"{latest.get(index, parts[0].job_id)}_{index}" for index in range(job.tasks)]


def make_claim_folders(family: RunLayout) -> None:
    """Make the folders of the claims on a family. It does not count as a run: writers make the folders of a run, and
    would make a member again that was moved out of it.
    """
    for folder in (family.jobs, family.heart(LOCAL, 0).parent):
        make_durable(folder)


@contextmanager
def claim_run(layout: RunLayout, heartbeat_limit_s: float) -> Iterator[None]:
    """Hold the run for this process during the block; its heartbeat shows other hosts that it runs.

    A claim is a file that is created exclusively, one for each generation. A process that has claimed and does not beat
    yet seems dead. So each process, once it beats, looks for a later claim, and for the beats of earlier claims: after
    it has written there, as a network filesystem may remember that a name is missing.

    Raises:
        UserError: another live process holds the run.
    """
    generation, other = _newest_claim(layout)
    before = _beats_back_to_a_holder(layout, other)  # before the question whether they live: later beats are seen below
    if (holder := next((p for p in before if _lives(layout, p, heartbeat_limit_s)), None)) is not None:
        raise _run_in_use_error(layout, holder)
    pid, here = os.getpid(), socket.gethostname()
    mine = LocalProcess(pid, _kernel_start(pid), here, generation + 1, pid_space=_pid_space())
    if not create_text(_claim(layout, mine.generation), json.dumps(asdict(mine))):
        raise _run_in_use_error(layout, _newest_claim(layout)[1] or mine)
    with Heart(layout.heart(LOCAL, mine.generation), mine.name, heartbeat_limit_s) as heart:
        try:
            if holder := next((p for p, beat in before.items() if _beat(layout, p) not in (beat, NO_BEAT)), None):
                raise _run_in_use_error(layout, holder)
            _refuse_later_claim(layout, mine)
            mine = replace(mine, held=True, folder=_folder(layout))
            write_json(_claim(layout, mine.generation), asdict(mine))
            heart.beat_and(lambda: _refuse_later_claim(layout, mine))
            yield
        finally:
            with suppress(OSError, UserError):  # the run may be gone; the end of this process will say the same
                write_json(_claim(layout, mine.generation), asdict(replace(mine, ended=True)))


def _refuse_later_claim(layout: RunLayout, mine: LocalProcess) -> None:
    """Look for the next claim by its name: on a network filesystem a listing may be some seconds old."""
    if _claim(layout, mine.generation + 1).exists():
        raise _run_in_use_error(layout, _newest_claim(layout)[1] or mine)


def _beats_back_to_a_holder(layout: RunLayout, newest: LocalProcess | None) -> dict[LocalProcess, Beat]:
    """The beats of the processes that have claimed, from the newest back to the first that has held the run: those
    before it were dead then.
    """
    beats: dict[LocalProcess, Beat] = {}
    process = newest
    while process is not None:
        beats[process] = _beat(layout, process)
        earlier = _claim(layout, process.generation - 1)
        process = None if process.held or not earlier.exists() else _read_claim(layout, earlier)
    return beats


def _beat(layout: RunLayout, process: LocalProcess) -> Beat:
    return read_beat(layout.heart(LOCAL, process.generation))


def _claim(layout: RunLayout, generation: int) -> Path:
    return layout.jobs / f"local-{generation:05d}.json"


def local_process(layout: RunLayout) -> LocalProcess | None:
    _, entry = _newest_claim(layout)
    return entry if entry is not None and entry.is_here and entry.pid != os.getpid() else None


def shown_process(layout: RunLayout) -> tuple[LocalProcess | None, list[str]]:
    """The process that held the run last, on any machine, alive or not. None where none did, or where its record is
    damaged; the lines say which.
    """
    try:
        return _newest_claim(layout)[1], []
    except UnreadableError as error:
        return None, [error.line]


def process_elsewhere(layout: RunLayout) -> LocalProcess | None:
    """This machine cannot check whether it still runs."""
    _, entry = _newest_claim(layout)
    return entry if entry is not None and entry.host != socket.gethostname() else None


def _newest_claim(layout: RunLayout) -> tuple[int, LocalProcess | None]:
    paths = list_directory(layout.jobs, "local-*.json")
    if not paths:
        return 0, None
    # where the newest is damaged, no earlier one is an answer: its process may run
    return _number(paths[-1]), _read_claim(layout, paths[-1])


def _read_claim(layout: RunLayout, path: Path) -> LocalProcess:
    """The process of a claim. It counts as ended where it holds another run directory, of which this one is a copy or
    to which it links.
    """
    advice = Advice("make sure that no process runs the run; then rm -r {path}, and the same command again", path=path)
    try:
        process = read_typed(path, LocalProcess, "the record of a process", advice=advice)
    except FileNotFoundError as error:
        raise UnreadableError("the record of a process leads nowhere", where=path, advice=advice) from error
    is_of_another = process.is_known_here and process.folder not in ("", _folder(layout))
    return replace(process, ended=process.ended or is_of_another)


def _lives(layout: RunLayout, process: LocalProcess, heartbeat_limit_s: float) -> bool:
    """The kernel knows whether a process of this machine runs; the heart tells it of any other."""
    if process.is_known_here:
        return process.is_here
    heart = layout.heart(LOCAL, process.generation)
    first, end = read_beat(heart), time.monotonic() + heartbeat_limit_s
    while first != NO_BEAT and time.monotonic() < end:
        if read_beat(heart) not in (first, NO_BEAT):
            return True
        time.sleep(min(1.0, heartbeat_limit_s / 10))
    return False


def _run_in_use_error(layout: RunLayout, other: LocalProcess) -> UserError:
    return UserError(
        f"process {other.pid} on {other.host} runs it already",
        where=layout.root,
        advice=Advice("mrt-hpc status {run}, or mrt-hpc cancel {run}", run=layout.root),
    )


def _kernel_start(pid: int) -> str:
    """Field 22 of /proc/PID/stat; empty if there is no such process, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()  # a name is any bytes
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _pid_space() -> str:
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"


def _folder(layout: RunLayout) -> str:
    status = layout.root.stat()
    return f"{status.st_dev}:{status.st_ino}"
