"""The inference role: it samples the rollouts and branches of a segment's iterations, group by group.

The task owns a vLLM server for as long as the segment lasts. It takes leases on groups without a lease, of the
oldest iteration that is incomplete and for which the weights are fresh enough; samples them, forks branches while the
prefixes are in the server's cache, grades, and commits each group when its last trace is finished. Tasks may come and
go at any time: the groups of one that is lost are taken over, and one that comes back finds what is left.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.sampler import Generator
from mrt_hpc.inference.server_control import Server, Servers
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.recipe.sections import WeightSwap
from mrt_hpc.roles.sampling import round_sampler
from mrt_hpc.roles.sampling.grading import grader_pool
from mrt_hpc.roles.sampling.ray_cluster import for_all_ranks, joined, lend_node, spans_nodes
from mrt_hpc.roles.sampling.serving import OwnServers, Rest, client_of, policy_server, room_of
from mrt_hpc.roles.sampling.weights_on_node import LocalWeights, Prefetch, collecting_weights, verified_weights
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
    """Sample the groups that the segment lacks, until its last weights version is published. In a task of several nodes
    the first rank does that, and the others lend it their nodes.

    Raises:
        UserError: the trainer failed; it does not run, and the nodes are given back; or something in the recipe does
            not fit the model.
    """
    if spans_nodes(task) and task.rank > 0:
        lend_node(task)
        return
    with for_all_ranks(task):
        _sample_segment(task)


def _sample_segment(task: Task) -> None:
    """What the first rank does, see :func:`run`."""
    problems = read_problems(task.layout.train_data)
    if round_sampler.Rounds(task, len(problems)).awaited() is None:
        log.info("all groups of the segment are sampled already")
        return
    task.spend(Use.STARTING)
    policy = policy_servers(task)
    try:
        watch = round_sampler.NeedWatch(round_sampler.Rounds(task, len(problems)))
        with ExitStack() as stack:
            if task.experiment.serving.attach is None:
                stack.enter_context(policy.loading())
            weights = verified_weights(task, 0)  # never removed, however long the server takes to start
            worker = Worker.of(task, problems, weights)
            stack.enter_context(worker.local.open())
            equipment = stack.enter_context(equipped(policy, weights, worker.max_model_len, watch))
            rest = Rest(task.turn, equipment.servers)
            # other tasks have continued while the server started
            while (work := round_sampler.Rounds(task, len(problems), rest.begin).awaited()) is not None:
                rest.end()
                if worker.has_weights(work, equipment.server):
                    task.spend(Use.GENERATING)
                    worker.sample(work, equipment)
            task.spend(Use.ENDING)
    except round_sampler.NotNeededError:
        log.info("other tasks have sampled all that was left while the server of this task started")


@dataclass(frozen=True)
class Equipment:
    """What a task samples and grades with."""

    server: Servers
    """The servers of the policy."""
    mu: Servers | None
    """The servers of the prover, where that is another model."""
    pool: GraderPool

    @property
    def servers(self) -> list[Server]:
        """All of them."""
        return [*self.server.each, *(self.mu.each if self.mu is not None else ())]


def policy_servers(task: Task) -> OwnServers:
    """The task's own servers of the policy, beside which those of a prover's own model take their share."""
    prover = task.recipe.prover
    share = 1.0 if prover is None or prover.model is None else 1.0 - prover.memory_share
    return OwnServers(task, prover is not None and prover.shares_seeds, share)


@contextmanager
def equipped(
    policy: OwnServers, weights: Weights, max_model_len: int, watch: round_sampler.NeedWatch
) -> Iterator[Equipment]:
    """Start the servers and graders of a task for the length of the block.

    Raises:
        NotNeededError: the segment was over before.
    """
    task, prover = policy.task, policy.task.recipe.prover
    with ExitStack() as stack:
        cluster = stack.enter_context(joined(task))
        nodes = () if cluster is None else cluster.nodes
        pool = stack.enter_context(grader_pool(task, task.recipe.problems, nodes))
        server = stack.enter_context(policy_server(policy, weights, max_model_len, watch.look))
        if prover is None or prover.model is None:
            yield Equipment(server, None, pool)
            return
        own = replace(policy, share=prover.memory_share, name="vllm-mu")
        length = prover.model_max_tokens or max_model_len
        mu = own.running(Weights(0, "", Path(prover.model)), length, watch.look)
        yield Equipment(server, stack.enter_context(mu), pool)


@dataclass
class Worker:
    """Samples one round after the other through the servers of a task."""

    task: Task
    policy: ProverModel
    prover_maker: ProverFactory | None
    problems: list[Problem]
    weights: Weights
    """The weights version that the server holds."""
    loading_s: float = 0.0
    """Seconds that the loading of the weights took for the current round."""
    prefetch: Prefetch | None = None
    """The weights version that was verified while the last round was sampled."""
    local: LocalWeights = field(init=False)
    """Puts versions together that were published as deltas."""

    def __post_init__(self) -> None:
        self.local = LocalWeights(self.task.layout)

    @staticmethod
    def of(task: Task, problems: list[Problem], weights: Weights) -> "Worker":
        """Read the tokenizer."""
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
        """Make the server hold the weights of a round; False when they were found damaged or missing."""
        started = time.monotonic()
        try:
            if not self._is_loaded(work.version):
                self.task.spend(Use.LOADING)
                self._load(self._verified(work), server)
        except DamagedError as damage:
            log.warning("the trainer has to publish weights version %d again: %s", work.version, damage)
            return False
        finally:
            self.loading_s = time.monotonic() - started
        return True

    def _verified(self, work: round_sampler.Round) -> Weights:
        """The weights of a round: as they were verified while the last round was sampled, else verified now.

        Raises:
            DamagedError: they are damaged.
        """
        if self.prefetch is not None and (ready := self.prefetch.weights(work.version)) is not None:
            return ready
        if is_collection(work.iteration):
            return collecting_weights(self.task, work.version)
        return verified_weights(self.task, work.version, self.local)

    def _is_loaded(self, version: int) -> bool:
        """Whether the published version is the one that the server holds, by its number and digest."""
        return (version, published_digest(self.task.layout, version)) == (self.weights.version, self.weights.digest)

    def _load(self, weights: Weights, server: Servers, swap: WeightSwap = WeightSwap.DRAIN) -> None:
        started = time.monotonic()
        server.load_weights(weights.directory, weights.version, swap)
        self.weights = weights
        self.local.served(weights)
        self.task.events.emit(
            EventKind.WEIGHTS_LOADED,
            version=weights.version,
            digest=weights.digest,
            swap=swap.value,
            seconds=time.monotonic() - started,
        )

    def sample(self, work: round_sampler.Round, equipment: Equipment) -> None:
        """Claim, sample, grade and commit. Where the recipe does not drain the server, later rounds follow without a
        pause.
        """
        self.prefetch = Prefetch(self.local, self.weights.version, self._last_version(work))
        with self.prefetch.running():
            run_until_asked_to_leave(self.task.shutdown, self._sample(work, equipment))

    def _last_version(self, work: round_sampler.Round) -> int:
        """The newest weights version that may be published during a round and used after it. With max_staleness 0 the
        trainer starts only when all groups are sampled.
        """
        if is_collection(work.iteration) or not self.task.recipe.schedule.max_staleness:
            return work.version
        return self.task.job.end_iteration - 1

    async def _sample(self, work: round_sampler.Round, equipment: Equipment) -> None:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(client_of(self.task, equipment.server))
            other = equipment.mu
            mu = client if other is None else await stack.enter_async_context(client_of(self.task, other))
            sampler = self._round_sampler(equipment, client, mu)
            swap = self.task.recipe.schedule.weight_swap
            if swap is WeightSwap.DRAIN or is_collection(work.iteration):
                await sampler.sample(work, self.loading_s)
                return
            rolling = round_sampler.RollingSampler(
                sampler, self._following, partial(self._take_over, equipment.server, swap)
            )
            await rolling.sample(work, self.loading_s)

    def _round_sampler(self, equipment: Equipment, client: Generator, mu: Generator) -> round_sampler.RoundSampler:
        return round_sampler.RoundSampler(
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

    def _following(self, sampling: frozenset[round_sampler.GroupPlace]) -> round_sampler.Round | None:
        """The next round that can be sampled with the weights that the server holds. There is none where these were set
        aside, because training has gone back to an earlier state: the server is drained then, and loads others.
        """
        if not self._is_loaded(self.weights.version):
            return None
        return round_sampler.Rounds(self.task, len(self.problems)).following(self.weights.version, sampling)

    def _take_over(self, server: Servers, swap: WeightSwap) -> bool:
        """Load the newest verified weights while traces are sampled, if they are newer than those that the server
        holds; returns whether they are.
        """
        newer = None if self.prefetch is None else self.prefetch.newer_than(self.weights.version)
        if newer is None:
            return False
        self.task.spend(Use.LOADING)
        self._load(newer, server, swap)
        self.task.spend(Use.GENERATING)
        return True
