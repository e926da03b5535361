"""Compares what Slurm has queued with what was asked for: plugins, aliases and defaults of a site change jobs without a
word.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mrt_hpc.backends.slurm.commands import minutes_of, run_slurm
from mrt_hpc.backends.slurm.parameters import mebibytes
from mrt_hpc.backends.slurm.site import Requeue, SlurmSite
from mrt_hpc.errors import UserError, word
from mrt_hpc.plan.jobs import Job, few_names

ASK_S = 15.0
"""The limit for one question, seconds: what was queued stays queued without an answer."""
MOST_ASKED = 6
"""Kinds of jobs that are asked about, at most."""
_FIELDS = {
    "requeue": re.compile(r"^\s+Requeue=(\S+) Restarts=", re.MULTILINE),
    "time limit": re.compile(r"^\s+RunTime=\S+ TimeLimit=(\S+)", re.MULTILINE),
    "partition": re.compile(r"^\s+Partition=(\S+) AllocNode", re.MULTILINE),
    "memory": re.compile(r"^\s+MinCPUsNode=\S+ MinMemoryNode=(\S+)", re.MULTILINE),
    "memory of a CPU": re.compile(r"^\s+MinCPUsNode=\S+ MinMemoryCPU=(\S+)", re.MULTILINE),
}
"""The fields of ``scontrol show job``, by the fields beside them: a job's name and comment stand on other lines."""
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[KMGTP]?)")
_UNITS = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_ROUNDED = 0.01
"""The share by which Slurm's words for an amount of memory may differ from it."""


@dataclass(frozen=True)
class Difference:
    """One field in which a queued job differs from what was asked for."""

    field: str
    asked: str
    got: str
    advice: str
    """What to type where the difference is not wanted."""

    @property
    def sentence(self) -> str:
        """What was asked for and what the job has, without the job's name."""
        return f"{self.field} {self.got}, where {self.asked} was asked for"


def kinds_asked(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs by kind, which has partition, size and time limit of its own; no more kinds than are asked about."""
    kinds: dict[object, list[Job]] = {}
    for job in jobs:
        kinds.setdefault(job.resources, []).append(job)
    return list(kinds.values())[:MOST_ASKED]


def queued_fields(job_id: str) -> dict[str, str]:
    """Slurm's words for the fields of a queued job that can be compared; those that it does not name are left out.

    Raises:
        UserError: scontrol is missing, did not answer, or refused.
    """
    answer = run_slurm(["scontrol", "show", "job", job_id], ASK_S)
    matches = {name: pattern.search(answer) for name, pattern in _FIELDS.items()}
    return {name: match[1] for name, match in matches.items() if match is not None}


def differences(job: Job, site: SlurmSite, queued: Mapping[str, str]) -> Iterator[Difference]:
    """The fields in which a job differs from what its job script asks for."""
    resources = job.resources
    minutes, got = resources.time_limit_minutes, queued.get("time limit", "")
    if (limit := minutes_of(got)) is not None and limit != minutes:
        fits = f"set max_time_minutes: {max(1, limit)} in the site profile, which fits the plan to it"
        advice = fits if limit < minutes else "nothing: tasks take the limit that Slurm gives them"
        yield Difference("time limit", f"{minutes} minutes", got, advice)
    asked = site.sbatch.get("partition") or (site.partitions.gpu if resources.gpus else site.partitions.cpu)
    got = queued.get("partition", "")
    if isinstance(asked, str) and got and not set(got.split(",")) <= set(asked.split(",")):
        advice = f"set partitions in the site profile to {got}, if that is where the jobs should run"
        yield Difference("partition", asked, got, advice)
    if site.memory_request and not any(option.startswith("mem") for option in site.sbatch):
        yield from _memory(job, queued)
    if site.requeue is not Requeue.FORBIDDEN and queued.get("requeue") == "0":
        advice = "set requeue: forbidden in the site profile; mrt-hpc submit RUN continues a run that has ended so"
        yield Difference("requeue", "1", "0 (the cluster does not start a job again)", advice)


def _memory(job: Job, queued: Mapping[str, str]) -> Iterator[Difference]:
    asked, per_node = mebibytes(job.resources), job.resources.cpus_per_rank * job.resources.ranks_per_node
    for field, factor in (("memory", 1), ("memory of a CPU", per_node)):
        got = queued.get(field, "")
        size = _amount(got)
        if size and size * factor < asked * (1 - _ROUNDED):
            advice = "ask for memory in the way of this cluster, as in sbatch: {mem-per-cpu: 4G} of the site profile"
            yield Difference(field, f"{asked} M a node", got, advice)


def _amount(words: str) -> float | None:
    """An amount of memory in MiB; 0 stands for all of a node, and None for what is no amount."""
    match = _SIZE.fullmatch(words)
    return None if match is None else float(match["number"]) * _UNITS[match["unit"]]


def queued_otherwise(jobs: Sequence[Job], ids: Mapping[str, str], site: SlurmSite, root: Path) -> list[str]:
    """A sentence for each difference between what was queued and what was asked for. The first job of each kind is
    looked at, by its partition, size and time limit.

    Args:
        jobs: that were sent.
        ids: of these jobs, by name.
        site: that they were sent to.
        root: the run directory.
    """
    sentences: list[str] = []
    for alike in kinds_asked(jobs):
        names = few_names([f"{job.name} (job {ids[job.name]})" for job in alike])
        try:
            changed = list(differences(alike[0], site, queued_fields(ids[alike[0].name])))
        except UserError as error:
            return [*sentences, f"whether Slurm has queued the jobs as they were planned is not known: {error.what}"]
        again = f"what is queued changes with mrt-hpc cancel {word(root)} and mrt-hpc submit {word(root)}"
        sentences += [
            f"Slurm has queued {names} with {change.sentence}\n  next:     {change.advice}; {again}"
            for change in changed
        ]
    return sentences
