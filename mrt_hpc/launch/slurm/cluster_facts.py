"""What is known of a Slurm cluster, as data: its settings, its partitions, the user's associations and the QOS."""

from __future__ import annotations

import grp
import os
import pwd
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.launch.slurm.cluster_limits import ClusterLimits, Partition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OLDEST_VERSION = (20, 11)
"""The oldest version of Slurm that the package supports."""
ALL = frozenset({"ALL"})
"""What Slurm writes in place of a list of all accounts, groups or QOS."""


@dataclass(frozen=True)
class ClusterSettings:
    """The settings of ``scontrol show config`` that decide how a run behaves."""

    name: str = ""
    max_array_size: int | None = None
    """One more than the largest index of an array."""
    max_job_count: int | None = None
    """The maximum number of jobs and array tasks of all users."""
    kill_wait_s: int | None = None
    """Seconds between SIGTERM and SIGKILL."""
    requeues: bool | None = None
    """JobRequeue: whether jobs that do not ask for it are queued again."""
    preempt_type: str = ""
    """``preempt/none``, ``preempt/partition_prio`` or ``preempt/qos``."""
    preempt_modes: frozenset[str] = frozenset()
    """PreemptMode, in capitals: OFF, REQUEUE, CANCEL, SUSPEND, GANG."""
    exempt_s: int = 0
    """PreemptExemptTime, seconds that a job runs before it may be preempted."""
    sends_user_signal: bool = False
    """Whether a preempted job gets the signal that it asked for with --signal (preempt_send_user_signal)."""
    accounting: str = ""
    """AccountingStorageType."""
    enforced: frozenset[str] = frozenset()
    """AccountingStorageEnforce: associations, limits, qos, ..."""
    propagates: bool = True
    """Whether jobs get the limits (ulimit) of the shell that submits them (PropagateResourceLimits)."""
    select_type: str = ""
    """``select/linear`` allocates whole nodes."""
    allocates_memory: bool | None = None
    """Whether memory is allocated to jobs (SelectTypeParameters)."""

    @property
    def has_accounting(self) -> bool:
        """Whether a database holds associations and QOS."""
        return self.accounting == "accounting_storage/slurmdbd"


@dataclass(frozen=True)
class NodeKind:
    """Nodes of one partition that are alike."""

    count: int
    gpus: Mapping[str, int] = field(default_factory=dict)
    """Whole GPUs of a node by their type; the type is empty text where the GRES has none."""
    cpus: int = 0
    memory_mib: int = 0
    slices: tuple[str, ...] = ()
    """The types of parts of GPUs (MIG) that it has."""


@dataclass(frozen=True)
class PartitionFacts:
    """One partition."""

    name: str
    state: str = "UP"
    is_default: bool = False
    max_minutes: int | None = None
    """The longest time limit; None for none."""
    allow_groups: frozenset[str] = ALL
    allow_accounts: frozenset[str] = ALL
    deny_accounts: frozenset[str] = frozenset()
    allow_qos: frozenset[str] = ALL
    deny_qos: frozenset[str] = frozenset()
    root_only: bool = False
    preempt_mode: str = ""
    """The partition's PreemptMode, in capitals; empty text where it has none of its own."""
    grace_s: int = 0
    priority_tier: int = 1
    """Partitions of a higher tier may preempt its jobs (preempt/partition_prio)."""
    qos: str | None = None
    """The partition's own QOS, whose limits apply to its jobs."""
    nodes: tuple[NodeKind, ...] = ()

    @property
    def gpu_types(self) -> list[str]:
        """The types of its GPUs; empty text for GPUs without a type."""
        return sorted({kind for node in self.nodes for kind in node.gpus})

    @property
    def slice_types(self) -> list[str]:
        """The types of parts of GPUs (MIG) that it has."""
        return sorted({kind for node in self.nodes for kind in node.slices})

    @property
    def gpu_nodes(self) -> int:
        """The number of its nodes that have GPUs."""
        return sum(node.count for node in self.nodes if node.gpus)


@dataclass(frozen=True)
class Association:
    """An account that the user may charge."""

    account: str
    partition: str | None = None
    """The only partition it holds for; None for all."""
    qos: tuple[str, ...] = ()
    default_qos: str | None = None
    max_submit_jobs: int | None = None
    max_minutes: int | None = None


@dataclass(frozen=True)
class Qos:
    """One quality of service."""

    name: str
    max_minutes: int | None = None
    max_submit_jobs: int | None = None
    """Of one user."""
    grace_s: int = 0
    preempt_mode: str = ""
    """In capitals; empty text where the cluster's PreemptMode applies."""
    preempts: tuple[str, ...] = ()
    """The QOS whose jobs it may preempt."""


@dataclass(frozen=True)
class User:
    """The user who runs the command."""

    name: str
    groups: frozenset[str] = frozenset()

    @classmethod
    def current(cls) -> User:
        """The user of this process. A user or group without a name is known by its number."""
        return cls(_user_name(os.geteuid()), frozenset(map(_group_name, {os.getegid(), *os.getgroups()})))


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


@dataclass(frozen=True)
class Survey:
    """All answers. None in place of an answer means that it is not known, and ``problems`` says why."""

    user: User
    version: str | None = None
    settings: ClusterSettings | None = None
    partitions: Mapping[str, PartitionFacts] | None = None
    associations: tuple[Association, ...] | None = None
    default_account: str | None = None
    qos: Mapping[str, Qos] | None = None
    problems: Mapping[str, str] = field(default_factory=dict)
    """By the command as it is typed: why it gave no answer."""

    @property
    def cluster_name(self) -> str:
        """The name that the cluster has in its database; empty text where it is not known."""
        return "" if self.settings is None else self.settings.name

    @property
    def version_numbers(self) -> tuple[int, ...] | None:
        """The numbers of the version; None where it is not known."""
        found = re.search(r"(\d+)\.(\d+)", self.version or "")
        return None if found is None else (int(found[1]), int(found[2]))

    @property
    def limits(self) -> ClusterLimits:
        """The limits that a plan is compared with."""
        partitions = {p.name: Partition(p.max_minutes, p.state, p.is_default) for p in (self.partitions or {}).values()}
        settings = self.settings or ClusterSettings()
        return ClusterLimits(settings.max_array_size, settings.max_job_count, partitions)

    def why_not(self, command: Sequence[str]) -> str:
        """Why a command gave no answer, in a sentence; empty text if it gave one."""
        return self.problems.get(shlex.join(command), "")

    def partition(self, name: str | None) -> PartitionFacts | None:
        """The partition of this name, or the default one for None; None where it is not known."""
        known = self.partitions or {}
        if name is not None:
            return known.get(name)
        return next((partition for partition in known.values() if partition.is_default), None)

    def associations_of(self, account: str | None) -> list[Association]:
        """The user's associations with an account, or with the default account for None."""
        wanted = account or self.default_account
        return [one for one in self.associations or () if one.account == wanted]

    def qos_of(self, account: str | None, qos: str | None) -> Qos | None:
        """The QOS of a job with this account and ``--qos``; None where it is not known."""
        defaults = [one.default_qos or _only(one.qos) for one in self.associations_of(account)]
        name = qos or next(filter(None, defaults), None) or ("normal" if self.associations_of(account) else None)
        return (self.qos or {}).get(name or "")


def _only(names: tuple[str, ...]) -> str | None:
    return names[0] if len(names) == 1 else None
