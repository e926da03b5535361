"""Asks a Slurm cluster about itself and reads the answers: settings, partitions and nodes, the accounts of a user, and
the QOS. A submission asks for limits only; ``mrt-hpc init`` and ``mrt-hpc doctor`` ask for everything. A command that
gives no answer leaves its part of a :class:`Survey` empty, and ``problems`` says why.
"""

import grp
import os
import pwd
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from mrt_hpc.attempt.gpus import is_slice
from mrt_hpc.backends.slurm import slurm_output
from mrt_hpc.backends.slurm.commands import run_slurm
from mrt_hpc.backends.slurm.slurm_output import minutes_of, seconds_of
from mrt_hpc.errors import UserError

ANSWER_S = 20.0
"""The limit of each question: a login node under load answers in seconds."""
LONGEST_PROBLEM = 100
VERSION = ("sinfo", "--version")
CONFIG = ("scontrol", "show", "config")
PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")
ARCHITECTURES = ("scontrol", "--oneliner", "show", "node")
NODES = ("sinfo", "--noheader", "--all", "--exact", "--format=%R|%G|%D|%c|%m")
QOS = (
    "sacctmgr", "--noheader", "--parsable2", "show", "qos",
    "format=Name,MaxWall,MaxSubmitPU,GraceTime,PreemptMode,Preempt,MaxJobsPU,MaxTRESPU",
)  # fmt: skip
NO_VALUES = ("", "N/A", "(null)", "NONE", "None")
_NODES = re.compile(r"([^|\s]+)\|(.*)\|(\d+)\|(\d+)\+?\|(\d+)\+?")
_ASSOCIATION = re.compile(r"([^|\s]+)\|([^|\s]*)\|([^|\s]*)\|([^|\s]*)\|(\d*)\|([\d:-]*)")
_QOS = re.compile(r"([^|\s]+)\|([\d:-]*)\|(\d*)\|([\d:-]*)\|([^|\s]*)\|([^|\s]*)\|(\d*)\|([^|\s]*)")
ALL = frozenset({"ALL"})
"""Slurm writes this in place of a list of all accounts, groups or QOS."""


@dataclass(frozen=True)
class ClusterSettings:
    """The settings of ``scontrol show config`` that decide how a run behaves."""

    name: str = ""
    max_array_size: int | None = None
    """One more than an array's largest index (MaxArraySize), or its most tasks (max_array_tasks) where that is less."""
    max_job_count: int | None = None
    """Jobs and array tasks of all users."""
    kill_wait_s: int | None = None
    """Seconds between SIGTERM and SIGKILL."""
    requeues: bool | None = None
    """JobRequeue, for jobs that do not ask for it."""
    preempt_type: str = ""
    """``preempt/none``, ``preempt/partition_prio`` or ``preempt/qos``."""
    preempt_modes: frozenset[str] = frozenset()
    """PreemptMode, in capitals: OFF, REQUEUE, CANCEL, SUSPEND, GANG."""
    exempt_s: int = 0
    """PreemptExemptTime: a job runs so long before it may be preempted."""
    sends_user_signal: bool = False
    """Whether a preempted job gets its --signal (preempt_send_user_signal)."""
    accounting: str = ""
    """AccountingStorageType."""
    enforced: frozenset[str] = frozenset()
    """AccountingStorageEnforce: associations, limits, qos, ..."""
    propagates: bool = True
    """PropagateResourceLimits: whether jobs get the submitting shell's ulimits."""
    select_type: str = ""
    """``select/linear`` allocates whole nodes."""
    allocates_memory: bool | None = None
    """Whether jobs are allocated memory (SelectTypeParameters)."""

    @property
    def has_accounting(self) -> bool:
        """Whether a database holds associations and QOS."""
        return self.accounting == "accounting_storage/slurmdbd"


@dataclass(frozen=True)
class NodeKind:
    """Nodes of one partition that are alike."""

    count: int
    gpus: Mapping[str, int] = field(default_factory=dict)
    """Whole GPUs of a node by type, empty where the GRES has none."""
    cpus: int = 0
    memory_mib: int = 0
    slices: tuple[str, ...] = ()
    """Types of parts of GPUs (MIG)."""


