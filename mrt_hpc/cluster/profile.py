"""Proposes a site profile for a cluster: each value with the reason for it."""

import platform
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from mrt_hpc.backends.slurm.site import GpuRequest, MemoryRequest
from mrt_hpc.backends.slurm.survey import CONFIG, NODES, PARTITIONS, QOS, PartitionFacts, Survey, associations_command
from mrt_hpc.cluster.job_rules import preemption, submit_limits, time_limits
from mrt_hpc.cluster.login_node import LoginNode
from mrt_hpc.cluster.questions import Wishes, accounts_of, cpu_partitions, gpu_partitions, gpu_types


@dataclass(frozen=True)
class ProfileEntry:
    field: str
    """As in ``partitions.gpu``."""
    value: Any
    reason: str
    """Where the value is from, or why it is left at its default."""


def profile_text(proposed: Sequence[ProfileEntry], head: Sequence[str]) -> str:
    """YAML with the reason beside each value; ``head`` are comment lines without their ``#``."""
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
    if not isinstance(value, list | dict):
        return value
    whole: Any = (CommentedSeq if isinstance(value, list) else CommentedMap)(value)
    whole.fa.set_flow_style()
    return whole


Value = tuple[Any, str]
OFFLINE = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}


def entries(survey: Survey, node: LoginNode, wishes: Wishes) -> list[ProfileEntry]:
    """Entries in the order in which they are written; ``wishes`` have the answers to all questions that have any."""
    return [
        ProfileEntry("type", "slurm", ""),
        ProfileEntry("name", wishes.name, "the name for --site"),
        ProfileEntry("account", *_account(survey, wishes)),
        ProfileEntry("qos", *_qos(survey, wishes)),
        *_partitions(survey, wishes),
        ProfileEntry("gpu_request", *_gpu_request(survey, wishes)),
        ProfileEntry("node_gpus", *_node_gpus(survey, wishes)),
        ProfileEntry("gpu_type", *_gpu_type(survey, wishes)),
        ProfileEntry("memory_request", *_memory(survey)),
        ProfileEntry("max_array_size", *_array_size(survey)),
        ProfileEntry("max_submit_jobs", *_submit_jobs(survey, wishes)),
        ProfileEntry("max_time_minutes", *_time(survey, wishes)),
        ProfileEntry("preemption_notice_s", *_notice(survey, wishes)),
        ProfileEntry("setup", *_setup(node, wishes)),
        ProfileEntry("environment", OFFLINE, "compute nodes have no network"),
        ProfileEntry("python", *_python(survey, node, wishes)),
        *_container(node, wishes),
        ProfileEntry("scratch", *_scratch(wishes)),
    ]


def _account(survey: Survey, wishes: Wishes) -> Value:
    names = accounts_of(survey)
    if wishes.account is not None:
        others = f"; yours are {', '.join(names)}" if names else ""
        return wishes.account, f"chosen{others}"
    if names:
        return names[0], "sacctmgr show associations: your only account"
    asked = associations_command(survey.user.name, survey.cluster_name)
    return None, _unseen_reason(survey, asked, "you have no association")


def _qos(survey: Survey, wishes: Wishes) -> Value:
    there = ", ".join(dict.fromkeys(name for one in survey.associations_of(wishes.account) for name in one.qos))
    if wishes.qos is not None:
        return wishes.qos, f"chosen; your account has {there}" if there else "chosen"
    default = survey.qos_of(wishes.account, None)
    if default is not None:
        return None, f"sacctmgr: jobs get QOS {default.name}; your account has {there or 'no other'}"
    return None, _unseen_reason(survey, QOS, "the cluster's default")


def _unseen_reason(survey: Survey, command: Sequence[str], otherwise: str) -> str:
    """Why a value could not be seen, or what holds otherwise."""
    why = survey.why_not(command)
    return f"not seen: {why}" if why else otherwise


