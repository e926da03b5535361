"""The trainer role: for each iteration of a segment it waits for the rollouts, updates, publishes and writes a
checkpoint.

The order within an iteration makes every instant safe to be killed at: metrics, then the weights version, so that the
next rollouts are sampled while the checkpoint is written, then the checkpoint. What lies after the checkpoint resumed
from can only be younger work that is computed again; it is set aside, never mixed in. A trainer that is asked to leave
does so between two iterations, and saves first what no checkpoint has.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from mrt_hpc.algorithms.batch import Learnt
from mrt_hpc.analysis.measures import IterationMetrics, Phase
from mrt_hpc.domains.small_world.equations import trace_quality
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import SmallWorldProblems
from mrt_hpc.roles.sampling.weights_on_node import verified_weights
from mrt_hpc.roles.task.context import STATE, Task, is_trained
from mrt_hpc.roles.task.peers import PeerWait
from mrt_hpc.roles.task.shutdown import Interrupted, RequeueRequested
from mrt_hpc.roles.tracking import Tracker
from mrt_hpc.roles.training.artifacts import TrainingArtifacts, newest_good_checkpoint
from mrt_hpc.roles.training.iteration_data import IterationReader, iteration_readers
from mrt_hpc.roles.training.metrics import Timeline, iteration_metrics
from mrt_hpc.roles.training.sampler_agreement import agreement, comparable, refuse_disagreement
from mrt_hpc.run.atomic import sync_names
from mrt_hpc.run.events import EventKind, Use
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.retries import wait_until
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.training import checkpoint, rendezvous
from mrt_hpc.training.accelerator import choose_kernels, device, seed_generators
from mrt_hpc.training.engine import TrainerEngine, build
from mrt_hpc.training.host_memory import Parked, park, unpark
from mrt_hpc.training.rendezvous import Ranks
from mrt_hpc.training.settings import Objective, TrainerSettings
from mrt_hpc.training.update_statistics import UpdateStats

log = logging.getLogger(__name__)

REGAIN_DEADLINE_S = 60.0
"""Seconds in which the process that samples has to end its server, when this one has to save its state and leave."""
ROUND_S = 30.0
"""Seconds after which rank 0 reports to the other ranks while it waits, well below the time-out of their exchanges."""
LONGEST_EXCHANGE_S = 1800.0
"""The time-out of an exchange between ranks, seconds. A rank that waits for room on a full disk gets that time on top.
"""
SPARE_S = 60.0
"""Seconds before the time limit after which the trainer begins nothing that would end later."""


class Next(Enum):
    """What the trainer does next."""

    WAIT = "wait"
    COMPARE = "compare"
    """The first group is there: the policy that has sampled it must be the one that the trainer holds."""
    TRAIN = "train"
    PUBLISH = "publish"
    """The weights version that inference waits for is missing: it was damaged and set aside. It is published as a whole
    model, so that it depends on no other version.
    """
    PASS_ON = "pass on"
    """Leave the GPUs to the process that samples, and wait."""
    LEAVE = "leave"


def run(task: Task) -> None:
    """Train the segment's iterations; every rank of the task calls this.

    Raises:
        UserError: inference failed, or does not run and the nodes are given back.
        Interrupted: the task was asked to leave, and has saved its state.
    """
    choose_kernels(task.recipe.training.deterministic)
    ranks = Ranks(task.rank, task.world_size, task.local_rank, task.job.resources.nodes)
    limit_s = LONGEST_EXCHANGE_S + task.recipe.resilience.full_disk_minutes * 60
    rendezvous.join(ranks, task.layout.rendezvous / f"{task.log_stem}.json", limit_s)
    try:
        if rendezvous.on_rank_zero(lambda: was_trained(task)):
            log.info("all iterations of the segment are trained, published and in a checkpoint already")
            return
        with Tracker.of(task) as tracker:
            trainer = Trainer.resumed(task, ranks, tracker)
            with task.shutdown.at_safe_points():
                while trainer.iteration < task.job.end_iteration:
                    trainer.go_on()
            task.spend(Use.ENDING)
    finally:
        rendezvous.leave()


def was_trained(task: Task) -> bool:
    """Whether an earlier attempt has trained the segment. What it has committed is on the disk then: it may have been
    killed before it synced the names.
    """
    if not is_trained(task):
        return False
    for folder in (task.layout.weights, task.layout.checkpoints):
        task.retrying(partial(sync_names, folder), f"syncing {folder}")
    return True


def trainer_settings(recipe: Recipe) -> TrainerSettings:
    """The engine's settings: the recipe's training section, with what it needs of the other sections."""
    learns_rollouts = recipe.algorithm.samples_rollouts
    return TrainerSettings(
        recipe.training,
        total_steps=recipe.schedule.iterations * recipe.training.optimizer_steps_per_iteration,
        # Given samples were not drawn from the policy, so no temperature was applied to them.
        temperature=recipe.sampling.temperature if learns_rollouts else 1.0,
        objective=Objective.POLICY_GRADIENT if learns_rollouts else Objective.LIKELIHOOD,
        seed=recipe.seed,
        longest=recipe.algorithm.longest_trained(recipe),
    )


@dataclass
class Trainer:
    """The trained policy and its iteration. All ranks call every method together, unless the method says otherwise."""

    task: Task
    engine: TrainerEngine
    tracker: Tracker
    artifacts: TrainingArtifacts
    readers: Callable[[int], IterationReader]
    """Gives the reader of the data of each iteration."""
    reader: IterationReader
    """The reader of the data of the current iteration."""
    statements: dict[str, str]
    """The texts of the training problems by id; None where given samples are learnt."""
    turns: "TurnTaking" = field(init=False)
    _longest_step_s: float = 0.0
    _compared: bool = False
    """Whether a group was compared with the policy of this attempt, or none could be before its first update."""

    def __post_init__(self) -> None:
        self.turns = TurnTaking(self.task)

    @property
    def iteration(self) -> int:
        """The number of updates since the start of the run, which is the weights version that the trainer holds."""
        return self.reader.iteration

    @staticmethod
    def resumed(task: Task, ranks: Ranks, tracker: Tracker) -> "Trainer":
        """The trainer at the newest good checkpoint, or at weights version 0."""
        layout, recipe = task.layout, task.recipe
        name = rendezvous.on_rank_zero(lambda: newest.name if (newest := newest_good_checkpoint(task)) else None)
        newest = None if name is None else layout.checkpoints / name
        readers = iteration_readers(task)  # before anything that takes long: given samples may be missing
        if newest is None or recipe.training.kl_coefficient > 0:  # training begins with it, or refers to it
            rendezvous.on_rank_zero(lambda: verified_weights(task, 0).version)
        engine = build(trainer_settings(recipe), layout.weights_version(0), ranks)
        problems = read_problems(layout.train_data) if recipe.data.form == "problems" else []
        iteration, state = 0, None
        if newest is not None:
            cursor = checkpoint.load(engine, newest)
            state = cursor.get(STATE)
            iteration, engine.skipped_in_a_row = int(cursor["iteration"]), int(cursor.get("skipped_in_a_row", 0))
            task.events.emit(EventKind.RESUMED, iteration=iteration, checkpoint=newest.name, rank=task.rank)
        artifacts = TrainingArtifacts(task, engine, saved=iteration, state=state)
        artifacts.reconcile(iteration)
        tracker.resume(iteration)
        statements = {p.id: p.problem for p in problems}
        return Trainer(task, engine, tracker, artifacts, readers, readers(iteration), statements)

    def go_on(self) -> None:
        """Wait for what can be done next, and do it.

        Raises:
            Interrupted: the task was asked to leave.
        """
        timeline = Timeline()
        with timeline.phase(Phase.WAITING):
            what = self._await_next_or_save()
        if what is Next.LEAVE:
            self._leave()
        elif what is Next.PUBLISH:
            self.artifacts.publish(self.iteration, in_full=True)
        elif what is Next.COMPARE:
            self._compare()
        else:
            self._iterate(timeline)

    def _await_next_or_save(self) -> Next:
        """What to do next. Before a wait is given up, the state that no checkpoint has is saved."""
        try:
            return self._await_next()
        except UserError:
            self._save()
            if self.task.rank == 0:
                self.reader.reopen_samplers()
            raise

    def _await_next(self) -> Next:
        """What to do next, the same on every rank."""
        wait = self.task.peer_wait(f"rollouts of iteration {self.iteration}", self.reader.samplers)

        # No rank waits longer than a round for the first one.
        def look() -> Next:
            return Next(rendezvous.on_rank_zero(lambda: self._look_for_a_round(wait).value))

        while (what := look()) in (Next.WAIT, Next.PASS_ON):
            if what is Next.PASS_ON:
                self.turns.pass_on()
        if what is not Next.LEAVE:
            self.turns.resume()
        return what

    def _look_for_a_round(self, wait: PeerWait) -> Next:
        """What rank 0 does next, or WAIT after a round without an answer."""
        end = time.monotonic() + ROUND_S

        def look() -> Next | None:
            if (claimed := self._next()) is not None:
                return claimed
            if self.turns.may_pass_on:
                return Next.PASS_ON
            return Next.WAIT if time.monotonic() > end else None

        return self.task.wait_for_peers(wait, look)

    def _next(self) -> Next | None:
        """What rank 0 can do now."""
        self._refuse_to_be_late()
        if self.task.shutdown.given:
            return Next.LEAVE
        if not self.artifacts.is_published(self.iteration):
            return Next.PUBLISH if self.task.turn.take() else None
        complete = self.reader.is_complete()
        if not self._compared and self.reader.comparable is not None:
            return Next.COMPARE if self.task.turn.take() else None
        return Next.TRAIN if complete and self.task.turn.take() else None

    def _compare(self) -> None:
        """Compare the policy that has sampled the first group with the one that the trainer holds, once in an attempt.

        Raises:
            UserError: they differ: nothing is learnt.
        """
        self.task.spend(Use.LOADING)
        position = rendezvous.on_rank_zero(lambda: self.reader.comparable)
        assert position is not None  # the first rank has seen it
        rollouts = rendezvous.together(lambda: comparable(self.reader.group(position), self.iteration))
        measured = agreement(self.engine, rollouts)
        group = self.task.layout.group(self.iteration, position)
        refuse_disagreement(measured, self.task.recipe, self.iteration, group)
        self._compared = True

    def _refuse_to_be_late(self) -> None:
        """Request the end of this task where the next step and its checkpoint would not end before the time limit."""
        needed = self._longest_step_s + self.artifacts.longest_save_s
        if needed and self.task.seconds_left < needed + SPARE_S and not self.task.shutdown.given:
            left = f"{self.task.seconds_left:.0f} s are left, and a step with its checkpoint takes {needed:.0f} s"
            self.task.shutdown.interrupt(RequeueRequested(f"gave the nodes back: {left}"))

    def _leave(self) -> None:
        """Save the state that no checkpoint has, and leave.

        Raises:
            Interrupted: always.
        """
        self._save()
        self.task.shutdown.leave_if_given()
        raise Interrupted(128 + 15)  # the first rank had the request, this one not yet

    def _save(self) -> None:
        """Write a checkpoint of a state that none has, before the task ends."""
        if self.artifacts.saved != self.iteration:
            self.turns.regain()
            self.artifacts.save(self.iteration)

    def _iterate(self, timeline: Timeline) -> None:
        """One iteration: update, publish, checkpoint.

        What an algorithm draws in ``learnt`` follows from the run's seed and the iteration, the same on all ranks.
        """
        seed_generators(derive_seed(self.task.recipe.seed, "trainer", self.iteration))
        self._compared = True
        self.task.spend(Use.LOADING)
        with timeline.phase(Phase.LOADING):
            data = rendezvous.together(self.reader.data)
        self.task.spend(Use.TRAINING)
        with timeline.phase(Phase.OPTIMISATION):
            keep = partial(self.artifacts.keep_skipped, self.iteration)
            stats = self.engine.update([*data.sequences, *data.branches], keep)
        self._longest_step_s = max(self._longest_step_s, timeline.working)
        done, self.reader = self.iteration, self.readers(self.iteration + 1)
        self.artifacts.publisher.state = f"{self.task.attempt}:{done}"
        self.artifacts.emit(EventKind.STEP, iteration=done)
        if checkpoint_due := self._checkpoint_due():
            # The metrics come first: a checkpoint means that its iteration is wholly accounted for.
            self.artifacts.write_metrics(self._metrics(done, data, stats, timeline))
        with timeline.phase(Phase.PUBLISHING):
            self.artifacts.publish(self.iteration)
        if checkpoint_due:
            with timeline.phase(Phase.CHECKPOINT):
                self.artifacts.save(self.iteration)
        metrics = self._metrics(done, data, stats, timeline)
        self.artifacts.write_metrics(metrics)
        self.tracker.log(metrics)
        reward = "" if metrics.reward_mean is None else f"reward {metrics.reward_mean:.3f}, "
        weights, seconds = self.iteration, timeline.total
        log.info("iteration %d: %sloss %.4f, weights version %d, %.1f s", done, reward, stats.loss, weights, seconds)
        for warning in metrics.warnings:
            log.warning("%s", warning)

    def _checkpoint_due(self) -> bool:
        """Whether a checkpoint is written now: at the recipe's interval, and at the end of a segment, where another job
        continues.
        """
        return (
            self.iteration % self.task.recipe.training.checkpoint_every == 0
            or self.iteration == self.task.job.end_iteration
        )

    def _metrics(self, iteration: int, data: Learnt, stats: UpdateStats, timeline: Timeline) -> IterationMetrics:
        rollouts, source = data.batch.rollouts if data.batch is not None else [], self.task.recipe.data
        traces = [(self.statements[r.problem_id], r.text) for r in rollouts if not r.forced]
        quality = trace_quality(source, traces) if traces and isinstance(source, SmallWorldProblems) else {}
        return iteration_metrics(iteration, data, stats, timeline, quality)


@dataclass
class TurnTaking:
    """The turns of a trainer that shares its GPUs with the process that samples. All ranks call every method
    together, unless it says otherwise.

    Before a wait its tensors leave the GPUs, and only then the turn is passed on; they come back after it has the turn
    again. A trainer that has its GPUs for itself always has the turn, and nothing is moved.
    """

    task: Task
    _parked: list[Parked] = field(default_factory=list, init=False)

    @property
    def may_pass_on(self) -> bool:
        """Whether another process may get the turn from this one; the first rank knows it."""
        return self.task.turn.is_shared and self.task.turn.is_mine

    def pass_on(self) -> None:
        """Free the memory of the GPUs on all ranks, and then give the turn to the process that samples."""
        if device().type != "cpu":
            self._parked += park(device().type)
        rendezvous.agree(None)
        self.task.turn.pass_on()

    def resume(self) -> None:
        """Bring everything back to the GPUs, after the first rank has taken the turn."""
        unpark(self._parked)

    def regain(self) -> None:
        """Ask the process that samples to end, take the turn, and bring everything back.

        Raises:
            UserError: it keeps the turn.
        """
        rendezvous.on_rank_zero(self._take)
        self.resume()

    def _take(self) -> None:
        if self.task.companion is not None:
            self.task.companion.interrupt()
        wait_until(
            self.task.turn.take,
            reason="the process that samples to leave the GPUs, so that what was trained can be saved",
            deadline_s=REGAIN_DEADLINE_S,
            where=self.task.turn.path if self.task.companion is None else self.task.companion.log,
            advice="nothing: the task runs again from its last checkpoint; "
            f"mrt-hpc status {self.task.layout.word} shows it",
        )
