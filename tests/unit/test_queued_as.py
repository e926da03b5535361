"""What Slurm has queued against what was asked for, and the time limit that a task believes in: plugins and variables
of a site decide against the plan.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mrt_hpc.backends.slurm import queued_as
from mrt_hpc.backends.slurm.commands import SlurmRefusedError
from mrt_hpc.backends.slurm.environment import ENDS_AT
from mrt_hpc.backends.slurm.parameters import sbatch_parameters
from mrt_hpc.backends.slurm.queued_as import differences, queued_fields, queued_otherwise
from mrt_hpc.backends.slurm.site import Partitions, Requeue, SlurmSite
from mrt_hpc.plan.jobs import Job, JobResources, Role
from mrt_hpc.run.layout import RunLayout

SITE = SlurmSite(name="box", partitions=Partitions(cpu="cpu,long"))
SHOWN = """\
JobId=45 JobName=Requeue=0 Restarts=7.prepare
   UserId=me(1000) GroupId=me(1000) MCS_label=N/A
   Priority=4294901759 Nice=0 Account=lab QOS=normal
   JobState=PENDING Reason=Resources Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit=01:00:00 TimeMin=N/A
   SubmitTime=2025-05-05T10:00:00 EligibleTime=2025-05-05T10:00:00
   Partition=cpu AllocNode:Sid=login:123
   ReqNodeList=(null) ExcNodeList=(null)
   NumNodes=1-1 NumCPUs=4 NumTasks=2 CPUs/Task=2 ReqB:S:C:T=0:0:*:*
   MinCPUsNode=4 MinMemoryNode=8G MinTmpDiskNode=0
   Comment=a plugin's words: TimeLimit=9 Partition=x
