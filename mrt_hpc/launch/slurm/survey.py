"""Asks a Slurm cluster about itself, once, and keeps the answers as data: its settings, its partitions, the user's
associations and the QOS. A command that is missing, or that refuses, leaves its part empty; :attr:`Survey.problems`
then says why.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import shlex
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.launch.slurm.cluster_limits import ClusterLimits, Partition, minutes_of
from mrt_hpc.launch.slurm.commands import run_slurm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ANSWER_S = 20.0
"""The seconds that each question may take: a login node under load answers in seconds."""
LONGEST_PROBLEM = 100
"""Characters of Slurm's own words that are kept where a command gives no answer."""
OLDEST_VERSION = (20, 11)
"""The oldest version of Slurm that the package supports."""
ALL = frozenset({"ALL"})
"""What Slurm writes in place of a list of all accounts, groups or QOS."""
NO_VALUES = ("", "N/A", "(null)", "NONE", "None")

VERSION = ("sinfo", "--version")
CONFIG = ("scontrol", "show", "config")
PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")
NODES = ("sinfo", "--noheader", "--all", "--exact", "--format=%R|%G|%D|%c|%m")
QOS = (
    "sacctmgr", "--noheader", "--parsable2", "show", "qos",
    "format=Name,MaxWall,MaxSubmitPU,GraceTime,PreemptMode,Preempt",
)  # fmt: skip
_SETTING = re.compile(r"^(\w+)\s*= (.*)$", re.MULTILINE)
_PAIR = re.compile(r"([\w/]+)=(\S*)")
_GRES = re.compile(r"gpu(?::(?P<type>[A-Za-z][^:(,]*))?(?::(?P<count>\d+))?(?:\(|,|$)")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)")


def associations_command(user: str) -> tuple[str, ...]:
    """The command that lists the accounts of a user, with their limits."""
    fields = "format=Account,Partition,QOS,DefaultQOS,MaxSubmitJobs,MaxWall"
    return ("sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user}", fields)


def default_account_command(user: str) -> tuple[str, ...]:
    """The command that prints the default account of a user."""
    return ("sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=DefaultAccount")


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
    """GPUs of a node by their type; the type is empty text where the GRES has none."""
    cpus: int = 0
    memory_mib: int = 0


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


Ask = Callable[[tuple[str, ...]], str]
"""Runs one command of Slurm, and returns what it printed."""


def ask(command: tuple[str, ...]) -> str:
    """Run one command of Slurm.

    Raises:
        UserError: it is missing, refuses, or does not answer in time.
    """
    return run_slurm(command, ANSWER_S)


def survey(user: User | None = None, ask: Ask = ask) -> Survey:
    """Ask the cluster that Slurm's commands speak to.

    Args:
        user: whose associations are asked for; None for the user of this process.
        ask: runs one command and returns what it printed.
    """
    user = user or User.current()
    answers = _Answers(ask)
    version, config = answers.of(VERSION), answers.of(CONFIG)
    listing, nodes = answers.of(PARTITIONS), answers.of(NODES)
    settings = None if config is None else parse_settings(config)
    if settings is not None and not settings.has_accounting:
        reason = f"this cluster has no accounting (AccountingStorageType={settings.accounting})"
        commands = (associations_command(user.name), default_account_command(user.name), QOS)
        missing = {shlex.join(command): reason for command in commands}
        return Survey(user, version, settings, _partitions(listing, nodes), problems={**answers.problems, **missing})
    associations = answers.of(associations_command(user.name))
    default, qos = answers.of(default_account_command(user.name)), answers.of(QOS)
    return Survey(
        user,
        version,
        settings,
        _partitions(listing, nodes),
        None if associations is None else tuple(parse_associations(associations)),
        _value((default or "").strip()),
        None if qos is None else {one.name: one for one in parse_qos(qos)},
        answers.problems,
    )


class _Answers:
    """Asks commands, and keeps why one gave no answer."""

    def __init__(self, ask: Ask) -> None:
        self._ask, self.problems = ask, dict[str, str]()

    def of(self, command: tuple[str, ...]) -> str | None:
        try:
            return self._ask(command).strip()
        except UserError as error:
            said = textwrap.shorten(str(error.value or ""), LONGEST_PROBLEM, placeholder=" ...")
            self.problems[shlex.join(command)] = f"{error.what}: {said}" if said else error.what
            return None


def parse_settings(text: str) -> ClusterSettings:
    """The settings, from ``scontrol show config``."""
    found = {name: value.strip() for name, value in _SETTING.findall(text)}
    parameters = found.get("SelectTypeParameters")
    return ClusterSettings(
        name=_value(found.get("ClusterName", "")) or "",
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


def _partitions(listing: str | None, nodes: str | None) -> dict[str, PartitionFacts] | None:
    """The partitions with their nodes, from the two texts; None without the first."""
    if listing is None:
        return None
    kinds = parse_nodes(nodes or "")
    found = (parse_partition(dict(_PAIR.findall(line)), kinds) for line in listing.splitlines() if "Partition" in line)
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
        preempt_mode=(_value(fields.get("PreemptMode", "")) or "").upper(),
        grace_s=_whole(fields.get("GraceTime", "")) or 0,
        priority_tier=_whole(fields.get("PriorityTier", "")) or 1,
        qos=_value(fields.get("QoS", "")),
        nodes=tuple(kinds.get(name, ())),
    )


def parse_nodes(text: str) -> dict[str, list[NodeKind]]:
    """The kinds of nodes by partition, from lines as ``gpu|gpu:a100:4(S:0-1)|8|64|512000``."""
    found: dict[str, list[NodeKind]] = {}
    for line in filter(None, text.splitlines()):
        partition, gres, count, cpus, memory = line.strip().rsplit("|", 4)
        kind = NodeKind(int(count), dict(_gpus(gres)), _whole(cpus.rstrip("+")) or 0, _whole(memory.rstrip("+")) or 0)
        found.setdefault(partition.rstrip("*"), []).append(kind)
    return found


