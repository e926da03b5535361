"""The trainer role: for each iteration of a segment it waits for rollouts, updates, publishes and writes a checkpoint.

The order makes every instant safe to be killed at: metrics, weights (so that sampling goes on), checkpoint. Work after
the checkpoint resumed from is set aside and computed again. A trainer that is asked to leave saves first, between two
iterations.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from mrt_hpc.algorithms.batch import Learnt
from mrt_hpc.analysis.measures import IterationMetrics, Phase
from mrt_hpc.domains.domain import domain_of
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.roles.sampling.verified_weights import verified_weights
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
from mrt_hpc.training import checkpoint, rank_messages, rendezvous
from mrt_hpc.training.accelerator import choose_kernels, device, seed_generators
from mrt_hpc.training.engine import TrainerEngine, build
from mrt_hpc.training.host_memory import Parked, park, unpark
from mrt_hpc.training.rendezvous import Ranks
from mrt_hpc.training.settings import Objective, TrainerSettings
from mrt_hpc.training.update_statistics import UpdateStats

log = logging.getLogger(__name__)

REGAIN_DEADLINE_S = 60.0
"""For the sampling process to end its server when this one has to save and leave."""
ROUND_S = 30.0
"""After which a waiting rank 0 reports to the other ranks, well below their time-out."""
LONGEST_EXCHANGE_S = 1800.0
"""Time-out of an exchange between ranks. Waiting for room on a full disk is added."""
SPARE_S = 60.0
"""Before the time limit, the trainer begins nothing that would end later."""


class Next(Enum):
    WAIT = "wait"
    COMPARE = "compare"
    """The first group is there: its sampler's policy must equal the trainer's."""
    TRAIN = "train"
    PUBLISH = "publish"
    """A weights version that inference needs was damaged and set aside. It is published as a whole model, so that it
    depends on no other.
    """
    PASS_ON = "pass on"
    """Leave the GPUs to the sampling process, and wait."""
    LEAVE = "leave"


def run(task: Task) -> None:
    """Train the segment's iterations; called on every rank.

    Raises:
        Interrupted: the task was asked to leave, and has saved its state.
    """
    choose_kernels(task.recipe.training.deterministic)
    ranks = Ranks(task.rank, task.world_size, task.local_rank, task.job.resources.nodes)
    limit_s = LONGEST_EXCHANGE_S + task.recipe.resilience.full_disk_minutes * 60
    rendezvous.join(ranks, task.layout.rendezvous / f"{task.log_stem}.json", limit_s)
    try:
        if rank_messages.run_on_rank_zero(lambda: was_trained(task)):
            log.info("all iterations of the segment are trained, published and in a checkpoint already")
            return
        with Tracker.of(task) as tracker:
            trainer = Trainer.resume_from_checkpoint(task, ranks, tracker)
            with task.shutdown.defer_to_safe_points():
                while trainer.iteration < task.job.end_iteration:
                    trainer.go_on()
            task.spend(Use.ENDING)
    finally:
        rendezvous.leave()


def was_trained(task: Task) -> bool:
    """Whether an earlier attempt trained the segment. Syncs its commits, as it may have been killed before."""
    if not is_trained(task):
        return False
    for folder in (task.layout.weights, task.layout.checkpoints):
        task.retry(partial(sync_names, folder), f"syncing {folder}")
    return True


def trainer_settings(recipe: Recipe) -> TrainerSettings:
    learns_rollouts = recipe.algorithm.samples_rollouts
    return TrainerSettings(
        recipe.training,
        total_steps=recipe.schedule.iterations * recipe.training.optimizer_steps_per_iteration,
        # Given samples were not drawn from the policy, so no temperature was applied to them.
        temperature=recipe.sampling.temperature if learns_rollouts else 1.0,
        objective=Objective.POLICY_GRADIENT if learns_rollouts else Objective.LIKELIHOOD,
        seed=recipe.seed,
        longest=recipe.algorithm.cost(recipe, 0).longest,
        longest_trace=recipe.sampling.max_tokens,
    )


@dataclass
class Trainer:
    """The trained policy and its iteration. Methods are collective unless they say otherwise."""

    task: Task
    engine: TrainerEngine
    tracker: Tracker
    artifacts: TrainingArtifacts
    readers: Callable[[int], IterationReader]
    """By iteration."""
    reader: IterationReader
    statements: dict[str, str]
    """Training problems by id; None where given samples are learnt."""
    turns: "TurnTaking" = field(init=False)
    _longest_step_s: float = 0.0
    _compared: bool = False
    """Whether this attempt has compared a group, or could not before its first update."""

    def __post_init__(self) -> None:
        self.turns = TurnTaking(self.task)

    @property
    def iteration(self) -> int:
        return self.reader.iteration

    @staticmethod
    def resume_from_checkpoint(task: Task, ranks: Ranks, tracker: Tracker) -> "Trainer":
        """The trainer at the newest good checkpoint, or at weights version 0."""
        layout, recipe = task.layout, task.recipe
        name = rank_messages.run_on_rank_zero(lambda: newest.name if (newest := newest_good_checkpoint(task)) else None)
        newest = None if name is None else layout.checkpoints / name
        readers = iteration_readers(task)  # before anything that takes long: given samples may be missing
        if newest is None or recipe.training.kl_coefficient > 0:  # training begins with it, or refers to it
            rank_messages.run_on_rank_zero(lambda: verified_weights(task, 0).version)
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
        timeline = Timeline()
        with timeline.phase(Phase.WAITING):
            what = self._await_next_or_save()
        if what is Next.LEAVE:
            self._leave()
        elif what is Next.PUBLISH:
            self.artifacts.publish(self.iteration)
        elif what is Next.COMPARE:
            self._compare()
        else:
            self._iterate(timeline)

    def _await_next_or_save(self) -> Next:
        """Unsaved state is saved before a wait is given up."""
        try:
            return self._await_next()
        except UserError:
            self._save()
            if self.task.rank == 0:
                self.reader.reopen_samplers()
            raise

    def _await_next(self) -> Next:
        """All ranks get the same answer."""
        wait = self.task.peer_wait(f"rollouts of iteration {self.iteration}", self.reader.samplers)

        # No rank waits longer than a round for the first one.
        def look() -> Next:
            return Next(rank_messages.run_on_rank_zero(lambda: self._look_for_a_round(wait).value))

        while (what := look()) in (Next.WAIT, Next.PASS_ON):
            if what is Next.PASS_ON:
                self.turns.pass_on()
        if what is not Next.LEAVE:
            self.turns.resume()
        return what

    def _look_for_a_round(self, wait: PeerWait) -> Next:
        """Rank 0's next step, or WAIT after a round without one."""
        end = time.monotonic() + ROUND_S

        def look() -> Next | None:
            if (claimed := self._next()) is not None:
                return claimed
            if self.turns.may_pass_on:
                return Next.PASS_ON
            return Next.WAIT if time.monotonic() > end else None

        return self.task.wait_for_peers(wait, look)

    def _next(self) -> Next | None:
        self._refuse_to_be_late()
        if self.task.shutdown.is_given:
            return Next.LEAVE
        if not self.artifacts.is_published(self.iteration):
            return Next.PUBLISH if self.task.turn.take() else None
        complete = self.reader.is_complete()
        if not self._compared and self.reader.comparable is not None:
            return Next.COMPARE if self.task.turn.take() else None
        return Next.TRAIN if complete and self.task.turn.take() else None

    def _compare(self) -> None:
        """Compare the policy with the sampler of the first group, once in an attempt."""
        self.task.spend(Use.LOADING)
        position = rank_messages.run_on_rank_zero(lambda: self.reader.comparable)
        assert position is not None  # the first rank has seen it
        rollouts = rank_messages.together(lambda: comparable(self.reader.group(position), self.iteration))
        measured = agreement(self.engine, rollouts)
        group = self.task.layout.group(self.iteration, position)
        refuse_disagreement(measured, self.task.recipe, self.iteration, group)
        self._compared = True

    def _refuse_to_be_late(self) -> None:
        """Ask this task to end where the next step and checkpoint would pass the time limit."""
        needed = self._longest_step_s + self.artifacts.longest_save_s
        if needed and self.task.seconds_left < needed + SPARE_S and not self.task.shutdown.is_given:
            left = f"{self.task.seconds_left:.0f} s are left, and a step with its checkpoint takes {needed:.0f} s"
            self.task.shutdown.interrupt(RequeueRequested(f"gave the nodes back: {left}"))

    def _leave(self) -> None:
        self._save()
        self.task.shutdown.leave_if_given()
        raise Interrupted(128 + 15)  # the first rank had the request, this one not yet

    def _save(self) -> None:
        if self.artifacts.saved != self.iteration:
            self.turns.regain()
            self.artifacts.save(self.iteration)

    def _iterate(self, timeline: Timeline) -> None:
        """An algorithm's draws in ``learnt`` follow from seed and iteration, the same on all ranks."""
        seed_generators(derive_seed(self.task.recipe.seed, "trainer", self.iteration))
        self._compared = True
        self.task.spend(Use.LOADING)
        with timeline.phase(Phase.LOADING):
            data = rank_messages.together(self.reader.data)
        self.task.spend(Use.TRAINING)
        with timeline.phase(Phase.OPTIMISATION):
            keep = partial(self.artifacts.keep_skipped, self.iteration)
            stats = self.engine.update([*data.sequences, *data.branches], keep)
        self._longest_step_s = max(self._longest_step_s, timeline.working_seconds)
        done, self.reader = self.iteration, self.readers(self.iteration + 1)
        self.artifacts.publisher.state = f"{self.task.attempt}:{done}"
        self.artifacts.emit(EventKind.STEP, iteration=done)
        # A checkpoint is due at the recipe's interval, and at a segment's end, where another job continues.
        ends, every = self.iteration == self.task.job.end_iteration, self.task.recipe.training.checkpoint_every
        if checkpoint_due := ends or self.iteration % every == 0:
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
        figures = (done, reward, stats.loss, self.iteration, timeline.total)
        log.info("iteration %d: %sloss %.4f, weights version %d, %.1f s", *figures)
        for warning in metrics.warnings:
            log.warning("%s", warning)

    def _metrics(self, iteration: int, data: Learnt, stats: UpdateStats, timeline: Timeline) -> IterationMetrics:
        rollouts, source = data.batch.rollouts if data.batch is not None else [], self.task.recipe.data
        traces = [(self.statements[r.problem_id], r.text) for r in rollouts if not r.forced]
        quality = domain_of(source).quality(traces) if traces else {}
        return iteration_metrics(iteration, data, stats, timeline, quality)