@dataclass(frozen=True)
class PartitionFacts:
    name: str
    state: str = "UP"
    is_default: bool = False
    max_minutes: int | None = None
    """None for no limit."""
    allow_groups: frozenset[str] = ALL
    allow_accounts: frozenset[str] = ALL
    deny_accounts: frozenset[str] = frozenset()
    allow_qos: frozenset[str] = ALL
    deny_qos: frozenset[str] = frozenset()
    root_only: bool = False
    preempt_mode: str = ""
    """In capitals; empty for the cluster's."""
    grace_s: int = 0
    priority_tier: int = 1
    """Partitions of a higher tier may preempt its jobs (preempt/partition_prio)."""
    qos: str | None = None
    """The partition's own, whose limits apply to its jobs."""
    architectures: frozenset[str] = frozenset()
    """As ``x86_64``; empty where not known."""
    is_exclusive: bool = False
    """Whether its jobs get whole nodes (OverSubscribe=EXCLUSIVE)."""
    nodes: tuple[NodeKind, ...] = ()

    @property
    def gpu_types(self) -> list[str]:
        """Empty text for GPUs without a type."""
        return sorted({kind for node in self.nodes for kind in node.gpus})

    @property
    def slice_types(self) -> list[str]:
        """Types of parts of GPUs (MIG)."""
        return sorted({kind for node in self.nodes for kind in node.slices})

    @property
    def gpu_counts(self) -> list[int]:
        """Numbers of whole GPUs of its nodes, the largest first."""
        return sorted({sum(node.gpus.values()) for node in self.nodes if node.gpus}, reverse=True)

    @property
    def gpu_nodes(self) -> int:
        return sum(node.count for node in self.nodes if node.gpus)


@dataclass(frozen=True)
class Association:
    account: str
    partition: str | None = None
    """The only partition it holds for; None for all."""
    qos: tuple[str, ...] = ()
    default_qos: str | None = None
    max_submit_jobs: int | None = None
    max_minutes: int | None = None


@dataclass(frozen=True)
class Qos:
    name: str
    max_minutes: int | None = None
    max_submit_jobs: int | None = None
    """The limit of one user."""
    grace_s: int = 0
    preempt_mode: str = ""
    """In capitals; empty for the cluster's."""
    preempts: tuple[str, ...] = ()
    """The QOS whose jobs it may preempt."""
    most: Mapping[str, int] = field(default_factory=dict)
    """Limits of one user's running jobs together: ``jobs``, ``gres/gpu``, ``cpu``, ``node``."""


@dataclass(frozen=True)
class User:
    name: str
    groups: frozenset[str] = frozenset()

    @classmethod
    def current(cls) -> Self:
        """A user or group without a name is known by its number."""
        groups = {os.getegid(), *os.getgroups()}
        user = _name(lambda number: pwd.getpwuid(number).pw_name, os.geteuid())
        return cls(user, frozenset(_name(lambda number: grp.getgrgid(number).gr_name, group) for group in groups))


def _name(named: Callable[[int], str], number: int) -> str:
    try:
        return named(number)
    except KeyError:
        return str(number)


