"""Facts of a cluster, from what Slurm's commands print."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mrt_hpc.launch.gpus import is_slice
from mrt_hpc.launch.slurm import answers
from mrt_hpc.launch.slurm.cluster_facts import Association, ClusterSettings, NodeKind, PartitionFacts, Qos
from mrt_hpc.launch.slurm.cluster_limits import minutes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NO_VALUES = ("", "N/A", "(null)", "NONE", "None")
_NODES = re.compile(r"([^|\s]+)\|(.*)\|(\d+)\|(\d+)\+?\|(\d+)\+?")
_ASSOCIATION = re.compile(r"([^|\s]+)\|([^|\s]*)\|([^|\s]*)\|([^|\s]*)\|(\d*)\|([\d:-]*)")
_QOS = re.compile(r"([^|\s]+)\|([\d:-]*)\|(\d*)\|([\d:-]*)\|([^|\s]*)\|([^|\s]*)")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)")


def parse_settings(text: str) -> ClusterSettings:
    """The settings, from ``scontrol show config``."""
    found = answers.settings(text)
    parameters = found.get("SelectTypeParameters")
    return ClusterSettings(
        name=value_of(found.get("ClusterName", "")) or "",
        max_array_size=_whole(found.get("MaxArraySize", "")),
        max_job_count=_whole(found.get("MaxJobCount", "")),
        kill_wait_s=_whole(found.get("KillWait", "").removesuffix(" sec")),
        requeues=None if "JobRequeue" not in found else found["JobRequeue"] == "1",
        preempt_type=found.get("PreemptType", ""),
        preempt_modes=frozenset(found.get("PreemptMode", "OFF").upper().split(",")),
        exempt_s=seconds_of(found.get("PreemptExemptTime", "")),
        sends_user_signal="preempt_send_user_signal" in found.get("SlurmctldParameters", ""),
        accounting=found.get("AccountingStorageType", ""),
        enforced=frozenset(found.get("AccountingStorageEnforce", "").split(",")) - {"none", ""},
        propagates=found.get("PropagateResourceLimits", "ALL").upper() != "NONE",
        select_type=found.get("SelectType", ""),
        allocates_memory=None if parameters is None else "MEMORY" in parameters.upper(),
    )


def parse_partitions(listing: str | None, nodes: str | None) -> dict[str, PartitionFacts] | None:
    """The partitions with their nodes, from the two texts; None without the first."""
    if listing is None:
        return None
    kinds = parse_nodes(nodes or "")
    found = (parse_partition(fields, kinds) for fields in answers.partitions(listing))
    return {partition.name: partition for partition in found}


def parse_partition(fields: Mapping[str, str], kinds: Mapping[str, Sequence[NodeKind]]) -> PartitionFacts:
    """One partition, from the pairs of its line in ``scontrol --oneliner show partition``."""
    name = fields["PartitionName"]
    return PartitionFacts(
        name=name,
        state=fields.get("State", "UP"),
        is_default=fields.get("Default") == "YES",
        max_minutes=minutes_of(fields.get("MaxTime", "")),
        allow_groups=_names(fields.get("AllowGroups", "ALL")),
        allow_accounts=_names(fields.get("AllowAccounts", "ALL")),
        deny_accounts=_names(fields.get("DenyAccounts", "")),
        allow_qos=_names(fields.get("AllowQos", "ALL")),
        deny_qos=_names(fields.get("DenyQos", "")),
        root_only=fields.get("RootOnly") == "YES",
        preempt_mode=(value_of(fields.get("PreemptMode", "")) or "").upper(),
        grace_s=_whole(fields.get("GraceTime", "")) or 0,
        priority_tier=_whole(fields.get("PriorityTier", "")) or 1,
        qos=value_of(fields.get("QoS", "")),
        nodes=tuple(kinds.get(name, ())),
    )


def parse_nodes(text: str) -> dict[str, list[NodeKind]]:
    """The kinds of nodes by partition, from lines as ``gpu|gpu:a100:4(S:0-1)|8|64|512000``."""
    found: dict[str, list[NodeKind]] = {}
    for line in answers.matching_lines(text, _NODES, "sinfo"):
        partition, gres, count, cpus, memory = line.groups()
        gpus = gpus_of_node(gres)
        whole = {name: number for name, number in gpus.items() if not is_slice(name)}
        kind = NodeKind(int(count), whole, int(cpus), int(memory), tuple(sorted(gpus.keys() - whole.keys())))
        found.setdefault(partition.rstrip("*"), []).append(kind)
    return found


def gpus_of_node(gres: str) -> dict[str, int]:
    """The GPUs of a node by type, as in ``gpu:a100:4(S:0-1),gpu:2,nvme:1``; other kinds of GRES are left out. The last
    word is the count, where it is one: all else between the colons is the type, which may begin with a digit.
    """
    found: dict[str, int] = {}
    for one in re.split(r",(?![^(]*\))", gres):
        name, *words = one.partition("(")[0].strip().split(":")
        if name == "gpu":
            kind = [word for word in words if word != "no_consume"]
            count = answers.count_of(kind[-1]) if kind else None
            key = ":".join(kind if count is None else kind[:-1])
            found[key] = found.get(key, 0) + (1 if count is None else count)
    return {key: count for key, count in found.items() if count}


def parse_associations(text: str) -> Iterator[Association]:
    """The associations, from the lines of :func:`associations_command`."""
    for line in answers.matching_lines(text, _ASSOCIATION, "sacctmgr"):
        account, partition, qos, default, submit, wall = line.groups()
        names = tuple(filter(None, qos.split(",")))
        yield Association(account, value_of(partition), names, value_of(default), _whole(submit), minutes_of(wall))


def parse_qos(text: str) -> Iterator[Qos]:
    """Every QOS, from the lines of :data:`QOS`."""
    for line in answers.matching_lines(text, _QOS, "sacctmgr"):
        name, wall, submit, grace, mode, preempts = line.groups()
        own_mode = "" if mode.lower() in ("", "cluster") else mode.upper()
        names = tuple(filter(None, preempts.split(",")))
        yield Qos(name, minutes_of(wall), _whole(submit), seconds_of(grace), own_mode, names)


def default_account(text: str, user: str) -> str | None:
    """The default account of a user, from the line of :func:`default_account_command`."""
    line = re.compile(rf"{re.escape(user)}\|([^|\s]*)")
    return next((value_of(found[1]) for found in answers.matching_lines(text, line, "sacctmgr")), None)


def seconds_of(text: str) -> int:
    """Slurm's ``days-hours:minutes:seconds`` in seconds; 0 for anything else."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _whole(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def value_of(text: str) -> str | None:
    """The text; None for what Slurm writes where there is no value."""
    return None if text.strip() in NO_VALUES else text.strip()


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split(",")) - set(NO_VALUES)
