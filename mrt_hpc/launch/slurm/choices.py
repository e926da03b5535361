"""The accounts, partitions, GPU types and QOS that a user can choose from, the best first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mrt_hpc.launch.slurm.admission import refusals
from mrt_hpc.launch.slurm.preemption import preemption

if TYPE_CHECKING:
    from mrt_hpc.launch.slurm.cluster_facts import PartitionFacts, Survey
    from mrt_hpc.launch.slurm.questions import Wishes

FOR_TESTS = re.compile(r"debug|test|interactive|short|devel", re.IGNORECASE)
"""Names of partitions that are meant for short trials."""


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


def gpu_types(survey: Survey, wishes: Wishes) -> list[str]:
    """The types of the GPUs in the chosen partition, of which most nodes have the first."""
    partition = survey.partition(wishes.gpu_partition or next(iter(gpu_partitions(survey, wishes)), ""))
    counts: dict[str, int] = {}
    for node in () if partition is None else partition.nodes:
        for kind in filter(None, node.gpus):
            counts[kind] = counts.get(kind, 0) + node.count
    return sorted(counts, key=lambda kind: -counts[kind])


def qos_choices(survey: Survey, wishes: Wishes) -> list[str]:
    """The QOS to choose from, where an account has neither a default nor the QOS normal."""
    found = survey.associations_of(wishes.account)
    if any(one.default_qos or "normal" in one.qos or len(one.qos) < 2 for one in found):
        return []
    return list(dict.fromkeys(name for one in found for name in one.qos))
