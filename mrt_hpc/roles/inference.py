"""The inference role: samples the rollouts and branches of a segment, group by group.

The task leases groups of the oldest incomplete iteration for which the weights are fresh enough, and forks branches
while the server's cache holds the prefixes. Other tasks take over a lost task's groups.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_pool import Servers
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.recipe.sections import WeightSwap
from mrt_hpc.roles.sampling import rolling_sampler, round_sampler
from mrt_hpc.roles.sampling.grading import grader_pool
from mrt_hpc.roles.sampling.ray_cluster import join_nodes, lend_node, release_ranks, spans_nodes
from mrt_hpc.roles.sampling.serving import OwnServers, Rest, client_of, room_of
from mrt_hpc.roles.sampling.verified_weights import Prefetch, collecting_weights, verified_weights
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.task.shutdown import run_until_asked_to_leave
from mrt_hpc.run.events import EventKind, Use
from mrt_hpc.run.layout import is_collection
from mrt_hpc.run.manifest import DamagedError
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import Problem
from mrt_hpc.run.weights import Weights, published_digest

log = logging.getLogger(__name__)


def run(task: Task) -> None:
    """Sample missing groups until the segment's last weights version is published. Of several nodes the first rank does
    so, and the others lend it theirs.
    """
    if spans_nodes(task) and task.rank > 0:
        lend_node(task)
        return
    with release_ranks(task):
        _sample_segment(task)


def _sample_segment(task: Task) -> None:
    problems = read_problems(task.layout.train_data)
    if round_sampler.Rounds(task, len(problems)).await_round() is None:
        log.info("all groups of the segment are sampled already")
        return
    task.spend(Use.STARTING)
    policy = policy_servers(task)
    try:
        watch = round_sampler.NeedWatch(round_sampler.Rounds(task, len(problems)))
        with policy.load_ahead(), ExitStack() as stack:
            weights = verified_weights(task, 0)  # never removed, however long the server takes to start
            worker = Worker.of(task, problems, weights)
            equipment = stack.enter_context(start_equipment(policy, weights, worker.max_model_len, watch))
            rest = Rest(task.turn, equipment.servers)
            # other tasks have continued while the server started
            while (work := round_sampler.Rounds(task, len(problems), rest.begin).await_round()) is not None:
                rest.end()
                if worker.has_weights(work, equipment.server):
                    task.spend(Use.GENERATING)
                    worker.sample(work, equipment)
            task.spend(Use.ENDING)
    except round_sampler.NotNeededError:
        log.info("other tasks have sampled all that was left while the server of this task started")


@dataclass(frozen=True)
class Equipment:
    server: Servers
    """Of the policy."""
    mu: Servers | None
    """Of the prover, where that is another model."""
    pool: GraderPool

    @property
    def servers(self) -> list[VllmServer]:
        return [*self.server.each, *(self.mu.each if self.mu is not None else ())]


def policy_servers(task: Task) -> OwnServers:
    """The task's own servers; those of a separate prover take their share."""
    prover = task.recipe.prover
    share = 1.0 if prover is None or prover.model is None else 1.0 - prover.memory_share
    return OwnServers(task, prover is not None and prover.shares_seeds, share)


@contextmanager
def start_equipment(
    policy: OwnServers, weights: Weights, max_model_len: int, watch: round_sampler.NeedWatch
) -> Iterator[Equipment]:
    """Start a task's servers and graders for the block.

    Raises:
        NotNeededError: the segment was already over.
    """
    task, prover = policy.task, policy.task.recipe.prover
    with ExitStack() as stack:
        stack.enter_context(join_nodes(task))
        pool = stack.enter_context(grader_pool(task.recipe, task.recipe.problems))
        server = stack.enter_context(policy.serve(weights, max_model_len, watch.look))
        if prover is None or prover.model is None:
            yield Equipment(server, None, pool)
            return
        own = replace(policy, share=prover.memory_share, name="vllm-mu")
        length = prover.model_max_tokens or max_model_len
        mu = own.serve(Weights(0, "", Path(prover.model)), length, watch.look)
        yield Equipment(server, stack.enter_context(mu), pool)


