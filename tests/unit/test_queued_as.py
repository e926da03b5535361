"""What Slurm has queued against what was asked for, and the time limit that a task believes in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest
from basics import executable, resources

from mrt_hpc.backends.slurm import queued_as
from mrt_hpc.backends.slurm.commands import SlurmRefusedError
from mrt_hpc.backends.slurm.environment import ENDS_AT
from mrt_hpc.backends.slurm.parameters import sbatch_parameters
from mrt_hpc.backends.slurm.queued_as import differences, queued_fields, queued_otherwise
from mrt_hpc.backends.slurm.site import Partitions, Requeue, SlurmSite
from mrt_hpc.plan.jobs import Job, Role
from mrt_hpc.run.layout import RunLayout

SITE = SlurmSite(name="box", partitions=Partitions(cpu="cpu,long"))
SHOWN = """\
JobId=45 JobName=Requeue=0 Restarts=7.prepare
   JobState=PENDING Reason=Resources Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit=01:00:00 TimeMin=N/A
   Partition=cpu AllocNode:Sid=login:123
   NumNodes=1-1 NumCPUs=4 NumTasks=2 CPUs/Task=2 ReqB:S:C:T=0:0:*:*
   MinCPUsNode=4 MinMemoryNode=8G MinTmpDiskNode=0
   Comment=a plugin's words: TimeLimit=9 Partition=x
"""
"""What Slurm 22.05 prints; the fields stand on the same lines in 20.11 to 25.05."""
TIME, MEMORY, REQUEUE = "TimeLimit=01:00:00", "MinMemoryNode=8G", "Requeue=1 Restarts=0"


def job(name: str = "prepare", minutes: int = 60) -> Job:
    asked = resources(ranks_per_node=2, cpus_per_rank=2, memory_gib_per_node=8, time_limit_minutes=minutes)
    return Job(name=name, role=Role.PREPARE, tasks=1, resources=asked)


def test_a_difference_from_the_plan_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for says, instead, site, differs in (
        (TIME, TIME, {}, []),
        (TIME, "TimeLimit=00:20:00", {}, ["time limit"]),
        ("Partition=cpu", "Partition=preempt", {}, ["partition"]),
        ("Partition=cpu", "Partition=cpu,long", {}, []),
        ("Partition=cpu", "Partition=preempt", {"sbatch": {"partition": "preempt"}}, []),
        (MEMORY, "MinMemoryNode=100M", {}, ["memory"]),
        (MEMORY, "MinMemoryNode=0", {}, []),
        (MEMORY, "MinMemoryCPU=1000M", {}, ["memory of a CPU"]),
        (MEMORY, "MinMemoryNode=1G", {"memory_request": False}, []),
        (MEMORY, "MinMemoryNode=1G", {"sbatch": {"mem-per-cpu": "1G"}}, []),
        (REQUEUE, "Requeue=0 Restarts=0", {}, ["requeue"]),
        (REQUEUE, "Requeue=expedite Restarts=0", {}, []),
        (REQUEUE, "Requeue=0 Restarts=0", {"requeue": Requeue.FORBIDDEN}, []),
        (SHOWN, "Welcome!\nslurm_load_jobs: nothing to see\n", {}, []),
    ):
        monkeypatch.setattr(queued_as, "run_slurm", Mock(return_value=SHOWN.replace(says, instead)))
        found = differences(job(), SITE.model_copy(update=site), queued_fields("45"))
        assert [one.field for one in found] == differs


def test_jobs_of_one_kind_are_asked_about_once_and_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Mock(return_value=SHOWN.replace("01:00:00", "00:20:00"))
    monkeypatch.setattr(queued_as, "run_slurm", ask)
    jobs = [job(name) for name in "abcde"]
    (told,) = queued_otherwise(jobs, {one.name: str(40 + n) for n, one in enumerate(jobs)}, SITE, Path("/r"))
    assert [call.args[0] for call in ask.mock_calls] == [["scontrol", "show", "job", "40"]]
    for word in ("job 40", "2 more", "00:20:00", "60 minutes", "max_time_minutes: 20", "cancel /r"):
        assert word in told
    monkeypatch.setattr(queued_as, "run_slurm", Mock(side_effect=SlurmRefusedError(["scontrol"], "Access denied")))
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
def test_the_end_of_a_task_comes_from_slurm(
    tmp_path: Path, variables: dict[str, str], answer: str, ends_at: str
) -> None:
    executable(tmp_path / "squeue", answer)
    setup = sbatch_parameters(job(), SITE, RunLayout(tmp_path / "run"), waited_for=False)["setup"]
    script = "\n".join([*setup, f'echo "${ENDS_AT} $(date +%s) $id"'])
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "9", **variables}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    end, now, task = done.stdout.split()
    assert end == ends_at or (ends_at == "by the plan" and abs(int(end) - int(now) - 3600) <= 2)
    assert task == ("7_3" if "SLURM_ARRAY_JOB_ID" in variables else "9")


def test_what_srun_passes_on_and_who_may_start_a_job_again() -> None:
    options = {Requeue.ALLOWED: ("requeue", True), Requeue.EXPEDITE: ("requeue", "expedite")}
    for requeue, option in {**options, Requeue.FORBIDDEN: ("no-requeue", True)}.items():
        site = SITE.model_copy(update={"requeue": requeue})
        parameters = sbatch_parameters(job(), site, RunLayout(Path("/run")), waited_for=False)
        assert option in parameters["additional_parameters"].items()
        assert "--export=ALL" in parameters["srun_args"]