def _partitions(survey: Survey, wishes: Wishes) -> Iterator[ProfileEntry]:
    for field, wish, candidates, what in (
        ("partitions.cpu", wishes.partition, cpu_partitions, "no partition"),
        ("partitions.gpu", wishes.gpu_partition, gpu_partitions, "no partition with whole GPUs"),
    ):
        names = candidates(survey, wishes)
        name = wish or next(iter(names), None)
        if (partition := (survey.partitions or {}).get(name or "")) is not None:
            others = ", ".join(other for other in names if other != name)
            reason = _partition_text(partition) + (others and f"; others: {others}")
        elif name is not None:
            reason = "chosen; " + _unseen_reason(survey, PARTITIONS, "scontrol shows no such partition")
        else:
            reason = _unseen_reason(survey, PARTITIONS, f"{what} admits you")
        yield ProfileEntry(field, name, reason)


def _partition_text(partition: PartitionFacts) -> str:
    """The nodes, GPUs and time limit."""
    count = sum(node.count for node in partition.nodes)
    gpus = sorted({f"gpu:{kind and f'{kind}:'}{number}" for n in partition.nodes for kind, number in n.gpus.items()})
    limit = "no time limit" if partition.max_minutes is None else f"MaxTime {partition.max_minutes} minutes"
    default = "the default partition, " if partition.is_default else ""
    return f"scontrol show partition: {default}{count} node(s){' with ' + ', '.join(gpus) if gpus else ''}, {limit}"


def _profile_partitions(survey: Survey, wishes: Wishes) -> list[PartitionFacts]:
    """The profile's partitions that the cluster has."""
    chosen = ((wishes.partition, cpu_partitions), (wishes.gpu_partition, gpu_partitions))
    names = dict.fromkeys(wish or next(iter(candidates(survey, wishes)), "") for wish, candidates in chosen)
    return [survey.partitions[name] for name in names if survey.partitions and name in survey.partitions]


def _gpu_request(survey: Survey, wishes: Wishes) -> Value:
    with_gpus = [partition for partition in _profile_partitions(survey, wishes) if partition.gpu_nodes]
    if with_gpus or survey.partitions is None:
        reason = f"sinfo: nodes of {with_gpus[-1].name} have GRES gpu" if with_gpus else "not seen: the usual way"
        return GpuRequest.GRES.value, reason
    if whole := next(filter(None, map(survey.why_whole_nodes, _profile_partitions(survey, wishes))), ""):
        return GpuRequest.NONE.value, whole
    parts = _parts_only(survey, wishes)
    return GpuRequest.GRES.value, parts or "the usual way; sinfo shows no GRES gpu in your partitions"


def _node_gpus(survey: Survey, wishes: Wishes) -> Value:
    for partition in _profile_partitions(survey, wishes):
        if partition.gpu_counts and (whole := survey.why_whole_nodes(partition)):
            return partition.gpu_counts[0], f"{whole}: all GPUs of a node are charged"
    return None, _unseen_reason(survey, PARTITIONS, "jobs are charged for the GPUs that they ask for")


def _gpu_type(survey: Survey, wishes: Wishes) -> Value:
    kinds = gpu_types(survey, wishes)
    if wishes.gpu_type is not None:
        return wishes.gpu_type, f"chosen; sinfo shows {', '.join(kinds) or 'no type'}"
    if kinds:
        return kinds[0], "sinfo: the only type in that partition"
    return None, _unseen_reason(survey, NODES, _parts_only(survey, wishes) or "sinfo: the GRES has no type")


def _parts_only(survey: Survey, wishes: Wishes) -> str:
    """Parts of GPUs (MIG) in the profile's partitions, in words."""
    slices = sorted({kind for partition in _profile_partitions(survey, wishes) for kind in partition.slice_types})
    return f"sinfo shows parts of GPUs (MIG) only in your partitions: {', '.join(slices)}" if slices else ""


def _memory(survey: Survey) -> Value:
    settings = survey.settings
    if settings is None or settings.allocates_memory is None:
        return MemoryRequest.MEM.value, _unseen_reason(survey, CONFIG, "the default")
    if settings.allocates_memory:
        return MemoryRequest.MEM.value, "scontrol show config: SelectTypeParameters allocates memory to jobs"
    return MemoryRequest.NONE.value, "scontrol show config: SelectTypeParameters does not allocate memory"


