"""Proposes a site profile for a cluster: each value with the reason for it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from mrt_hpc.launch.slurm.choices import accounts_of, cpu_partitions, gpu_partitions, gpu_types
from mrt_hpc.launch.slurm.preemption import preemption
from mrt_hpc.launch.slurm.profile_text import Entry
from mrt_hpc.launch.slurm.site import GpuRequest
from mrt_hpc.launch.slurm.survey import CONFIG, NODES, PARTITIONS, QOS, associations_command
from mrt_hpc.launch.slurm.user_limits import submit_limits, time_limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mrt_hpc.launch.login_node import LoginNode
    from mrt_hpc.launch.slurm.cluster_facts import PartitionFacts, Survey
    from mrt_hpc.launch.slurm.questions import Wishes

OFFLINE = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}


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
        *parse_partitions(survey, wishes),
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
    asked = associations_command(survey.user.name, survey.cluster_name)
    return Entry("account", None, _unknown(survey, asked, "you have no association"))


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


def parse_partitions(survey: Survey, wishes: Wishes) -> Iterator[Entry]:
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
            what = "no partition with whole GPUs" if field == "partitions.gpu" else "no partition"
            yield Entry(field, None, _unknown(survey, PARTITIONS, f"{what} admits you"))


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
    kinds = gpu_types(survey, wishes)
    slices = sorted({kind for one in _chosen(survey, wishes) for kind in one.slice_types})
    parts = f"sinfo shows parts of GPUs (MIG) only in your partitions: {', '.join(slices)}" if slices else ""
    with_gpus = [one for one in _chosen(survey, wishes) if one.gpu_nodes]
    if with_gpus or survey.partitions is None:
        reason = f"sinfo: nodes of {with_gpus[-1].name} have GRES gpu" if with_gpus else "not seen: the usual way"
        yield Entry("gpu_request", GpuRequest.GRES.value, reason)
    elif survey.settings is not None and survey.settings.select_type == "select/linear":
        yield Entry("gpu_request", GpuRequest.NONE.value, "scontrol show config: select/linear allocates whole nodes")
    else:
        yield Entry(
            "gpu_request", GpuRequest.GRES.value, parts or "the usual way; sinfo shows no GRES gpu in your partitions"
        )
    if wishes.gpu_type is not None:
        yield Entry("gpu_type", wishes.gpu_type, f"chosen; sinfo shows {', '.join(kinds) or 'no type'}")
    elif kinds:
        yield Entry("gpu_type", kinds[0], "sinfo: the only type in that partition")
    else:
        yield Entry("gpu_type", None, _unknown(survey, NODES, parts or "sinfo: the GRES has no type"))


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


def _time(survey: Survey, wishes: Wishes) -> Entry:
    limits = time_limits(survey, _chosen(survey, wishes), wishes.account, wishes.qos)
    if limits:
        minutes, source = min(limits)
        return Entry("max_time_minutes", minutes, source)
    return Entry("max_time_minutes", None, _unknown(survey, PARTITIONS, "no limit is set"))


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
    return Entry("setup", [], f"shell lines before each task, as in [module load gcc], none for CUDA; {modules}")


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