@dataclass(frozen=True)
class Survey:
    """All answers; None where one is not known."""

    user: User
    version: str | None = None
    settings: ClusterSettings | None = None
    partitions: Mapping[str, PartitionFacts] | None = None
    associations: tuple[Association, ...] | None = None
    default_account: str | None = None
    qos: Mapping[str, Qos] | None = None
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why a command gave no answer, by the command as it is typed."""

    @property
    def cluster_name(self) -> str:
        return "" if self.settings is None else self.settings.name

    @property
    def version_numbers(self) -> tuple[int, ...] | None:
        match = re.search(r"(\d+)\.(\d+)", self.version or "")
        return None if match is None else (int(match[1]), int(match[2]))

    def why_whole_nodes(self, partition: PartitionFacts) -> str:
        """The setting by which jobs of a partition get whole nodes, if they do."""
        if partition.is_exclusive:
            return f"scontrol show partition {partition.name}: OverSubscribe=EXCLUSIVE"
        is_linear = self.settings is not None and self.settings.select_type == "select/linear"
        return "scontrol show config: select/linear allocates whole nodes" if is_linear else ""

    def why_not(self, command: Sequence[str]) -> str:
        """Empty text if it gave an answer."""
        return self.problems.get(shlex.join(command), "")

    def partition(self, name: str | None) -> PartitionFacts | None:
        """None means the default partition."""
        if name is not None:
            return (self.partitions or {}).get(name)
        return next((partition for partition in (self.partitions or {}).values() if partition.is_default), None)

    def associations_of(self, account: str | None) -> list[Association]:
        """None means the default account."""
        wanted = account or self.default_account
        return [association for association in self.associations or () if association.account == wanted]

    def qos_of(self, account: str | None, qos: str | None) -> Qos | None:
        """The QOS of a job with this account and ``--qos``."""
        associations = self.associations_of(account)
        defaults = (one.default_qos or (one.qos[0] if len(one.qos) == 1 else None) for one in associations)
        name = qos or next(filter(None, defaults), "normal" if associations else "")
        return (self.qos or {}).get(name)


def associations_command(user: str, cluster: str) -> tuple[str, ...]:
    """The command that lists a user's accounts with their limits; a database may serve several clusters. An unknown
    cluster is the empty text.
    """
    fields = "format=Account,Partition,QOS,DefaultQOS,MaxSubmitJobs,MaxWall"
    here = (f"cluster={cluster}",) if cluster else ()
    return ("sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user}", *here, fields)


def default_account_command(user: str) -> tuple[str, ...]:
    return ("sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=User,DefaultAccount")


Ask = Callable[[tuple[str, ...]], str]
"""Runs a Slurm command, and returns its output."""


def ask(command: tuple[str, ...]) -> str:
    """Refuses a command that is missing or does not answer in time."""
    return run_slurm(command, ANSWER_S)


def survey(user: User | None = None, ask: Ask = ask) -> Survey:
    """Ask the cluster that Slurm's commands speak to, for this user (None: of this process)."""
    user = user or User.current()
    problems: dict[str, str] = {}

    def answer(command: tuple[str, ...]) -> str | None:
        try:
            return ask(command).strip()
        except UserError as error:
            said = textwrap.shorten(str(error.value or ""), LONGEST_PROBLEM, placeholder=" ...")
            problems[shlex.join(command)] = f"{error.what}: {said}" if said else error.what
            return None

    version, config = slurm_output.version(answer(VERSION) or ""), answer(CONFIG)
    listing, nodes, machines = answer(PARTITIONS), answer(NODES) or "", answer(ARCHITECTURES) or ""
    partitions = None if listing is None else parse_partitions(listing, nodes, machines)
    settings = None if config is None else parse_settings(config)
    if settings is not None and not settings.accounting:
        problems[shlex.join(CONFIG)], settings = "it printed no AccountingStorageType", None
    accounts = associations_command(user.name, settings.name if settings else "")
    default = default_account_command(user.name)
    if settings is not None and not settings.has_accounting:
        reason = f"this cluster has no accounting (AccountingStorageType={settings.accounting})"
        problems.update({shlex.join(command): reason for command in (accounts, default, QOS)})
        return Survey(user, version, settings, partitions, problems=problems)
    associations, account, qos = answer(accounts), answer(default), answer(QOS)
    return Survey(
        user,
        version,
        settings,
        partitions,
        None if associations is None else tuple(parse_associations(associations)),
        default_account(account or "", user.name),
        None if qos is None else {level.name: level for level in parse_qos(qos)},
        problems,
    )


def parse_settings(text: str) -> ClusterSettings:
    settings = slurm_output.settings(text)
    most_tasks = re.findall(r"\bmax_array_tasks=(\d+)", settings.get("SchedulerParameters", ""))[:1]
    sizes, parameters = (settings.get("MaxArraySize", ""), *most_tasks), settings.get("SelectTypeParameters")
    return ClusterSettings(
        name=value_of(settings.get("ClusterName", "")) or "",
        max_array_size=min((number for size in sizes if (number := _whole(size)) is not None), default=None),
        max_job_count=_whole(settings.get("MaxJobCount", "")),
        kill_wait_s=_whole(settings.get("KillWait", "").removesuffix(" sec")),
        requeues=None if "JobRequeue" not in settings else settings["JobRequeue"] == "1",
        preempt_type=settings.get("PreemptType", ""),
        preempt_modes=frozenset(settings.get("PreemptMode", "OFF").upper().split(",")),
        exempt_s=seconds_of(settings.get("PreemptExemptTime", "")),
        sends_user_signal="preempt_send_user_signal" in settings.get("SlurmctldParameters", ""),
        accounting=settings.get("AccountingStorageType", ""),
        enforced=frozenset(settings.get("AccountingStorageEnforce", "").split(",")) - {"none", ""},
        propagates=settings.get("PropagateResourceLimits", "ALL").upper() != "NONE",
        select_type=settings.get("SelectType", ""),
        allocates_memory=None if parameters is None else "MEMORY" in parameters.upper(),
    )


