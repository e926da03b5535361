"""Proposes a site profile for a cluster: each value with the reason for it, and the questions that the cluster leaves
open.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from io import StringIO
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from mrt_hpc.launch.slurm.site import GpuRequest
from mrt_hpc.launch.slurm.survey import (
    CONFIG,
    NODES,
    PARTITIONS,
    QOS,
    associations_command,
    preemption,
    refusals,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mrt_hpc.launch.login_node import LoginNode
    from mrt_hpc.launch.slurm.survey import PartitionFacts, Qos, Survey

FOR_TESTS = re.compile(r"debug|test|interactive|short|devel", re.IGNORECASE)
"""Names of partitions that are meant for short trials."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}


@dataclass(frozen=True)
class Wishes:
    """What the user has said; None for what is left to the proposal."""

    name: str
    account: str | None = None
    partition: str | None = None
    gpu_partition: str | None = None
    qos: str | None = None
    gpu_type: str | None = None
    python: str | None = None
    image: str | None = None
    scratch: str | None = None
    setup: tuple[str, ...] = ()

    def with_answer(self, question: Question, answer: str) -> Wishes:
        """The wishes with the answer to a question."""
        changes: dict[str, Any] = {question.wish: answer}
        return replace(self, **changes)


@dataclass(frozen=True)
class Question:
    """What the cluster leaves open."""

    wish: str
    """The field of :class:`Wishes` that the answer fills; the option of ``mrt-hpc init`` has the same name."""
    text: str
    choices: tuple[str, ...] = ()
    """The possible answers, the proposed one first; none if the answer is free."""

    @property
    def option(self) -> str:
        """The option that answers it."""
        return "--" + self.wish.replace("_", "-")

    @property
    def proposed(self) -> str | None:
        """The answer that is taken if none is given."""
        return self.choices[0] if self.choices else None


@dataclass(frozen=True)
class Entry:
    """One value of the profile."""

    field: str
    """The path of the field, as in ``partitions.gpu``."""
    value: Any
    reason: str
    """Where the value is from; for a value that is left at its default, why."""


def open_questions(survey: Survey, node: LoginNode, wishes: Wishes) -> list[Question]:
    """The questions that the wishes do not answer; an answer to the first may change the others."""
    return [one for one in _questions(survey, node, wishes) if getattr(wishes, one.wish) is None]


def _questions(survey: Survey, node: LoginNode, wishes: Wishes) -> Iterator[Question]:
    """The questions that are open as far as the earlier ones are answered."""
    accounts = accounts_of(survey)
    if len(accounts) > 1:
        yield Question("account", "The account that jobs are charged to", tuple(accounts))
    if survey.partitions is None:
        yield Question("partition", "The partition of jobs without GPUs")
        yield Question("gpu_partition", "The partition of jobs with GPUs")
    for wish, names in (
        ("partition", cpu_partitions(survey, wishes)),
        ("gpu_partition", gpu_partitions(survey, wishes)),
    ):
        if len(names) > 1:
            what = "with" if wish == "gpu_partition" else "without"
            yield Question(wish, f"The partition of jobs {what} GPUs", tuple(names))
    kinds = _gpu_types(survey, wishes)
    if len(kinds) > 1:
        yield Question("gpu_type", "The GPU type that jobs ask for", tuple(kinds))
    if len(options := _qos_choices(survey, wishes)) > 1:
        yield Question("qos", "The QOS of jobs: this account has no default", tuple(options))
    if node.missing_packages and wishes.image is None:
        without = ", ".join(node.missing_packages)
        yield Question(
            "python",
            f"The Python of the compute nodes, as {node.python} has no {without}: `env/setup cuda` of a checkout on "
            "the shared filesystem makes one, .venv/bin/python. For tasks in an image, made by "
            "`mrt-hpc container build cuda IMAGE.sif`, leave it out and add --image IMAGE.sif",
        )


