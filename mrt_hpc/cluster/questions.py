"""What the user of ``mrt-hpc init`` has said, and the questions that the cluster leaves open."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Self

from mrt_hpc.backends.slurm.survey import PartitionFacts, Survey
from mrt_hpc.cluster.job_rules import preemption, refusals
from mrt_hpc.cluster.login_node import LoginNode


@dataclass(frozen=True)
class Question:
    wish: str
    """The field of :class:`Wishes` for the answer; the option of ``mrt-hpc init`` has the same name."""
    text: str
    choices: tuple[str, ...] = ()
    """The proposed answer first; none if the answer is free."""

    @property
    def option(self) -> str:
        """The option that answers it."""
        return "--" + self.wish.replace("_", "-")

    @property
    def proposal(self) -> str | None:
        """Taken if no answer is given."""
        return self.choices[0] if self.choices else None


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

    def take_answer(self, question: Question, answer: str) -> Self:
        changes: dict[str, Any] = {question.wish: answer}
        return replace(self, **changes)


# The accounts, partitions, GPU types and QOS that a user can choose from, the best first.


FOR_TESTS = re.compile(r"debug|test|interactive|short|devel", re.IGNORECASE)
"""Partitions for short trials."""


def accounts_of(survey: Survey) -> list[str]:
    names = dict.fromkeys(association.account for association in survey.associations or ())
    return sorted(names, key=lambda name: name != survey.default_account)


def _open_partitions(survey: Survey, wishes: Wishes) -> list[PartitionFacts]:
    """The partitions that start jobs of this user."""
    accounts = [wishes.account] if wishes.account else accounts_of(survey)
    return [
        partition
        for partition in (survey.partitions or {}).values()
        if partition.state == "UP" and not refusals(partition, survey.user, accounts, wishes.qos)
    ]


def cpu_partitions(survey: Survey, wishes: Wishes) -> list[str]:
    """The best first: the default one, and those without GPUs and preemption."""
    ranked = [((not one.is_default, *rank, one.gpu_nodes > 0), one.name) for one, rank in _ranks(survey, wishes)]
    return [name for _, name in sorted(ranked, key=itemgetter(0))]


def gpu_partitions(survey: Survey, wishes: Wishes) -> list[str]:
    """The best first: not for tests, not preempted, not the default one, with many nodes."""
    with_gpus = ((one, rank) for one, rank in _ranks(survey, wishes) if one.gpu_nodes)
    ranked = [((*rank, one.is_default, -one.gpu_nodes), one.name) for one, rank in with_gpus]
    return [name for _, name in sorted(ranked, key=itemgetter(0))]


def _ranks(survey: Survey, wishes: Wishes) -> Iterator[tuple[PartitionFacts, tuple[bool, bool]]]:
    """The open partitions, and whether they are for tests, and preempted."""
    for one in _open_partitions(survey, wishes):
        preempted = preemption(survey, one, survey.qos_of(wishes.account, wishes.qos))
        yield one, (FOR_TESTS.search(one.name) is not None, preempted is not None and preempted.mode != "OFF")


def gpu_types(survey: Survey, wishes: Wishes) -> list[str]:
    """Types in the chosen partition; most nodes have the first."""
    partition = survey.partition(wishes.gpu_partition or next(iter(gpu_partitions(survey, wishes)), ""))
    counts: dict[str, int] = {}
    for node in () if partition is None else partition.nodes:
        for kind in filter(None, node.gpus):
            counts[kind] = counts.get(kind, 0) + node.count
    return sorted(counts, key=lambda kind: -counts[kind])


def qos_choices(survey: Survey, wishes: Wishes) -> list[str]:
    """Choices where an account has neither a default nor the QOS normal."""
    associations = survey.associations_of(wishes.account)
    if any(one.default_qos or "normal" in one.qos or len(one.qos) < 2 for one in associations):
        return []
    return list(dict.fromkeys(name for association in associations for name in association.qos))


def open_questions(survey: Survey, node: LoginNode, wishes: Wishes) -> list[Question]:
    """Questions that the wishes do not answer; the first answer may change the others."""
    return [question for question in _questions(survey, node, wishes) if getattr(wishes, question.wish) is None]


def _questions(survey: Survey, node: LoginNode, wishes: Wishes) -> Iterator[Question]:
    """Open as far as the earlier questions are answered."""
    if len(accounts := accounts_of(survey)) > 1:
        yield Question("account", "The account that jobs are charged to", tuple(accounts))
    for wish, what, partitions in (("partition", "without", cpu_partitions), ("gpu_partition", "with", gpu_partitions)):
        names = partitions(survey, wishes)
        if survey.partitions is None or len(names) > 1:
            yield Question(wish, f"The partition of jobs {what} GPUs", tuple(names))
    if len(kinds := gpu_types(survey, wishes)) > 1:
        yield Question("gpu_type", "The GPU type that jobs ask for", tuple(kinds))
    if len(options := qos_choices(survey, wishes)) > 1:
        yield Question("qos", "The QOS of jobs: this account has no default", tuple(options))
    if node.missing_packages and wishes.image is None:
        without = ", ".join(node.missing_packages)
        yield Question(
            "python",
            f"The Python of the compute nodes, as {node.python} has no {without}: `env/setup cuda` of a checkout on "
            "the shared filesystem makes one, .venv/bin/python. For tasks in an image, made by "
            "`mrt-hpc container build cuda IMAGE.sif`, leave it out and add --image IMAGE.sif",
        )


def take_proposals(survey: Survey, node: LoginNode, wishes: Wishes) -> Wishes:
    """The wishes, with the proposed answer to each question that has one."""
    for question in open_questions(survey, node, wishes):
        if question.proposal is not None:
            return take_proposals(survey, node, wishes.take_answer(question, question.proposal))
    return wishes
