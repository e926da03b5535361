"""Compares what Slurm has queued with what was asked for: plugins, aliases and defaults of a site change
jobs silently.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mrt_hpc.backends.backend import JobMarks
from mrt_hpc.backends.slurm.commands import run_slurm
from mrt_hpc.backends.slurm.parameters import SCRIPT, mebibytes, queue_name
from mrt_hpc.backends.slurm.queue import job_of
from mrt_hpc.backends.slurm.site import MemoryRequest, Requeue, SlurmSite
from mrt_hpc.backends.slurm.slurm_output import minutes_of
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.plan.jobs import Job, few_names
from mrt_hpc.run.layout import RunLayout

ASK_S = 15.0
"""What was queued stays queued without an answer."""
MOST_ASKED = 6
_FIELDS = {
    "requeue": re.compile(r"^\s+Requeue=(\S+) Restarts=", re.MULTILINE),
    "time limit": re.compile(r"^\s+RunTime=\S+ TimeLimit=(\S+)", re.MULTILINE),
    "partition": re.compile(r"^\s+Partition=(\S+) AllocNode", re.MULTILINE),
    "memory": re.compile(r"^\s+MinCPUsNode=\S+ MinMemoryNode=(\S+)", re.MULTILINE),
    "memory of a CPU": re.compile(r"^\s+MinCPUsNode=\S+ MinMemoryCPU=(\S+)", re.MULTILINE),
    "name": re.compile(r"^JobId=\d+ (?:Array\w+=\S+ )*JobName=(.*)$", re.MULTILINE),
    "script": re.compile(r"^\s+Command=(.*)$", re.MULTILINE),
}
"""Fields are found by those beside them: a job's name and comment stand on other lines."""
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[KMGTP]?)")
_UNITS = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_ROUNDED = 0.01
"""The share by which Slurm's words for memory may differ."""


@dataclass(frozen=True)
class Difference:
    field: str
    asked: str
    got: str
    advice: str
    """What to type where the difference is not wanted."""

    @property
    def sentence(self) -> str:
        return f"{self.field} {self.got}, where {self.asked} was asked for"


def kinds_asked(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs by partition, size and time limit; at most ``MOST_ASKED`` kinds."""
    kinds: dict[object, list[Job]] = {}
    for job in jobs:
        kinds.setdefault(job.resources, []).append(job)
    return list(kinds.values())[:MOST_ASKED]


def queued_fields(job_id: str) -> dict[str, str]:
    """Slurm's words for comparable fields."""
    answer = run_slurm(["scontrol", "show", "job", job_id], ASK_S)
    matches = {name: pattern.search(answer) for name, pattern in _FIELDS.items()}
    return {name: match[1] for name, match in matches.items() if match is not None}


def differences(job: Job, site: SlurmSite, queued: Mapping[str, str]) -> Iterator[Difference]:
    resources = job.resources
    minutes, got = resources.time_limit_minutes, queued.get("time limit", "")
    if (limit := minutes_of(got)) is not None and limit != minutes:
        fits = f"set max_time_minutes: {max(1, limit)} in the site profile, which fits the plan to it"
        advice = fits if limit < minutes else "nothing: tasks take the limit that Slurm gives them"
        yield Difference("time limit", f"{minutes} minutes", got, advice)
    asked, got = site.text_of("partition", resources.kind), queued.get("partition", "")
    if asked is not None and got and not set(got.split(",")) <= set(asked.split(",")):
        advice = f"set partitions in the site profile to {got}, if that is where the jobs should run"
        yield Difference("partition", asked, got, advice)
    if site.memory_request is not MemoryRequest.NONE:
        yield from _memory(job, queued)
    if site.requeue is not Requeue.FORBIDDEN and queued.get("requeue") == "0":
        advice = "set requeue: forbidden in the site profile; mrt-hpc submit RUN continues a run that has ended so"
        yield Difference("requeue", "1", "0 (the cluster does not start a job again)", advice)


def _memory(job: Job, queued: Mapping[str, str]) -> Iterator[Difference]:
    asked = mebibytes(job.resources)
    for field, factor in (("memory", 1), ("memory of a CPU", job.resources.cpus_per_node)):
        got = queued.get(field, "")
        if (size := _amount(got)) and size * factor < asked * (1 - _ROUNDED):
            advice = "ask for memory in the way of this cluster: memory_request: mem_per_cpu in the site profile"
            yield Difference(field, f"{asked} M a node", got, advice)


def _marks(job: Job, queued: Mapping[str, str], layout: RunLayout) -> Iterator[Difference]:
    """No command would know a job with another name or script as the run's."""
    name, script = queued.get("name"), queued.get("script")
    if name and script and job_of(layout, JobMarks(name, script)) != job.name:
        advice = "ask the administrators to leave name or script as submitted: the run knows its jobs by them"
        yield Difference("name and script", f"{queue_name(job.name, layout)} and {SCRIPT}", f"{name}, {script}", advice)


def _amount(words: str) -> float | None:
    """Memory in MiB; 0 stands for all of a node."""
    match = _SIZE.fullmatch(words)
    return None if match is None else float(match["number"]) * _UNITS[match["unit"]]


def queue_differences(jobs: Sequence[Job], ids: Mapping[str, str], site: SlurmSite, root: Path) -> list[str]:
    """Compares the first job of each kind."""
    sentences: list[str] = []
    for alike in kinds_asked(jobs):
        names = few_names([f"{job.name} (job {ids[job.name]})" for job in alike])
        try:
            queued = queued_fields(ids[alike[0].name])
            changed = [*differences(alike[0], site, queued), *_marks(alike[0], queued, RunLayout(root))]
        except UserError as error:
            return [*sentences, f"whether Slurm has queued the jobs as they were planned is not known: {error.what}"]
        again = Advice("what is queued changes with mrt-hpc cancel {run} and mrt-hpc submit {run}", run=root)
        said = f"Slurm has queued {names} with"
        sentences += [f"{said} {change.sentence}\n  next:     {change.advice}; {again}" for change in changed]
    return sentences