def with_proposals(survey: Survey, node: LoginNode, wishes: Wishes) -> Wishes:
    """The wishes, with the proposed answer to each question that has one."""
    for question in open_questions(survey, node, wishes):
        if question.proposed is not None:
            return with_proposals(survey, node, wishes.with_answer(question, question.proposed))
    return wishes


def accounts_of(survey: Survey) -> list[str]:
    """The user's accounts, the default one first."""
    names = dict.fromkeys(one.account for one in survey.associations or ())
    return sorted(names, key=lambda name: name != survey.default_account)


def _admitted(survey: Survey, wishes: Wishes) -> list[PartitionFacts]:
    """The partitions that start jobs of this user."""
    accounts = [wishes.account] if wishes.account else accounts_of(survey)
    return [
        partition
        for partition in (survey.partitions or {}).values()
        if partition.state == "UP" and not refusals(partition, survey.user, accounts, wishes.qos)
    ]


def cpu_partitions(survey: Survey, wishes: Wishes) -> list[str]:
    """Partitions for jobs without GPUs, the best first: the default one, and those without GPUs and preemption."""

    def rank(partition: PartitionFacts) -> tuple[object, ...]:
        tests = FOR_TESTS.search(partition.name) is not None
        return (not partition.is_default, tests, _is_preempted(survey, partition, wishes), partition.gpu_nodes > 0)

    return [partition.name for partition in sorted(_admitted(survey, wishes), key=rank)]


def gpu_partitions(survey: Survey, wishes: Wishes) -> list[str]:
    """Partitions with GPUs, the best first: not for tests, not preempted, not the default one, with many nodes."""

    def rank(partition: PartitionFacts) -> tuple[object, ...]:
        tests = FOR_TESTS.search(partition.name) is not None
        preempted = _is_preempted(survey, partition, wishes)
        return (tests, preempted, partition.is_default, -partition.gpu_nodes)

    return [partition.name for partition in sorted(_admitted(survey, wishes), key=rank) if partition.gpu_nodes]


def _is_preempted(survey: Survey, partition: PartitionFacts, wishes: Wishes) -> bool:
    found = preemption(survey, partition, survey.qos_of(wishes.account, wishes.qos))
    return found is not None and found.mode != "OFF"


def _gpu_types(survey: Survey, wishes: Wishes) -> list[str]:
    """The types of the GPUs in the chosen partition, of which most nodes have the first."""
    partition = survey.partition(wishes.gpu_partition or next(iter(gpu_partitions(survey, wishes)), ""))
    counts: dict[str, int] = {}
    for node in () if partition is None else partition.nodes:
        for kind in filter(None, node.gpus):
            counts[kind] = counts.get(kind, 0) + node.count
    return sorted(counts, key=lambda kind: -counts[kind])


def _qos_choices(survey: Survey, wishes: Wishes) -> list[str]:
    """The QOS to choose from, where an account has neither a default nor the QOS normal."""
    found = survey.associations_of(wishes.account)
    if any(one.default_qos or "normal" in one.qos or len(one.qos) < 2 for one in found):
        return []
    return list(dict.fromkeys(name for one in found for name in one.qos))


def entries(survey: Survey, node: LoginNode, wishes: Wishes) -> list[Entry]:
    """Every value of the profile, in the order in which it is written.

    Args:
        survey: of the cluster.
        node: the machine that the command is typed on.
        wishes: what the user has said, with the answers to all questions that have any.
    """
    return [
        Entry("type", "slurm", ""),
        Entry("name", wishes.name, "the name for --site"),
        _account(survey, wishes),
        _qos(survey, wishes),
        *_partitions(survey, wishes),
        *_gpus(survey, wishes),
        _memory(survey),
        _array_size(survey),
        _submit_jobs(survey, wishes),
        _time(survey, wishes),
        _notice(survey, wishes),
        _setup(node, wishes),
        Entry("environment", OFFLINE, "compute nodes have no network"),
        _python(node, wishes),
        *_container(node, wishes),
        _scratch(wishes),
    ]


