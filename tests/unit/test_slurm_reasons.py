"""Reasons of squeue have a meaning, and something to type next."""

from __future__ import annotations

import pytest

from mrt_hpc.backends.backend import Hold
from mrt_hpc.backends.slurm.reasons import _REASONS, meaning

EXPECTED = [
    ("Priority", "higher priority", Hold.RESOURCES, "sprio -j {id}"),
    ("Resources", "next in turn", Hold.RESOURCES, "squeue --start -j {id}"),
    ("QOSMaxJobsPerUserLimit", "your jobs have reached the QOS's limit on running jobs", Hold.RESOURCES, "sacctmgr"),
    ("QOSMaxGRESPerUser", "your jobs have reached the QOS's limit on GPUs", Hold.RESOURCES, "sacctmgr"),
    ("QOSGrpNodeLimit", "all jobs of the QOS have reached the QOS's limit on nodes", Hold.RESOURCES, "sacctmgr"),
    ("AssocGrpGRES", "all jobs of the account have reached the account's limit on GPUs", Hold.RESOURCES, "sacctmgr"),
    ("AssocGrpCPUMinutesLimit", "limit on core minutes", Hold.RESOURCES, "when the period ends"),
    ("AssocMaxJobsLimit", "your jobs have reached the account's limit on running jobs", Hold.RESOURCES, "sacctmgr"),
    ("QOSMaxCpuPerAccountLimit", "the jobs of your account have reached", Hold.RESOURCES, "sacctmgr"),
    ("QOSMaxWallDurationPerJobLimit", "more running time than its QOS allows", Hold.NEVER, "mrt-hpc cancel {run}"),
    ("QOSMaxNodePerJobLimit", "more nodes than its QOS allows", Hold.NEVER, "mrt-hpc cancel {run}"),
    ("QOSMinGRES", "fewer GPUs than its QOS requires", Hold.NEVER, "mrt-hpc cancel {run}"),
    ("ReqNodeNotAvail, UnavailableNodes:node[1-3]", "down, drained or reserved", Hold.RESOURCES, "sinfo -R"),
    ("(ReqNodeNotAvail)", "down, drained or reserved", Hold.RESOURCES, "sinfo -R"),
    (
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        "nodes that it needs are down",
        Hold.RESOURCES,
        "sinfo -R",
    ),
    ("Dependency", "other jobs of the run", Hold.JOBS, "starts by itself"),
    ("DependencyNeverSatisfied", "can never start", Hold.NEVER, "mrt-hpc cancel {run}"),
    ("PartitionTimeLimit", "longer than its partition allows", Hold.NEVER, "time_limit_minutes"),
    ("BeginTime", "after a pause", Hold.TIME, "starts by itself"),
    ("JobHeldUser", "a user has held it", Hold.USER, "scontrol release {id}"),
    ("JobHeldAdmin", "an administrator has held it", Hold.ADMINISTRATOR, "ask the administrators"),
    ("launch failed requeued held", "could not be launched", Hold.USER, "scontrol release {id}"),
    ("BadConstraints", "no node has all", Hold.NEVER, "sinfo -o"),
    ("JobArrayTaskLimit", "as the recipe allows", Hold.RESOURCES, "max_parallel"),
]


@pytest.mark.parametrize(("reason", "means", "hold", "command"), EXPECTED)
def test_a_reason_has_a_meaning_and_a_next_command(reason: str, means: str, hold: Hold, command: str) -> None:
    found = meaning(reason)
    assert found is not None
    assert means in found.means
    assert found.hold is hold
    assert command in found.next


@pytest.mark.parametrize("reason", ["", "SomethingNew", "QOSomething", "Assoc"])
def test_an_unknown_reason_has_none(reason: str) -> None:
    assert meaning(reason) is None


@pytest.mark.parametrize("reason", [*_REASONS, "QOSMaxJobsPerUserLimit", "QOSMinGRES", "AssocGrpGRES"])
def test_every_command_can_be_typed_for_a_task(reason: str) -> None:
    found = meaning(reason)
    assert found is not None
    command = found.next.format(id="12_3", run="runs/x")
    assert "{" not in command.replace("{id}", "")
    assert command
