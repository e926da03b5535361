"""The side of mrt-hpc in ``bench_against_trl.py``: the code of the inference and trainer roles in one process.

    python step_of_mrt_hpc.py RUN

The server and the trainer stay loaded. A step claims, samples, grades and commits the groups of an iteration, reads
them back, updates, and publishes the weights version that the server then loads.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import benchmarking  # noqa: F401 - where run_of is found
from run_of import run_of, task_of
from step_worker import LEARNING_RATE, STEP, Load, Measured, Phases, serve

from mrt_hpc.analysis.measures import IterationMetrics, Phase
from mrt_hpc.roles import inference, prepare, trainer
from mrt_hpc.roles.sampling.round_sampler import NeedWatch, Rounds
from mrt_hpc.roles.sampling.verified_weights import verified_weights
from mrt_hpc.roles.tracking import Tracker
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import Heart
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.training import rendezvous
from mrt_hpc.training.accelerator import choose_kernels
from mrt_hpc.training.rendezvous import Ranks

JOBS = ("segment-000.inference", "segment-000.trainer")
ATTEMPT = "a"


def make_run(root: Path, load: Load) -> RunLayout:
    """A run directory with the warm-started model as weights version 0."""
    changes = {
        "name": "against-trl",
        "algorithm.type": "step_worker:BriefAnswers",
        "sampling.problems_per_iteration": load.problems,
        "sampling.rollouts_per_problem": load.rollouts,
        "sampling.max_tokens": load.max_tokens,
        "serving.max_concurrent_sequences": load.traces,
        "training.learning_rate": LEARNING_RATE,
        "training.max_tokens_per_micro_batch": load.micro_batch_tokens,
        "training.checkpoint_every": load.steps,
        "schedule.iterations": load.steps,
        "schedule.iterations_per_job": load.steps,
        "evaluation.benchmarks": [],
        "resources.inference.cpus": load.threads,
        "resources.trainer.cpus": load.threads,
    }
    layout = run_of(root, *(f"{field}={value}" for field, value in changes.items()), recipe="small_world/grpo")
    prepare.run(task_of(layout, "prepare"))
    return layout


@dataclass(frozen=True)
class Stepper:
    sampling: inference.Worker
    equipment: inference.Equipment
    training: trainer.Trainer

    def step(self) -> Measured:
        task, iteration = self.sampling.task, self.training.iteration
        phases, started = Phases(), time.perf_counter()
        work = Rounds(task, len(self.sampling.problems)).await_round()
        assert work is not None
        assert work.iteration == iteration
        with phases.of("weights"):
            assert self.sampling.has_weights(work, self.equipment.server)
        with phases.of("generation"):
            self.sampling.sample(work, self.equipment)
        with phases.of("update"):
            while self.training.iteration == iteration:  # at first it compares its policy with the sampler's
                self.training.go_on()
        seconds = time.perf_counter() - started
        metrics = IterationMetrics.read(task.layout.metrics(iteration))
        publishing = metrics.seconds.get(Phase.PUBLISHING, 0.0)
        phases.seconds["update"] -= publishing
        phases.seconds["weights"] += publishing
        assert metrics.generated_tokens is not None
        return Measured(seconds, metrics.generated_tokens, phases.seconds, phases.cpu)


def main() -> None:
    layout = RunLayout(Path(sys.argv[1]))
    sampler, learner = (task_of(layout, job) for job in JOBS)
    problems = read_problems(layout.train_data)
    with ExitStack() as stack:
        for job in JOBS:
            write_task(layout, job, 0, TaskRecord(TaskState.RUNNING, attempt=ATTEMPT))
            stack.enter_context(Heart(layout.heart(job, 0), ATTEMPT, limit_s=20.0))
        weights = verified_weights(sampler, 0)
        worker = inference.Worker.of(sampler, problems, weights)
        watch = NeedWatch(Rounds(sampler, len(problems)))
        policy = inference.policy_servers(sampler)
        equipment = stack.enter_context(inference.start_equipment(policy, weights, worker.max_model_len, watch))
        choose_kernels(learner.recipe.training.deterministic)
        rendezvous.join(Ranks())
        stack.callback(rendezvous.leave)
        tracker = stack.enter_context(Tracker.of(learner))
        stepper = Stepper(worker, equipment, trainer.Trainer.resume_from_checkpoint(learner, Ranks(), tracker))
        serve({STEP: stepper.step})


if __name__ == "__main__":
    main()