def _account(survey: Survey, wishes: Wishes) -> Entry:
    names = accounts_of(survey)
    if wishes.account is not None:
        others = f"; yours are {', '.join(names)}" if names else ""
        return Entry("account", wishes.account, f"chosen{others}")
    if names:
        return Entry("account", names[0], "sacctmgr show associations: your only account")
    return Entry("account", None, _unknown(survey, associations_command(survey.user.name), "you have no association"))


def _qos(survey: Survey, wishes: Wishes) -> Entry:
    there = ", ".join(dict.fromkeys(name for one in survey.associations_of(wishes.account) for name in one.qos))
    if wishes.qos is not None:
        return Entry("qos", wishes.qos, f"chosen; your account has {there}" if there else "chosen")
    default = survey.qos_of(wishes.account, None)
    if default is not None:
        return Entry("qos", None, f"sacctmgr: jobs get QOS {default.name}; your account has {there or 'no other'}")
    return Entry("qos", None, _unknown(survey, QOS, "the cluster's default"))


def _unknown(survey: Survey, command: Sequence[str], otherwise: str) -> str:
    """Why a value could not be seen, or what holds otherwise."""
    why = survey.why_not(command)
    return f"not seen: {why}" if why else otherwise


def _partitions(survey: Survey, wishes: Wishes) -> Iterator[Entry]:
    chosen = (
        ("partitions.cpu", wishes.partition, cpu_partitions),
        ("partitions.gpu", wishes.gpu_partition, gpu_partitions),
    )
    for field, wish, candidates in chosen:
        names = candidates(survey, wishes)
        name = wish or next(iter(names), None)
        partition = (survey.partitions or {}).get(name or "")
        if partition is not None:
            others = [other for other in names if other != name]
            yield Entry(field, name, _told(partition) + (f"; others: {', '.join(others)}" if others else ""))
        elif name is not None:
            yield Entry(field, name, "chosen; " + _unknown(survey, PARTITIONS, "scontrol shows no such partition"))
        else:
            nothing = "no partition with GPUs admits you" if field == "partitions.gpu" else "no partition admits you"
            yield Entry(field, None, _unknown(survey, PARTITIONS, nothing))


def _told(partition: PartitionFacts) -> str:
    """A partition in words: its nodes, its GPUs and its time limit."""
    count = sum(node.count for node in partition.nodes)
    gpus = sorted(
        {f"gpu:{kind + ':' if kind else ''}{number}" for n in partition.nodes for kind, number in n.gpus.items()}
    )
    limit = "no time limit" if partition.max_minutes is None else f"MaxTime {partition.max_minutes} minutes"
    default = "the default partition, " if partition.is_default else ""
    return f"scontrol show partition: {default}{count} node(s){' with ' + ', '.join(gpus) if gpus else ''}, {limit}"


def _chosen(survey: Survey, wishes: Wishes) -> list[PartitionFacts]:
    """The partitions of the profile that the cluster has."""
    names = (
        wishes.partition or next(iter(cpu_partitions(survey, wishes)), None),
        wishes.gpu_partition or next(iter(gpu_partitions(survey, wishes)), None),
    )
    found = {name: (survey.partitions or {}).get(name) for name in names if name}
    return [partition for partition in found.values() if partition is not None]


def _gpus(survey: Survey, wishes: Wishes) -> Iterator[Entry]:
    kinds = _gpu_types(survey, wishes)
    with_gpus = [one for one in _chosen(survey, wishes) if one.gpu_nodes]
    if with_gpus or survey.partitions is None:
        reason = f"sinfo: nodes of {with_gpus[-1].name} have GRES gpu" if with_gpus else "not seen: the usual way"
        yield Entry("gpu_request", GpuRequest.GRES.value, reason)
    elif survey.settings is not None and survey.settings.select_type == "select/linear":
        yield Entry("gpu_request", GpuRequest.NONE.value, "scontrol show config: select/linear allocates whole nodes")
    else:
        yield Entry("gpu_request", GpuRequest.GRES.value, "the usual way; sinfo shows no GRES gpu in your partitions")
    if wishes.gpu_type is not None:
        yield Entry("gpu_type", wishes.gpu_type, f"chosen; sinfo shows {', '.join(kinds) or 'no type'}")
    elif kinds:
        yield Entry("gpu_type", kinds[0], "sinfo: the only type in that partition")
    else:
        yield Entry("gpu_type", None, _unknown(survey, NODES, "sinfo: the GRES has no type"))


