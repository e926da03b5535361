"""One iteration's data for the trainer: committed groups of rollouts, or a part of given samples."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import ClassVar

import numpy as np

from mrt_hpc.algorithms.base import RolloutAlgorithm, SupervisedAlgorithm
from mrt_hpc.algorithms.batch import Batch, Learnt
from mrt_hpc.algorithms.learnt_batch import learnt_batch
from mrt_hpc.algorithms.samples import SampleSource, write_samples
from mrt_hpc.errors import Advice, UserError, retryable_error
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.mrt.sft import Conversation, MaskedTokens, Suffix
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.roles.sampling.collected import Collection
from mrt_hpc.roles.task.context import Task, positions_there, set_group_aside
from mrt_hpc.roles.task.peers import Peers, PeerStatus
from mrt_hpc.roles.training.sampler_agreement import comparable
from mrt_hpc.run.archive import read_sampled
from mrt_hpc.run.atomic import sync_names
from mrt_hpc.run.groups import Group, refuse_other_samples
from mrt_hpc.run.manifest import DamagedError, unreadable
from mrt_hpc.run.problems import draw_indices, draw_places, read_problems
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
    sequences: list[TrainingSequence]
    digest: str

    @staticmethod
    def of(task: Task, version: int = 0) -> "Samples":
        """The samples of a run, selected from traces of ``version`` if so; refuses none, and a chat template with
        indistinguishable turns.
        """
        seed_generators(derive_seed(task.recipe.seed, "samples", version))  # for what a class of the user draws
        algorithm, identity = require_kind(task.recipe.algorithm, SupervisedAlgorithm), hashlib.sha256()
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
            task.retry(partial(write_samples, path, samples), "the selected samples")

    return SampleSource(
        recipe=task.recipe,
        train_data=task.layout.train_data,
        prompter=prompter,
        tokens=TokenBytes(prompter.tokenizer),
        collected=Collection(task, version).groups,
        keep=keep,
    )


def _sequence(masked: MaskedTokens) -> TrainingSequence:
    """Its tokens are learnt with weight 1; those before the first learnt one are context."""
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
    task: Task
    iteration: int
    question_ids: Callable[[], Sequence[int]] = list
    """The prover's text after a prefix, in the policy's tokens."""
    problem_ids: Callable[[], Sequence[str]] | None = None
    """Ids of all training problems in file order; None reads the file."""
    _groups: dict[int, Group] = field(default_factory=dict, init=False)

    @property
    def samplers(self) -> Peers:
        """Tasks that sample this iteration; of an earlier segment where a damaged checkpoint set the trainer back."""
        return self.task.peers(Role.INFERENCE, range(self.iteration, self.iteration + 1))

    def is_complete(self) -> bool:
        """Read new groups; returns whether all are there. A damaged one is set aside and sampled again."""
        task, iteration = self.task, self.iteration
        for position in sorted(positions_there(task, iteration) - self._groups.keys()):
            path = task.layout.group(iteration, position)
            try:
                self._groups[position] = task.retry(partial(self._read, position), f"reading {path}")
            except DamagedError as damage:
                set_group_aside(task, iteration, position, damage)
            except OSError as error:
                raise unreadable(path, error) from error
        return len(self._groups) == self._wanted_groups

    def _read(self, position: int) -> Group:
        path = self.task.layout.group(self.iteration, position)
        if position >= len(self._place_ids):
            raise DamagedError("a group of a position that the iteration does not have", where=path)
        group, recipe = read_sampled(self.task.layout, self.iteration, position), self.task.recipe
        samples, ids = range(recipe.algorithm.group_size(recipe, self.iteration)), self._place_ids[position]
        problem = ids[min(group.statistics.thrown_groups, len(ids) - 1)]
        return refuse_other_samples(group, problem, samples, path)

    @cached_property
    def _place_ids(self) -> list[list[str]]:
        """Of the problems that each place may take."""
        ids = (self.problem_ids or partial(_problem_ids, self.task))()
        return draw_places(ids, self.task.recipe, self.iteration)

    @property
    def comparable(self) -> int | None:
        """The first position with rollouts that this iteration's weights alone sampled."""
        groups = (p for p, group in sorted(self._groups.items()) if comparable(group, self.iteration))
        return next(groups, None)

    def group(self, position: int) -> Group:
        """Other ranks may see a group later than the first."""
        self.is_complete()
        if position not in self._groups:
            raise self._not_as_first_seen()
        return self._groups[position]

    def data(self) -> Learnt:
        """All groups with advantages; refuses missing ones and advantages that are not finite."""
        if not self.is_complete():
            raise self._not_as_first_seen()
        if self.task.rank == 0 and (folder := self.task.layout.groups(self.iteration)).is_dir():
            # what is learnt stays: a task that committed a group may have been killed before it synced its name
            self.task.retry(partial(sync_names, folder), f"syncing {folder}")
        groups = [self._groups[position] for position in sorted(self._groups)]
        batch = learnt_batch(groups, self.task.recipe, self.question_ids)
        if not batch.rollouts:
            raise UserError(
                f"no trace of iteration {self.iteration} could be judged",
                value=f"{batch.unjudged} traces",
                where=self.task.layout.groups(self.iteration),
                advice="correct the verifier, and begin another run",
            )
        learnt = self._learn_batch(batch)
        if learnt.dropped_branches:
            why = "they were not sampled after the recipe's forced text"
            dropped = (self.iteration, learnt.dropped_branches)
            log.warning("iteration %d: %d branches are not learnt from: %s", *dropped, why)
        return replace(learnt, digest=batch.digest, batch=batch)

    def reopen_samplers(self) -> None:
        """Rerun inference where groups are missing and none of its tasks is left."""
        lives = self.samplers.lives()
        missing = len(positions_there(self.task, self.iteration)) < self._wanted_groups
        if missing and set(lives.values()) <= {PeerStatus.DONE, PeerStatus.FAILED}:
            self.task.reopen(lives, f"groups of iteration {self.iteration} were found damaged, or gone, after its end")

    def _not_as_first_seen(self) -> UserError:
        return retryable_error(
            f"the groups of iteration {self.iteration} are not what the first rank saw",
            where=self.task.layout.groups(self.iteration),
            advice="mrt-hpc submit RUN, once all nodes see the same files",
        )

    def _learn_batch(self, batch: Batch) -> Learnt:
        algorithm = require_kind(self.task.recipe.algorithm, RolloutAlgorithm)
        try:
            return algorithm.learnt(batch)
        except NotFiniteError as error:
            raise NotFiniteError(
                f"algorithm {algorithm.type} gives what cannot be learnt: {error.what}",
                value=error.value,
                where=f"iteration {self.iteration}, {error.where}",
                expected="a finite advantage for each trained token",
                advice=Advice(
                    "look at the method `learnt` of {type}; then mrt-hpc submit RUN continues", type=algorithm.type
                ),
            ) from error

    @property
    def _wanted_groups(self) -> int:
        return self.task.recipe.sampling.problems_per_iteration or 0