def _array_size(survey: Survey) -> Value:
    if survey.settings is None or (size := survey.settings.max_array_size) is None:
        return 1001, _unseen_reason(survey, CONFIG, "Slurm's default")
    return max(1, size), "scontrol show config: MaxArraySize, or max_array_tasks where that is less"


def _submit_jobs(survey: Survey, wishes: Wishes) -> Value:
    limits = submit_limits(survey, _profile_partitions(survey, wishes), wishes.account, wishes.qos)
    most, source = min(limits, default=(None, _unseen_reason(survey, CONFIG, "no limit is set")))
    return None if most is None else max(1, most), source


def _time(survey: Survey, wishes: Wishes) -> Value:
    limits = time_limits(survey, _profile_partitions(survey, wishes), wishes.account, wishes.qos)
    return min(limits, default=(None, _unseen_reason(survey, PARTITIONS, "no limit is set")))


def _notice(survey: Survey, wishes: Wishes) -> Value:
    qos = survey.qos_of(wishes.account, wishes.qos)
    partitions = _profile_partitions(survey, wishes)
    found = [(found, one.name) for one in partitions if (found := preemption(survey, one, qos)) is not None]
    preempted = [(one.notice_s, name, one.source) for one, name in found if one.mode != "OFF"]
    if preempted:
        return min(preempted)[0], f"GraceTime + KillWait: {min(preempted)[2]}"
    if found:
        return None, f"jobs of {', '.join(name for _, name in found)} are not preempted: {found[-1][0].source}"
    return None, _unseen_reason(survey, CONFIG, "not known")


def _setup(node: LoginNode, wishes: Wishes) -> Value:
    if wishes.setup:
        return list(wishes.setup), "shell lines before each task"
    if node.python_module is not None and not wishes.python and wishes.image is None:
        line = f"module load {shlex.quote(node.python_module)}"
        return [line], "shell lines before each task: this Python is from that module"
    modules = f"modules are here ({node.modules})" if node.modules else "no modules were found here"
    return [], f"shell lines before each task, as in [module load gcc], none for CUDA; {modules}"


def _python(survey: Survey, node: LoginNode, wishes: Wishes) -> Value:
    if wishes.python:
        return wishes.python, "the Python of the compute nodes"
    if wishes.image is not None:
        return None, "not used: tasks run with the Python of the image"
    if node.missing_packages:
        without = ", ".join(node.missing_packages)
        return None, f"name the Python of the compute nodes: {node.python} has no {without}"
    others = {machine for partition in _profile_partitions(survey, wishes) for machine in partition.architectures}
    if others := others - {platform.machine()}:
        seen = f"scontrol show node: nodes are {', '.join(sorted(others))}, and this machine {platform.machine()}"
        return None, f"name the Python of the compute nodes: {seen}"
    return None, f"the Python that runs mrt-hpc: {node.python}"


def _container(node: LoginNode, wishes: Wishes) -> Iterator[ProfileEntry]:
    command = node.container_command
    if wishes.image is not None:
        yield ProfileEntry("container.image", wishes.image, "chosen")
        note = "found here" if command else "not found here; the compute nodes need it"
        yield ProfileEntry("container.executable", command or "apptainer", note)
        yield ProfileEntry("container.unpack", *_unpack(node))
    else:
        note = f"Apptainer is here: {command}" if command else "neither apptainer nor singularity is in PATH here"
        yield ProfileEntry("container", None, f"tasks run without a container; {note}")


def _unpack(node: LoginNode) -> tuple[bool, str]:
    """Whether images have to be unpacked, with the reason."""
    if node.kernel_mounts_images:
        return False, "apptainer buildcfg and its configuration: the kernel mounts images"
    if node.kernel_mounts_images is None:
        return (True, "not seen: who mounts images; with false, doctor --on-node tries whether a signal ends the mount")
    return True, "apptainer buildcfg: the kernel does not mount images, and a signal to a task would end their mount"


def _scratch(wishes: Wishes) -> Value:
    if wishes.scratch is not None:
        return wishes.scratch, "a folder on each node"
    return None, "each node's TMPDIR, or /tmp; mrt-hpc doctor --on-node shows its free space"