def _memory(survey: Survey) -> Entry:
    settings = survey.settings
    if settings is None or settings.allocates_memory is None:
        return Entry("memory_request", True, _unknown(survey, CONFIG, "the default"))
    if settings.allocates_memory:
        return Entry("memory_request", True, "scontrol show config: SelectTypeParameters allocates memory to jobs")
    return Entry("memory_request", False, "scontrol show config: SelectTypeParameters does not allocate memory")


def _array_size(survey: Survey) -> Entry:
    size = None if survey.settings is None else survey.settings.max_array_size
    if size is None:
        return Entry("max_array_size", 1001, _unknown(survey, CONFIG, "Slurm's default"))
    return Entry("max_array_size", max(1, size), "scontrol show config: MaxArraySize")


def _submit_jobs(survey: Survey, wishes: Wishes) -> Entry:
    limits = submit_limits(survey, _chosen(survey, wishes), wishes.account, wishes.qos)
    if limits:
        most, source = min(limits)
        return Entry("max_submit_jobs", max(1, most), source)
    return Entry("max_submit_jobs", None, _unknown(survey, CONFIG, "no limit is set"))


def submit_limits(
    survey: Survey, partitions: Sequence[PartitionFacts], account: str | None, qos: str | None
) -> list[tuple[int, str]]:
    """The limits on the jobs and array tasks that a user may have queued, each with its source."""
    found = [
        (one.max_submit_jobs, f"sacctmgr show associations: MaxSubmitJobs of account {one.account}")
        for one in survey.associations_of(account)
        if one.max_submit_jobs is not None
    ]
    found += [
        (level.max_submit_jobs, f"sacctmgr show qos: MaxSubmitPU of {level.name}")
        for level in _levels(survey, partitions, account, qos)
        if level.max_submit_jobs is not None
    ]
    if survey.settings is not None and survey.settings.max_job_count is not None:
        found.append((survey.settings.max_job_count, "scontrol show config: MaxJobCount, of all users together"))
    return found


def _time(survey: Survey, wishes: Wishes) -> Entry:
    limits = time_limits(survey, _chosen(survey, wishes), wishes.account, wishes.qos)
    if limits:
        minutes, source = min(limits)
        return Entry("max_time_minutes", minutes, source)
    return Entry("max_time_minutes", None, _unknown(survey, PARTITIONS, "no limit is set"))


def time_limits(
    survey: Survey, partitions: Sequence[PartitionFacts], account: str | None, qos: str | None
) -> list[tuple[int, str]]:
    """The limits on the time limit of a job, minutes, each with its source."""
    found = [
        (one.max_minutes, f"scontrol show partition: MaxTime of {one.name}")
        for one in partitions
        if one.max_minutes is not None
    ]
    found += [
        (level.max_minutes, f"sacctmgr show qos: MaxWall of {level.name}")
        for level in _levels(survey, partitions, account, qos)
        if level.max_minutes is not None
    ]
    walls = [(one.max_minutes, one.account) for one in survey.associations_of(account) if one.max_minutes is not None]
    return [*found, *((minutes, f"sacctmgr show associations: MaxWall of {name}") for minutes, name in walls)]


def _levels(survey: Survey, partitions: Sequence[PartitionFacts], account: str | None, qos: str | None) -> list[Qos]:
    """Every QOS whose limits hold for a job: its own and those of its partitions."""
    of_partitions = [(survey.qos or {}).get(partition.qos or "") for partition in partitions]
    found = [level for level in (survey.qos_of(account, qos), *of_partitions) if level is not None]
    return list({level.name: level for level in found}.values())