@dataclass(frozen=True)
class SampleReader:
    task: Task
    iteration: int
    samples_of: Callable[[int], Samples]
    """Samples selected from a version's traces, or the given ones; called when they are learnt."""

    @property
    def samplers(self) -> Peers:
        return self.task.peers(Role.INFERENCE, range(0))

    comparable: ClassVar[None] = None
    """Given samples were sampled by no weights of this run."""

    def is_complete(self) -> bool:
        return True

    def group(self, position: int) -> Group:
        raise KeyError(position)

    def data(self) -> Learnt:
        """A window over shuffled passes, which begin with the first iteration that learns these samples."""
        recipe = self.task.recipe
        algorithm = require_kind(recipe.algorithm, SupervisedAlgorithm)
        samples = self.samples_of(version := algorithm.traces_version(self.iteration))
        count = algorithm.sequences_per_iteration
        chosen = draw_indices(len(samples.sequences), recipe.seed, self.iteration - version, count)
        return Learnt([samples.sequences[i] for i in chosen], digest=f"{samples.digest}:{self.iteration}")

    def reopen_samplers(self) -> None:
        """Nothing is missing."""


IterationReader = RolloutReader | SampleReader
"""Makes one iteration's data, once it is there."""


def iteration_readers(task: Task) -> Callable[[int], IterationReader]:
    if task.recipe.algorithm.samples_rollouts:
        asked, ids = lru_cache(partial(_question_ids, task)), lru_cache(partial(_problem_ids, task))
        return partial(RolloutReader, task, question_ids=asked, problem_ids=ids)
    samples_of = lru_cache(maxsize=1)(partial(Samples.of, task))
    samples_of(task.recipe.algorithm.traces_version(task.job.first_iteration))  # now, as some samples may be missing
    return lambda iteration: SampleReader(task, iteration, samples_of)


def _problem_ids(task: Task) -> list[str]:
    return [problem.id for problem in read_problems(task.layout.train_data)]


def _question_ids(task: Task) -> Sequence[int]:
    prover = task.recipe.prover
    prompter = Prompter.of(task.layout.weights_version(0), task.recipe.prompt)
    return [] if prover is None else prompter.ids(prover.question)