@dataclass
class TurnTaking:
    """Turns of a trainer that shares its GPUs with sampling. Methods are collective unless they say otherwise.

    Tensors leave the GPUs before the turn is passed on, and return after it is regained. A trainer with its own GPUs
    always has the turn, and nothing moves.
    """

    task: Task
    _parked: list[Parked] = field(default_factory=list, init=False)

    @property
    def may_pass_on(self) -> bool:
        """Whether another process may get the turn; known on the first rank."""
        return self.task.turn.is_shared and self.task.turn.is_mine

    def pass_on(self) -> None:
        if device().type != "cpu":
            self._parked += park(device().type)
        rank_messages.agree(None)
        self.task.turn.pass_on()

    def resume(self) -> None:
        """The first rank has taken the turn."""
        unpark(self._parked)

    def regain(self) -> None:
        """Ask the sampling process to end, take the turn, and restore GPU memory."""
        rank_messages.run_on_rank_zero(self._take)
        self.resume()

    def _take(self) -> None:
        if self.task.companion is not None:
            self.task.companion.interrupt()
        wait_until(
            self.task.turn.take,
            reason="the process that samples to leave the GPUs, so that what was trained can be saved",
            deadline_s=REGAIN_DEADLINE_S,
            where=self.task.turn.path if self.task.companion is None else self.task.companion.log,
            advice=Advice(
                "nothing: the task runs again from its last checkpoint; mrt-hpc status {run} shows it",
                run=self.task.layout.root,
            ),
        )