"""
"""What Slurm 22.05 prints; the fields stand on the same lines in 20.11 to 25.05."""


def job(name: str = "prepare", minutes: int = 60) -> Job:
    resources = JobResources(
        nodes=1, ranks_per_node=2, gpus_per_rank=0, cpus_per_rank=2, memory_gib_per_node=8, time_limit_minutes=minutes
    )
    return Job(name=name, role=Role.PREPARE, tasks=1, resources=resources)


def shows(monkeypatch: pytest.MonkeyPatch, text: str) -> list[list[str]]:
    asked: list[list[str]] = []

    def answer(command: list[str], _: float) -> str:
        asked.append(command)
        return text

    monkeypatch.setattr(queued_as, "run_slurm", answer)
    return asked


@pytest.mark.parametrize(
    ("says", "instead", "site", "differs"),
    [
        ("", "", SITE, []),
        ("TimeLimit=01:00:00", "TimeLimit=00:20:00", SITE, ["time limit"]),
        ("TimeLimit=01:00:00", "TimeLimit=2-00:00:00", SITE, ["time limit"]),
        ("TimeLimit=01:00:00", "TimeLimit=Partition_Limit", SITE, []),
        ("Partition=cpu", "Partition=preempt", SITE, ["partition"]),
        ("Partition=cpu", "Partition=cpu,long", SITE, []),
        ("Partition=cpu", "Partition=preempt", SITE.model_copy(update={"sbatch": {"partition": "preempt"}}), []),
        ("Partition=cpu", "Partition=other", SlurmSite(name="default"), []),
        ("MinMemoryNode=8G", "MinMemoryNode=100M", SITE, ["memory"]),
        ("MinMemoryNode=8G", "MinMemoryNode=8191.50M", SITE, []),
        ("MinMemoryNode=8G", "MinMemoryNode=0", SITE, []),
        ("MinMemoryNode=8G", "MinMemoryCPU=2G", SITE, []),
        ("MinMemoryNode=8G", "MinMemoryCPU=1000M", SITE, ["memory of a CPU"]),
        ("MinMemoryNode=8G", "MinMemoryNode=1G", SITE.model_copy(update={"memory_request": False}), []),
        ("MinMemoryNode=8G", "MinMemoryNode=1G", SITE.model_copy(update={"sbatch": {"mem-per-cpu": "1G"}}), []),
        ("Requeue=1 Restarts=0", "Requeue=0 Restarts=0", SITE, ["requeue"]),
        ("Requeue=1 Restarts=0", "Requeue=expedite Restarts=0", SITE, []),
        ("Requeue=1 Restarts=0", "Requeue=0 Restarts=0", SITE.model_copy(update={"requeue": Requeue.FORBIDDEN}), []),
        (SHOWN, "Welcome!\nslurm_load_jobs: nothing to see\n", SITE, []),
    ],
)
def test_a_difference_from_the_plan_is_found(
    monkeypatch: pytest.MonkeyPatch, says: str, instead: str, site: SlurmSite, differs: list[str]
) -> None:
    shows(monkeypatch, SHOWN.replace(says, instead) if says else SHOWN)
    assert [one.field for one in differences(job(), site, queued_fields("45"))] == differs


def test_jobs_of_one_kind_are_asked_about_once_and_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = shows(monkeypatch, SHOWN.replace("01:00:00", "00:20:00"))
    jobs = [job(name) for name in "abcde"]
    (told,) = queued_otherwise(jobs, {one.name: str(40 + n) for n, one in enumerate(jobs)}, SITE, Path("/r"))
    assert asked == [["scontrol", "show", "job", "40"]]
    for word in ("job 40", "2 more", "00:20:00", "60 minutes", "max_time_minutes: 20", "cancel /r"):
        assert word in told


def test_a_question_without_an_answer_ends_no_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str], _: float) -> str:
        raise SlurmRefusedError(command, "Access denied")

    monkeypatch.setattr(queued_as, "run_slurm", refuse)
    assert len(queued_otherwise([job("a"), job("b", 5)], {"a": "1", "b": "2"}, SITE, Path("/r"))) == 1


@pytest.mark.parametrize(
    ("variables", "answer", "ends_at"),
    [
        ({"SLURM_JOB_END_TIME": "111"}, "echo 222", "111"),
        ({}, "echo 222", "222"),
        ({"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, 'echo "$*" | grep -q jobs=7_3 && echo 333', "333"),
        ({"SQUEUE_FORMAT": "%j"}, '[ -z "$SQUEUE_FORMAT" ] && echo Welcome && echo 444', "444"),
        ({}, "echo N/A", "by the plan"),
        ({}, "exit 1", "by the plan"),
    ],
)
def test_the_time_limit_of_a_task_comes_from_slurm(
    tmp_path: Path, variables: dict[str, str], answer: str, ends_at: str
) -> None:
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "squeue").chmod(0o755)
    setup = sbatch_parameters(job(), SITE, RunLayout(tmp_path / "run"), waited_for=False)["setup"]
    script = "\n".join([*setup, f'echo "${ENDS_AT} $(date +%s) $id"'])
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "9", **variables}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    end, now, task = done.stdout.split()
    assert end == ends_at or (ends_at == "by the plan" and abs(int(end) - int(now) - 3600) <= 2)
    assert task == ("7_3" if "SLURM_ARRAY_JOB_ID" in variables else "9")


@pytest.mark.parametrize(
    ("requeue", "option"),
    [
        (Requeue.ALLOWED, {"requeue": True}),
        (Requeue.EXPEDITE, {"requeue": "expedite"}),
        (Requeue.FORBIDDEN, {"no-requeue": True}),
    ],
)
def test_what_srun_passes_on_and_who_may_start_a_job_again(requeue: Requeue, option: dict[str, object]) -> None:
    site = SITE.model_copy(update={"requeue": requeue})
    parameters = sbatch_parameters(job(), site, RunLayout(Path("/run")), waited_for=False)
    assert option.items() <= parameters["additional_parameters"].items()
    assert "--export=ALL" in parameters["srun_args"]
