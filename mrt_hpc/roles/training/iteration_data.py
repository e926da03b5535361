"""The data of one iteration for the trainer: groups of rollouts as they are committed, or a part of given samples."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import ClassVar

import numpy as np

from mrt_hpc.algorithms.base import RolloutAlgorithm, SupervisedAlgorithm
from mrt_hpc.algorithms.batch import Batch, Learnt, batch_of
from mrt_hpc.algorithms.samples import SampleSource, write_samples
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.mrt.sft import Conversation, MaskedTokens, Suffix
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.base import as_kind
from mrt_hpc.roles.sampling.collected import Collection
from mrt_hpc.roles.task.context import Task, positions_there, set_group_aside
from mrt_hpc.roles.task.peers import Peers, PeerStatus
from mrt_hpc.roles.training.sampler_agreement import comparable
from mrt_hpc.run.archive import read_sampled
from mrt_hpc.run.atomic import sync_names
from mrt_hpc.run.groups import Group, refuse_other_samples
from mrt_hpc.run.manifest import DamagedError, unreadable
from mrt_hpc.run.problems import draw_indices, read_problems
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.training.accelerator import seed_generators
from mrt_hpc.training.settings import NotFiniteError, TrainingSequence

log = logging.getLogger(__name__)


# The samples of a supervised run: given ones, or those selected from the traces that a weights version has sampled.
#
# Every sample follows from the run directory alone, in an order of its own, so that each rank and each attempt has the
# same. What was selected as conversations or suffixes is also written down, for other runs to learn.


@dataclass(frozen=True)
class Samples:
    """The samples that a supervised run learns."""

    sequences: list[TrainingSequence]
    digest: str
    """The identity of all samples."""

    @staticmethod
    def of(task: Task, version: int = 0) -> "Samples":
        """The samples of a run.

        Args:
            task: whose.
            version: of the weights that sampled what they are selected from, where they are selected.

        Raises:
            UserError: there is none to learn, or the chat template cannot distinguish turns by their position.
        """
        seed_generators(derive_seed(task.recipe.seed, "samples", version))  # for what a class of the user draws
        algorithm, identity = as_kind(task.recipe.algorithm, SupervisedAlgorithm), hashlib.sha256()
        sequences, too_long = [], 0
        for masked in algorithm.samples(_source(task, version)):
            if len(masked.token_ids) > algorithm.max_tokens:
                too_long += 1
                continue
            identity.update(json.dumps([masked.id, masked.token_ids, masked.learnt.astype(int).tolist()]).encode())
            sequences.append(_sequence(masked))
        if too_long:
            log.warning("%d samples are longer than %d tokens and are left out", too_long, algorithm.max_tokens)
        if not sequences:
            raise UserError(
                f"nothing to learn: no sample was selected, and {too_long} were longer than algorithm.max_tokens",
                where=task.layout.root,
                advice="another run (--run DIR) with more problems, more attempts at each, or a milder selection",
            )
        return Samples(sequences, identity.hexdigest())


def _source(task: Task, version: int) -> SampleSource:
    prompter = Prompter.of(task.layout.weights_version(0), task.recipe.prompt)

    def keep(samples: Sequence[Conversation | Suffix]) -> None:
        if task.rank == 0 and samples:
            path = task.layout.selected_samples
            task.retrying(partial(write_samples, path, samples), "the selected samples")

    return SampleSource(
        recipe=task.recipe,
        train_data=task.layout.train_data,
        prompter=prompter,
        tokens=TokenBytes(prompter.tokenizer),
        collected=Collection(task, version).groups,
        keep=keep,
    )


def _sequence(masked: MaskedTokens) -> TrainingSequence:
    """A sequence that is learnt with weight 1; the tokens before the first learnt one are context."""
    start = masked.first_learnt
    learnt = masked.learnt[start:]
    return TrainingSequence(
        prompt_ids=masked.token_ids[:start],
        token_ids=masked.token_ids[start:],
        advantages=learnt.astype(np.float32),
        behaviour_logprobs=np.zeros(len(learnt), dtype=np.float32),
        mask=learnt,
        group=masked.id,
    )


@dataclass
class RolloutReader:
    """The groups of an iteration, as far as this rank has read them."""

    task: Task
    iteration: int
    question_ids: Callable[[], Sequence[int]] = list
    """The text that the prover writes after a prefix, in the policy's tokens."""
    problem_ids: Callable[[], Sequence[str]] | None = None
    """Gives the ids of all training problems, in the order of their file; None reads the file."""
    _groups: dict[int, Group] = field(default_factory=dict, init=False)
    """The groups read so far, by position."""

    @property
    def samplers(self) -> Peers:
        """The tasks that sample this iteration. They are of an earlier segment where a damaged checkpoint has sent the
        trainer back.
        """
        return self.task.peers(Role.INFERENCE, range(self.iteration, self.iteration + 1))

    def is_complete(self) -> bool:
        """Read new groups. Returns whether all are there. A damaged group is set aside, to be sampled again."""
        task, iteration = self.task, self.iteration
        for position in sorted(positions_there(task, iteration) - self._groups.keys()):
            path = task.layout.group(iteration, position)
            try:
                self._groups[position] = task.retrying(partial(self._read, position), f"reading {path}")
            except DamagedError as damage:
                set_group_aside(task, iteration, position, damage)
            except OSError as error:
                raise unreadable(path, error) from error
        return len(self._groups) == self._wanted

    def _read(self, position: int) -> Group:
        """The group of a position.

        Raises:
            DamagedError: it is not what was written, or not of the samples that are drawn for this position.
        """
        path = self.task.layout.group(self.iteration, position)
        if position >= len(self._drawn):
            raise DamagedError("a group of a position that the iteration does not have", where=path)
        group = read_sampled(self.task.layout, self.iteration, position)
        recipe = self.task.recipe
        samples = range(recipe.algorithm.group_size(recipe, self.iteration))
        return refuse_other_samples(group, self._drawn[position], samples, path)

    @cached_property
    def _drawn(self) -> list[str]:
        """The id of the problem of each position."""
        ids = (self.problem_ids or partial(_problem_ids, self.task))()
        return [ids[index] for index in draw_indices(len(ids), self.task.recipe.seed, self.iteration, self._wanted)]

    @property
    def comparable(self) -> int | None:
        """The first position of a group with rollouts that the weights of this iteration alone have sampled."""
        groups = (p for p, group in sorted(self._groups.items()) if comparable(group, self.iteration))
        return next(groups, None)

    def group(self, position: int) -> Group:
        """One group; other ranks may see it later than the first one."""
        self.is_complete()
        if position not in self._groups:
            raise self._not_as_first_seen()
        return self._groups[position]

    def data(self) -> Learnt:
        """All groups with their advantages.

        Raises:
            UserError: some are missing, which the first rank has seen complete; or an advantage is not finite.
        """
        if not self.is_complete():
            raise self._not_as_first_seen()
        if self.task.rank == 0 and (folder := self.task.layout.groups(self.iteration)).is_dir():
            # what is learnt stays: a task that committed a group may have been killed before it synced its name
            self.task.retrying(partial(sync_names, folder), f"syncing {folder}")
        batch = batch_of([self._groups[position] for position in sorted(self._groups)], self.question_ids)
        learnt = self._learnt(batch)
        if learnt.dropped_branches:
            log.warning(
                "iteration %d: %d branches are not learnt from: they were not sampled after the recipe's forced text",
                self.iteration,
                learnt.dropped_branches,
            )
        return replace(learnt, digest=batch.digest, batch=batch)

    def reopen_samplers(self) -> None:
        """Make the tasks of inference run again where groups are missing and none of those tasks is left to sample
        them.
        """
        lives = self.samplers.lives()
        missing = len(positions_there(self.task, self.iteration)) < self._wanted
        if missing and set(lives.values()) <= {PeerStatus.DONE, PeerStatus.FAILED}:
            self.task.reopen(lives, f"groups of iteration {self.iteration} were found damaged, or gone, after its end")

    def _not_as_first_seen(self) -> UserError:
        return UserError(
            f"the groups of iteration {self.iteration} are not what the first rank saw",
            where=self.task.layout.groups(self.iteration),
            advice="mrt-hpc submit RUN, once all nodes see the same files",
            exit_code=ExitCode.RETRYABLE,
        )

    def _learnt(self, batch: Batch) -> Learnt:
        algorithm = as_kind(self.task.recipe.algorithm, RolloutAlgorithm)
        try:
            return algorithm.learnt(batch)
        except NotFiniteError as error:
            raise NotFiniteError(
                f"algorithm {algorithm.type} gives what cannot be learnt: {error.what}",
                value=error.value,
                where=f"iteration {self.iteration}, {error.where}",
                expected="a finite advantage for each trained token",
                advice=f"look at the method `learnt` of {algorithm.type}; then mrt-hpc submit RUN continues",
            ) from error

    @property
    def _wanted(self) -> int:
        return self.task.recipe.sampling.problems_per_iteration or 0


