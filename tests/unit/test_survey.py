"""What Slurm's commands print becomes facts: recorded texts of Slurm 22.05, with and without accounting."""

from __future__ import annotations

import pytest
from slurm_texts import USER, RecordedSlurm

from mrt_hpc.backends.slurm.survey import PartitionFacts, User, parse_nodes, seconds_of
from mrt_hpc.cluster.job_rules import preemption, refusals

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


# As sinfo prints %G on public clusters: (whole GPUs by type, types of parts of GPUs).
GRES: dict[str, tuple[dict[str, int], tuple[str, ...]]] = {
    "(null)": ({}, ()),
    "gpu": ({"": 1}, ()),
    "gpu:2": ({"": 2}, ()),
    "gpu:8(S:0-3)": ({"": 8}, ()),
    "gpu:0": ({}, ()),
    "gpu:a100": ({"a100": 1}, ()),
    "gpu:2080ti": ({"2080ti": 1}, ()),
    "gpu:2080ti:2": ({"2080ti": 2}, ()),
    "gpu:3090:2(S:0)": ({"3090": 2}, ()),
    "gpu:4090:8(S:0-1)": ({"4090": 8}, ()),
    "gpu:1080ti:4,gpu:2080ti:4": ({"1080ti": 4, "2080ti": 4}, ()),
    "gpu:a100:4(S:0-1)": ({"a100": 4}, ()),
    "gpu:a100:2(S:0,1),gpu:v100:1,nvme:1": ({"a100": 2, "v100": 1}, ()),
    "gpu:tesla:2(S:0),gpu:tesla:2(S:1)": ({"tesla": 4}, ()),
    "gpu:a100:4(IDX:0-3)": ({"a100": 4}, ()),
    "gpu:a100:no_consume:4": ({"a100": 4}, ()),
    "gpu:no_consume:4": ({"": 4}, ()),
    "gpu:tesla:4K": ({"tesla": 4096}, ()),
    "gpu:1k": ({"": 1024}, ()),
    "gpu:nvidia_a100-sxm4-80gb:8(S:0-1)": ({"nvidia_a100-sxm4-80gb": 8}, ()),
    "gpu:nvidia_h100_80gb_hbm3:8(S:0-1)": ({"nvidia_h100_80gb_hbm3": 8}, ()),
    "gpu:nvidia_gh200_480gb:1(S:0-8)": ({"nvidia_gh200_480gb": 1}, ()),
    "gpu:rtx_2080_ti:4(S:0),gpu:titan_rtx:4(S:1)": ({"rtx_2080_ti": 4, "titan_rtx": 4}, ()),
    "gpu:mi250:8(S:0-7)": ({"mi250": 8}, ()),
    "gpu:l40s:4(S:0-1),mps:l40s:400(S:0-1)": ({"l40s": 4}, ()),
    "gpu:a100:4(S:0-1),shard:8": ({"a100": 4}, ()),
    "shard:a100:32(S:0-1),gpu:a100:4(S:0-1)": ({"a100": 4}, ()),
    "shard:8": ({}, ()),
    "mps:400": ({}, ()),
    "craynetwork:4,hbm:0": ({}, ()),
    "bandwidth:lustre:no_consume:4G,gpu:p100:2": ({"p100": 2}, ()),
    "tmpfs:512G,gpu:v100l:4(S:0-1)": ({"v100l": 4}, ()),
    "gpu:1g.10gb:2(S:0)": ({}, ("1g.10gb",)),
    "gpu:1g.10gb:4(S:0),gpu:3g.40gb:1(S:1)": ({}, ("1g.10gb", "3g.40gb")),
    "gpu:a100:3(S:0-1),gpu:a100_3g.20gb:2(S:1)": ({"a100": 3}, ("a100_3g.20gb",)),
    "gpu:a100_1g.5gb:7": ({}, ("a100_1g.5gb",)),
    "gpu:a100-1g5gb:7": ({}, ("a100-1g5gb",)),
    "gpu:nvidia_h100_nvl_1g.12gb:1": ({}, ("nvidia_h100_nvl_1g.12gb",)),
    "gpu:nvidia_a100_80gb_pcie_2g.20gb+me:1": ({}, ("nvidia_a100_80gb_pcie_2g.20gb+me",)),
    "gpu:a100_mig:7,gpu:a100:4": ({"a100": 4}, ("a100_mig",)),
}


@pytest.mark.parametrize("gres", GRES)
def test_gpus_of_a_node(gres: str) -> None:
    (kind,) = parse_nodes(f"gpu|{gres}|3|64+|512000+")["gpu"]
    assert (kind.gpus, kind.slices) == GRES[gres]
    assert (kind.count, kind.cpus, kind.memory_mib) == (3, 64, 512000)


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