def parse_partitions(listing: str, nodes: str = "", architectures: str = "") -> dict[str, PartitionFacts]:
    """Partitions by name, from the lines of :data:`PARTITIONS`, :data:`NODES` and :data:`ARCHITECTURES`."""
    kinds, machines = parse_nodes(nodes), parse_architectures(architectures)
    partitions = (parse_partition(fields, kinds) for fields in slurm_output.partitions(listing))
    return {one.name: replace(one, architectures=frozenset(machines.get(one.name, ()))) for one in partitions}


def parse_architectures(text: str) -> dict[str, set[str]]:
    """Architectures by partition, from lines as ``NodeName=n1 Arch=x86_64 ... Partitions=gpu``."""
    machines: dict[str, set[str]] = {}
    for line in text.splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split())
        for partition in fields.get("Partitions", "").split(",") if "Arch" in fields else ():
            machines.setdefault(partition, set()).add(fields["Arch"])
    return machines


def parse_partition(fields: Mapping[str, str], kinds: Mapping[str, Sequence[NodeKind]]) -> PartitionFacts:
    """One partition, from a line of ``scontrol --oneliner show partition``."""
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
        is_exclusive=fields.get("OverSubscribe") == "EXCLUSIVE",
        nodes=tuple(kinds.get(name, ())),
    )


def parse_nodes(text: str) -> dict[str, list[NodeKind]]:
    """Nodes by partition, from lines as ``gpu|gpu:a100:4(S:0-1)|8|64|512000``."""
    kinds_of: dict[str, list[NodeKind]] = {}
    for line in slurm_output.matching_lines(text, _NODES, "sinfo"):
        partition, gres, count, cpus, memory = line.groups()
        gpus = gpus_of_node(gres)
        whole = {name: number for name, number in gpus.items() if not is_slice(name)}
        kind = NodeKind(int(count), whole, int(cpus), int(memory), tuple(sorted(gpus.keys() - whole.keys())))
        kinds_of.setdefault(partition.rstrip("*"), []).append(kind)
    return kinds_of


def gpus_of_node(gres: str) -> dict[str, int]:
    """A node's GPUs by type, from ``gpu:a100:4(S:0-1),gpu:2,nvme:1``. The last word is the count, where it is one; all
    else between the colons is the type, which may begin with a digit.
    """
    counts: dict[str, int] = {}
    for gpu in re.split(r",(?![^(]*\))", gres):
        name, *words = gpu.partition("(")[0].strip().split(":")
        if name == "gpu":
            kind = [word for word in words if word != "no_consume"]
            count = slurm_output.count_of(kind[-1]) if kind else None
            key = ":".join(kind if count is None else kind[:-1])
            counts[key] = counts.get(key, 0) + (1 if count is None else count)
    return {key: count for key, count in counts.items() if count}


def parse_associations(text: str) -> Iterator[Association]:
    """From the lines of :func:`associations_command`."""
    for line in slurm_output.matching_lines(text, _ASSOCIATION, "sacctmgr"):
        account, partition, qos, default, submit, wall = line.groups()
        names = tuple(filter(None, qos.split(",")))
        yield Association(account, value_of(partition), names, value_of(default), _whole(submit), minutes_of(wall))


def parse_qos(text: str) -> Iterator[Qos]:
    for line in slurm_output.matching_lines(text, _QOS, "sacctmgr"):
        name, wall, submit, grace, mode, preempts, jobs, tres = line.groups()
        own_mode = "" if mode.lower() in ("", "cluster") else mode.upper()
        names = tuple(filter(None, preempts.split(",")))
        stated = [("jobs", jobs), *(one.partition("=")[::2] for one in tres.split(","))]
        most = {what: number for what, text in stated if (number := _whole(text)) is not None}
        yield Qos(name, minutes_of(wall), _whole(submit), seconds_of(grace), own_mode, names, most)


def default_account(text: str, user: str) -> str | None:
    line = re.compile(rf"{re.escape(user)}\|([^|\s]*)")
    return next((value_of(match[1]) for match in slurm_output.matching_lines(text, line, "sacctmgr")), None)


def _whole(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def value_of(text: str) -> str | None:
    """None for what Slurm writes where there is no value."""
    return None if text.strip() in NO_VALUES else text.strip()


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split(",")) - set(NO_VALUES)