@dataclass(frozen=True)
class SampleReader:
    """A part of given samples for one iteration: there is nothing to wait for."""

    task: Task
    iteration: int
    samples_of: Callable[[int], Samples]
    """Gives the samples that were selected from a weights version's traces, or the given ones; called when they are
    learnt.
    """

    @property
    def samplers(self) -> Peers:
        """No tasks."""
        return self.task.peers(Role.INFERENCE, range(0))

    comparable: ClassVar[None] = None
    """Given samples were sampled by no weights of this run."""

    def is_complete(self) -> bool:
        """Always true."""
        return True

    def group(self, position: int) -> Group:
        """There is none.

        Raises:
            KeyError: always.
        """
        raise KeyError(position)

    def data(self) -> Learnt:
        """A window over shuffled passes through all samples; the passes begin with the first iteration that learns
        these samples.
        """
        recipe = self.task.recipe
        algorithm = as_kind(recipe.algorithm, SupervisedAlgorithm)
        version, count = algorithm.traces_version(self.iteration), algorithm.sequences_per_iteration
        samples = self.samples_of(version)
        chosen = draw_indices(len(samples.sequences), recipe.seed, self.iteration - version, count)
        return Learnt([samples.sequences[i] for i in chosen], digest=f"{samples.digest}:{self.iteration}")

    def reopen_samplers(self) -> None:
        """Nothing is missing."""


IterationReader = RolloutReader | SampleReader
"""Makes the data of one iteration, when they are there."""


def iteration_readers(task: Task) -> Callable[[int], IterationReader]:
    """Makes the data source of each iteration, by the recipe's algorithm."""
    if task.recipe.algorithm.samples_rollouts:
        asked, ids = lru_cache(partial(_question_ids, task)), lru_cache(partial(_problem_ids, task))
        return partial(RolloutReader, task, question_ids=asked, problem_ids=ids)
    samples_of = lru_cache(maxsize=1)(partial(Samples.of, task))
    samples_of(task.recipe.algorithm.traces_version(task.job.first_iteration))  # now, as some samples may be missing
    return lambda iteration: SampleReader(task, iteration, samples_of)


def _problem_ids(task: Task) -> list[str]:
    """The ids of all training problems, in the order of their file."""
    return [problem.id for problem in read_problems(task.layout.train_data)]


def _question_ids(task: Task) -> Sequence[int]:
    """The text that the prover writes after a prefix, in the policy's tokens."""
    prover = task.recipe.prover
    prompter = Prompter.of(task.layout.weights_version(0), task.recipe.prompt)
    return [] if prover is None else prompter.ids(prover.question)
