"""What Slurm's commands print becomes facts: recorded texts of Slurm 22.05, with and without accounting."""

from __future__ import annotations

import pytest
from slurm_texts import USER, RecordedSlurm

from mrt_hpc.launch.slurm.admission import refusals
from mrt_hpc.launch.slurm.cluster_facts import PartitionFacts, User
from mrt_hpc.launch.slurm.cluster_texts import parse_nodes, seconds_of
from mrt_hpc.launch.slurm.preemption import preemption

PREEMPT = {"partitions": [("PreemptMode=REQUEUE", "PreemptMode=CANCEL")]}


def test_a_cluster_with_accounting() -> None:
    found = RecordedSlurm().survey()
    assert found.version_numbers == (22, 5)
    assert found.settings is not None
    assert (found.settings.name, found.settings.max_array_size, found.settings.max_job_count) == ("onehost", 1001, 5000)
    assert (found.settings.kill_wait_s, found.settings.requeues, found.settings.exempt_s) == (10, True, 0)
    assert found.settings.enforced == {"associations", "limits", "qos"}
    assert found.settings.has_accounting
    assert found.settings.sends_user_signal
    assert found.settings.allocates_memory
    assert found.settings.propagates
    assert found.partitions is not None
    assert list(found.partitions) == ["cpu", "gpu", "preempt"]
    assert [name for name, partition in found.partitions.items() if partition.is_default] == ["cpu"]
    assert found.partitions["gpu"].max_minutes == 2880
    assert found.partitions["gpu"].gpu_nodes == 4
    assert found.partitions["preempt"].grace_s == 15
    assert found.associations is not None
    assert [(one.account, one.qos) for one in found.associations] == [("lab", ("lowly", "normal", "urgent"))]
    assert found.default_account == "lab"
    assert found.qos is not None
    assert found.qos["urgent"].preempts == ("lowly",)
    assert found.qos_of(None, None) == found.qos["normal"]
    assert found.qos_of("lab", "lowly") == found.qos["lowly"]
    assert found.problems == {}


def test_a_cluster_without_accounting_is_not_asked_for_accounts() -> None:
    found = RecordedSlurm("plain").survey()  # sacctmgr has no text: asking it would fail
    assert found.settings is not None
    assert (found.settings.max_array_size, found.settings.requeues) == (10, False)
    assert (found.associations, found.qos, found.default_account) == (None, None, None)
    assert set(found.problems.values()) == {
        "this cluster has no accounting (AccountingStorageType=accounting_storage/none)"
    }


def test_commands_that_are_missing_or_refuse_leave_the_rest() -> None:
    found = RecordedSlurm(missing=frozenset({"sinfo"}), refusing={"sacctmgr": "Access denied"}).survey()
    assert found.version is None
    assert found.partitions is not None
    assert found.partitions["gpu"].nodes == ()
    assert found.associations is None
    assert set(found.problems.values()) == {"sinfo was not found", "sacctmgr refused: Access denied"}


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:2", {"": 2}),
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu:a100:2(S:0,1),gpu:v100:1,nvme:1", {"a100": 2, "v100": 1}),
        ("gpu:a100_1g.5gb:7", {"a100_1g.5gb": 7}),
        ("gpu", {"": 1}),
        ("(null)", {}),
        ("shard:8", {}),
    ],
)
def test_gpus_of_a_node(gres: str, gpus: dict[str, int]) -> None:
    (kind,) = parse_nodes(f"gpu|{gres}|3|64+|512000+")["gpu"]
    assert (kind.gpus, kind.count, kind.cpus, kind.memory_mib) == (gpus, 3, 64, 512000)


def test_slurms_times() -> None:
    assert [seconds_of(text) for text in ("00:00:15", "1-00:00:01", "-1", "")] == [15, 86401, 0, 0]


@pytest.mark.parametrize(
    ("partition", "said"),
    [
        (PartitionFacts("p"), []),
        (PartitionFacts("p", allow_groups=frozenset({"lab", "other"})), []),
        (
            PartitionFacts("p", allow_groups=frozenset({"staff"})),
            ["AllowGroups=staff: you are in none of these groups"],
        ),
        (PartitionFacts("p", allow_accounts=frozenset({"b", "a"})), ["AllowAccounts=a,b: not lab"]),
        (PartitionFacts("p", deny_accounts=frozenset({"lab"})), ["DenyAccounts=lab"]),
        (PartitionFacts("p", allow_qos=frozenset({"long"})), ["AllowQos=long: not normal"]),
        (PartitionFacts("p", deny_qos=frozenset({"normal"})), ["DenyQos=normal"]),
        (PartitionFacts("p", root_only=True), ["RootOnly=YES: only root may submit to it"]),
    ],
)
def test_whom_a_partition_admits(partition: PartitionFacts, said: list[str]) -> None:
    assert refusals(partition, USER, ["lab"], "normal") == said


def test_what_a_preemption_does() -> None:
    def modes(slurm: RecordedSlurm, qos: str | None = None) -> dict[str, tuple[str, int]]:
        found = slurm.survey()
        level = found.qos_of(None, qos)
        what = {name: preemption(found, one, level) for name, one in (found.partitions or {}).items()}
        return {name: (one.mode, one.notice_s) for name, one in what.items() if one is not None}

    assert modes(RecordedSlurm()) == {"cpu": ("OFF", 0), "gpu": ("OFF", 0), "preempt": ("REQUEUE", 25)}
    assert modes(RecordedSlurm("plain"))["preempt"] == ("CANCEL", 30)
    by_qos = RecordedSlurm(changes={"config": [("preempt/partition_prio", "preempt/qos")]})
    assert set(modes(by_qos).values()) == {("OFF", 0)}, "no QOS preempts QOS normal"
    assert set(modes(by_qos, "lowly").values()) == {("REQUEUE", 25)}
    none = RecordedSlurm(changes={"config": [("preempt/partition_prio", "preempt/none")]})
    assert modes(none)["preempt"] == ("OFF", 0)


def test_this_user_is_known() -> None:
    assert User.current().name
    assert User.current().groups
