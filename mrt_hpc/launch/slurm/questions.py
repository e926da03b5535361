"""What the user of ``mrt-hpc init`` has said, and the questions that the cluster leaves open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mrt_hpc.launch.slurm.choices import accounts_of, cpu_partitions, gpu_partitions, gpu_types, qos_choices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.launch.login_node import LoginNode
    from mrt_hpc.launch.slurm.cluster_facts import Survey


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
    kinds = gpu_types(survey, wishes)
    if len(kinds) > 1:
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


def with_proposals(survey: Survey, node: LoginNode, wishes: Wishes) -> Wishes:
    """The wishes, with the proposed answer to each question that has one."""
    for question in open_questions(survey, node, wishes):
        if question.proposed is not None:
            return with_proposals(survey, node, wishes.with_answer(question, question.proposed))
    return wishes