@dataclass
class Worker:
    """Samples rounds in turn through the task's servers."""

    task: Task
    policy: ProverModel
    prover_maker: ProverFactory | None
    problems: list[Problem]
    weights: Weights
    loading_s: float = 0.0
    """Of the current round's weights."""
    prefetch: Prefetch | None = None
    """Verified while the last round was sampled."""

    @staticmethod
    def of(task: Task, problems: list[Problem], weights: Weights) -> "Worker":
        prompter = Prompter.of(task.layout.weights_version(0), task.recipe.prompt)
        policy, wanted = ProverModel.of(prompter), task.recipe.prover
        maker = None if wanted is None else ProverFactory.of(wanted, policy, task.recipe.seed)
        return Worker(task, policy, maker, problems, weights)

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence that the server must hold."""
        sampling, maker = self.task.recipe.sampling, self.prover_maker
        question = 0 if maker is None else maker.longest_question
        return sampling.max_prompt_tokens + sampling.max_tokens + question

    def has_weights(self, work: round_sampler.Round, server: Servers) -> bool:
        """Load a round's weights into the server; False when they are damaged or missing."""
        started = time.monotonic()
        try:
            if not self._is_loaded(work.version):
                self.task.spend(Use.LOADING)
                self._load(self._verify_weights(work), server)
        except DamagedError as damage:
            log.warning("the trainer has to publish weights version %d again: %s", work.version, damage)
            return False
        finally:
            self.loading_s = time.monotonic() - started
        return True

    def _verify_weights(self, work: round_sampler.Round) -> Weights:
        """A round's weights, verified during the last round or now."""
        if self.prefetch is not None and (ready := self.prefetch.weights(work.version)) is not None:
            return ready
        if is_collection(work.iteration):
            return collecting_weights(self.task, work.version)
        return verified_weights(self.task, work.version)

    def _is_loaded(self, version: int) -> bool:
        """Versions count as loaded by number and digest."""
        return (version, published_digest(self.task.layout, version)) == (self.weights.version, self.weights.digest)

    def _load(self, weights: Weights, server: Servers, swap: WeightSwap = WeightSwap.DRAIN) -> None:
        started = time.monotonic()
        server.load_weights(weights.directory, weights.version, swap)
        self.weights = weights
        seconds = time.monotonic() - started
        self.task.events.emit(
            EventKind.WEIGHTS_LOADED, version=weights.version, digest=weights.digest, swap=swap.value, seconds=seconds
        )

    def sample(self, work: round_sampler.Round, equipment: Equipment) -> None:
        """Claim, sample, grade and commit. Without draining, later rounds follow at once."""
        self.prefetch = Prefetch(self.task.layout, self.weights.version, self._last_version(work))
        with self.prefetch.watch_versions():
            run_until_asked_to_leave(self.task.shutdown, self._sample(work, equipment))

    def _last_version(self, work: round_sampler.Round) -> int:
        """The newest version that may appear in a round and be used after it. With max_staleness 0 the trainer waits
        for all groups.
        """
        if is_collection(work.iteration) or not self.task.recipe.schedule.max_staleness:
            return work.version
        return self.task.job.end_iteration - 1

    async def _sample(self, work: round_sampler.Round, equipment: Equipment) -> None:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(client_of(self.task, equipment.server))
            other = equipment.mu
            mu = client if other is None else await stack.enter_async_context(client_of(self.task, other))
            sampler = round_sampler.RoundSampler(
                task=self.task,
                policy=self.policy,
                prover_maker=self.prover_maker,
                problems=self.problems,
                pool=equipment.pool,
                client=client,
                mu=mu,
                held=lambda: self.weights,
                room=room_of(self.task, equipment.server),
                sampling=set(),
            )
            swap = self.task.recipe.schedule.weight_swap
            if swap is WeightSwap.DRAIN or is_collection(work.iteration):
                await sampler.sample(work, self.loading_s)
                return
            rolling = rolling_sampler.RollingSampler(
                sampler, self._round_to_follow, partial(self._take_over, equipment.server, swap)
            )
            await rolling.sample(work, self.loading_s)

    def _round_to_follow(self, sampling: frozenset[round_sampler.GroupPlace]) -> round_sampler.Round | None:
        """The next round for the server's weights. None where these were set aside, as training went back: the server
        is drained and loads others.
        """
        if not self._is_loaded(self.weights.version):
            return None
        return round_sampler.Rounds(self.task, len(self.problems)).next_round(self.weights.version, sampling)

    def _take_over(self, server: Servers, swap: WeightSwap) -> bool:
        """Load the newest verified weights during sampling; False where the server holds them already."""
        newer = None if self.prefetch is None else self.prefetch.newer_than(self.weights.version)
        if newer is None:
            return False
        self.task.spend(Use.LOADING)
        self._load(newer, server, swap)
        self.task.spend(Use.GENERATING)
        return True