def _notice(survey: Survey, wishes: Wishes) -> Entry:
    qos, field = survey.qos_of(wishes.account, wishes.qos), "preemption_notice_s"
    partitions = _chosen(survey, wishes)
    found = [(found, one.name) for one in partitions if (found := preemption(survey, one, qos)) is not None]
    preempted = [(one.notice_s, name, one.source) for one, name in found if one.mode != "OFF"]
    if preempted:
        seconds, _, source = min(preempted)
        return Entry(field, seconds, f"GraceTime + KillWait: {source}")
    if found:
        return Entry(
            field, None, f"jobs of {', '.join(name for _, name in found)} are not preempted: {found[-1][0].source}"
        )
    return Entry(field, None, _unknown(survey, CONFIG, "not known"))


def _setup(node: LoginNode, wishes: Wishes) -> Entry:
    if wishes.setup:
        return Entry("setup", list(wishes.setup), "shell lines before each task")
    if node.python_module is not None and not wishes.python and wishes.image is None:
        line = f"module load {shlex.quote(node.python_module)}"
        return Entry("setup", [line], "shell lines before each task: this Python is from that module")
    modules = f"modules are here ({node.modules})" if node.modules else "no modules were found here"
    return Entry("setup", [], f"shell lines before each task, as in [module load cuda]; {modules}")


def _python(node: LoginNode, wishes: Wishes) -> Entry:
    if wishes.python:
        return Entry("python", wishes.python, "the Python of the compute nodes")
    if wishes.image is not None:
        return Entry("python", None, "not used: tasks run with the Python of the image")
    if node.missing_packages:
        without = ", ".join(node.missing_packages)
        return Entry("python", None, f"name the Python of the compute nodes: {node.python} has no {without}")
    return Entry("python", None, f"the Python that runs mrt-hpc: {node.python}")


def _container(node: LoginNode, wishes: Wishes) -> Iterator[Entry]:
    command = node.container_command
    if wishes.image is not None:
        yield Entry("container.image", wishes.image, "chosen")
        found = "found here" if command else "not found here; the compute nodes need it"
        yield Entry("container.executable", command or "apptainer", found)
        yield Entry("container.unpack", *_unpack(node))
    else:
        found = f"Apptainer is here: {command}" if command else "neither apptainer nor singularity is in PATH here"
        yield Entry("container", None, f"tasks run without a container; {found}")


def _unpack(node: LoginNode) -> tuple[bool, str]:
    """Whether images have to be unpacked, with the reason."""
    if node.kernel_mounts_images:
        return False, "apptainer buildcfg and its configuration: the kernel mounts images"
    if node.kernel_mounts_images is None:
        return (
            True,
            "not seen: who mounts images; with false, doctor --on-node tries whether a signal ends the mount",
        )
    return True, "apptainer buildcfg: the kernel does not mount images, and a signal to a task would end their mount"


def _scratch(wishes: Wishes) -> Entry:
    if wishes.scratch is not None:
        return Entry("scratch", wishes.scratch, "a folder on each node")
    return Entry("scratch", None, "each node's TMPDIR, or /tmp; mrt-hpc doctor --on-node shows its free space")


def profile_text(proposed: Sequence[Entry], head: Sequence[str]) -> str:
    """The profile as YAML, with the reason beside each value.

    Args:
        proposed: all values.
        head: comment lines at the top, without their ``#``.
    """
    tree = CommentedMap()
    for entry in proposed:
        *parents, key = entry.field.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, CommentedMap())
        place[key] = _flow(entry.value)
        if entry.reason:
            place.yaml_add_eol_comment(entry.reason, key, column=0)
    yaml = YAML()
    yaml.width = 10_000  # a value stays on one line with its reason
    yaml.representer.add_representer(type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null"))
    stream = StringIO()
    yaml.dump(tree, stream)
    return "".join(f"# {line}\n" for line in head) + stream.getvalue()


def _flow(value: Any) -> Any:
    """A list or a mapping on one line."""
    if isinstance(value, list):
        whole: Any = CommentedSeq(value)
    elif isinstance(value, dict):
        whole = CommentedMap(value)
    else:
        return value
    whole.fa.set_flow_style()
    return whole