def _gpus(gres: str) -> Iterator[tuple[str, int]]:
    """The GPUs of a node by type, as in ``gpu:a100:4(S:0-1),gpu:2,nvme:1``; other kinds of GRES are left out."""
    for one in re.split(r",(?![^(]*\))", gres):
        if match := _GRES.match(one):
            yield match["type"] or "", int(match["count"] or 1)


def parse_associations(text: str) -> Iterator[Association]:
    """The associations, from the lines of :func:`associations_command`."""
    for line in filter(None, text.splitlines()):
        account, partition, qos, default, submit, wall = line.split("|")
        names = tuple(filter(None, qos.split(",")))
        yield Association(account, _value(partition), names, _value(default), _whole(submit), minutes_of(wall))


def parse_qos(text: str) -> Iterator[Qos]:
    """Every QOS, from the lines of :data:`QOS`."""
    for line in filter(None, text.splitlines()):
        name, wall, submit, grace, mode, preempts = line.split("|")
        own_mode = "" if mode.lower() in ("", "cluster") else mode.upper()
        names = tuple(filter(None, preempts.split(",")))
        yield Qos(name, minutes_of(wall), _whole(submit), seconds_of(grace), own_mode, names)


def seconds_of(text: str) -> int:
    """Slurm's ``days-hours:minutes:seconds`` in seconds; 0 for anything else."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _whole(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _value(text: str) -> str | None:
    return None if text.strip() in NO_VALUES else text.strip()


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split(",")) - set(NO_VALUES)


def refusals(partition: PartitionFacts, user: User, accounts: Iterable[str], qos: str | None) -> list[str]:
    """Return why a partition admits no job of a user, a sentence each; none if it admits them.

    Args:
        partition: the partition.
        user: with the groups that the user is a member of.
        accounts: the accounts that the job may be charged to, of which one suffices; none if they are not known.
        qos: the QOS of the job; None if it is not known.
    """
    wanted, found = list(accounts), []
    if partition.root_only:
        found.append("RootOnly=YES: only root may submit to it")
    if partition.allow_groups != ALL and not partition.allow_groups & user.groups:
        found.append(f"AllowGroups={_told(partition.allow_groups)}: you are in none of these groups")
    if wanted and partition.allow_accounts != ALL and not partition.allow_accounts & set(wanted):
        found.append(f"AllowAccounts={_told(partition.allow_accounts)}: not {', '.join(wanted)}")
    if wanted and partition.allow_accounts == ALL and set(wanted) <= partition.deny_accounts:
        found.append(f"DenyAccounts={_told(partition.deny_accounts)}")
    if qos is not None and partition.allow_qos != ALL and qos not in partition.allow_qos:
        found.append(f"AllowQos={_told(partition.allow_qos)}: not {qos}")
    if qos is not None and partition.allow_qos == ALL and qos in partition.deny_qos:
        found.append(f"DenyQos={_told(partition.deny_qos)}")
    return found


def _told(names: Iterable[str]) -> str:
    return ",".join(sorted(names))


@dataclass(frozen=True)
class Preemption:
    """What a preemption does to a job of one partition and QOS."""

    mode: str
    """OFF if its jobs are not preempted, else REQUEUE, CANCEL or SUSPEND."""
    notice_s: int
    """Seconds from SIGTERM to SIGKILL: GraceTime and KillWait together."""
    source: str
    """The settings that say so, in Slurm's words."""


def preemption(survey: Survey, partition: PartitionFacts, qos: Qos | None) -> Preemption | None:
    """Return what a preemption does to jobs of a partition and a QOS; None where the settings are not known."""
    settings = survey.settings
    if settings is None:
        return None
    if settings.preempt_type in ("", "preempt/none"):
        return Preemption("OFF", 0, f"PreemptType={settings.preempt_type or 'not set'}")
    if settings.preempt_type == "preempt/qos":
        mode, grace_s, source = _of_qos(survey, qos)
    else:
        mode, grace_s, source = _of_partition(survey, partition)
    mode = mode or next(iter(settings.preempt_modes - {"GANG"}), "OFF")
    told = f"{settings.preempt_type}, {source}: PreemptMode={mode}"
    if mode == "OFF":
        return Preemption("OFF", 0, told)
    wait_s = settings.kill_wait_s or 0
    return Preemption(mode, grace_s + wait_s, f"{told}, GraceTime={grace_s} s, KillWait={wait_s} s")


def _of_partition(survey: Survey, partition: PartitionFacts) -> tuple[str, int, str]:
    """Mode, grace and source where the partition decides: jobs of the highest tier are not preempted."""
    tiers = [other.priority_tier for other in (survey.partitions or {}).values()]
    if partition.priority_tier >= max(tiers, default=0):
        return "OFF", 0, f"no partition has a higher PriorityTier than {partition.name}"
    return partition.preempt_mode, partition.grace_s, f"partition {partition.name}"


def _of_qos(survey: Survey, qos: Qos | None) -> tuple[str, int, str]:
    """Mode, grace and source where the QOS decides: a QOS that no other preempts is not preempted."""
    if qos is None:
        return "", 0, "the QOS is not known"
    preempting = [other.name for other in (survey.qos or {}).values() if qos.name in other.preempts]
    if not preempting:
        return "OFF", 0, f"no QOS preempts QOS {qos.name}"
    return qos.preempt_mode, qos.grace_s, f"QOS {qos.name}, which {', '.join(preempting)} preempt(s)"
