"""A colocated run on this machine whose sampling process is killed; a trainer that is killed: ``tests/unit``."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from chaos_auditor import audit
from chaos_backends import ROOT, started, submit_command
from chaos_target import Target
from conftest import task_in
from run_of import read_events
from samples import draw_problems, rollout, sampled

from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.task.context import Companion
from mrt_hpc.roles.trainer import Next, Trainer
from mrt_hpc.roles.training.artifacts import TrainingArtifacts
from mrt_hpc.roles.training.iteration_data import iteration_readers
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import commit_group, complete_groups
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.retries import wait_until
from mrt_hpc.run.task_state import TaskState, read_task
from mrt_hpc.run.turns import Turn
from mrt_hpc.run.weights import publish

Killed = tuple[RunLayout, str]

T = TypeVar("T")
ITERATIONS, GROUPS = 2, 4
JOB = "segment-000.colocated"
SMALL = (
    "schedule.coupling=colocated", f"schedule.iterations={ITERATIONS}", f"schedule.iterations_per_job={ITERATIONS}",
    f"sampling.problems_per_iteration={GROUPS}", "sampling.rollouts_per_problem=4", "sampling.max_tokens=64",
    "serving.kv_cache_gib=0.25", "evaluation.benchmarks=[]",
)  # fmt: skip
DEADLINE_S = 400


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """A run whose sampling process was killed in iteration 0, and what the record of the task then said."""
    layout = RunLayout(tmp_path_factory.mktemp("colocated") / "run")
    target = Target(layout, None, None, None)
    process = started(submit_command(layout.root, SMALL))

    def is_running() -> None:
        assert process.poll() is None, "the run ended before its sampling process was killed"

    def when(condition: Callable[[], T], what: str) -> T:
        return wait_until(condition, reason=what, deadline_s=DEADLINE_S, check=is_running, longest_pause_s=0.01)

    try:
        when(lambda: complete_groups(layout.groups(0)), "a group")
        (sampling,) = target.tasks("inference")
        sampling.kill()
        message = when(lambda: read_task(layout, JOB, 0).message, "the record of the failure")
        assert process.wait(DEADLINE_S) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return layout, message


def test_a_segment_is_one_task_that_fails_with_its_sampling_process_and_ends_well(killed: Killed) -> None:
    layout, message = killed
    assert "the process that samples for this task has ended with exit code -9" in message
    assert read_task(layout, JOB, 0).state is TaskState.DONE and layout.report.is_file()
    assert {path.name for path in (layout.root / "tasks").iterdir()} == {"prepare", JOB, "report"}


def test_nothing_is_done_twice_or_lost_and_iterations_are_those_of_any_coupling(killed: Killed) -> None:
    layout, _ = killed
    committed = Counter((e["iteration"], e["position"]) for e in read_events(layout.events, EventKind.GROUP_COMMITTED))
    assert max(committed.values()) == 1
    found = audit(layout.root)
    assert (found.violations, found.steps_redone, found.groups_discarded) == ([], 0, 0)


# -- the trainer's side of the turns


HOLDER = """
import sys, time
from pathlib import Path
from mrt_hpc.run.turns import Turn
turn = Turn(Path(sys.argv[1]))
print(turn.take(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the turn until it is told to end."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "turn")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"True\n"
        yield process
        process.kill()


def trainer_beside(tmp_path: Path, holder: subprocess.Popen[bytes]) -> Trainer:
    """A trainer whose first iteration is sampled, beside a process that has the turn. It has no engine yet."""
    task = task_in(tmp_path / "run", load_recipe(ROOT / "recipes" / "quickstart.yaml", SMALL), JOB)
    publish(task.layout, 0, lambda directory: (directory / "model.safetensors").touch())
    drawn = draw_problems(read_problems(task.layout.train_data), task.recipe.seed, 0, GROUPS)
    for position, problem in enumerate(drawn):
        commit_group(task.layout.group(0, position), sampled(*(rollout(problem.id, number) for number in range(4))))
    task = replace(task, turn=Turn(tmp_path / "turn"), companion=Companion(holder, tmp_path / "log"))
    engine: Any = None
    readers = iteration_readers(task)
    trainer = Trainer(task, engine, engine, TrainingArtifacts(task, engine, saved=0), readers, readers(0), {})
    trainer._compared = True  # an engine would do it
    return trainer


def test_nothing_is_trained_without_the_turn(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    trainer = trainer_beside(tmp_path, holder)
    assert trainer.reader.is_complete() and trainer._next() is None
    holder.kill()
    holder.wait()
    assert trainer._next() is Next.TRAIN


@pytest.mark.usefixtures("one_rank")
def test_a_trainer_that_has_to_save_takes_the_turn(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    trainer = trainer_beside(tmp_path, holder)
    assert not trainer.turns.may_pass_on
    trainer.turns.regain()
    assert trainer.turns.may_pass_on and holder.wait(30) == -signal.SIGTERM
    trainer.turns.pass_on()
    assert not trainer.task.turn.is_mine
