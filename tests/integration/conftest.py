"""What the integration tests share: a finished quickstart, a task in a run of its own, and one rank of a trainer."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_commands import WITH_TASKS, run_command
from forked_tasks import forked_servers
from new_user import NewUser

from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.submit.create import create_or_open
from mrt_hpc.training.rendezvous import Ranks

ROOT = Path(__file__).parents[2]
SMALL, WHOLE = "test_small_run.py", "test_quickstart_learns.py"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The quickstart shows more than the smallest run, which is left out where both are asked for."""
    if {SMALL, WHOLE} <= {item.path.name for item in items}:
        config.hook.pytest_deselected(items=[item for item in items if item.path.name == SMALL])
        items[:] = [item for item in items if item.path.name != SMALL]


def printed(*words: str | Path) -> str:
    """What ``mrt-hpc`` with these words prints in a process of its own, which ends well."""
    command = [sys.executable, "-m", "mrt_hpc", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2400, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def printed_by_forks(*words: str | Path) -> str:
    """The same where the command, its tasks and its servers are forks: see ``forked_tasks``."""
    status, said = run_command(words, {**os.environ, "PYTHONPATH": str(ROOT)}, Path.cwd(), WITH_TASKS)
    assert status == 0, said
    return said


def submit(recipe: Path, run: Path, *options: str) -> str:
    return printed("submit", recipe, "--run", run, *options)


def task_in(run: Path, recipe: Recipe, job: str) -> Task:
    """The running task of a job, in a run directory that is made for it."""
    layout = create_or_open(run, recipe, compile_plan(recipe, LocalSite()))
    write_task(layout, job, 0, TaskRecord(TaskState.RUNNING, attempt="a.0"))
    return load_task(layout, job, 0, Placement(0, 1, 0, "a.0"))


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    """A finished run of the quickstart, typed in an empty folder: one for all processes that share the tests."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    user = NewUser.of(shared / "quickstart")
    layout = RunLayout(user.folder / "runs" / "quickstart")
    with (shared / "quickstart.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first process makes it, the others wait for that
        if not layout.report.is_file():
            status, printed = user.types("submit", ROOT / "recipes/quickstart.yaml")
            assert status == 0 and str(layout.report) in printed, printed
    return layout


@pytest.fixture(scope="module")
def vllm_is_loaded() -> Iterator[None]:
    """Servers that the tests of a file start are forks: see ``forked_tasks``."""
    with forked_servers():
        yield


@pytest.fixture(scope="session")
def one_rank() -> Iterator[Ranks]:
    """This process as a trainer of one rank: once for all modules, as DeepSpeed joins no second group."""
    import torch  # tests of other kinds need not load it

    from mrt_hpc.training.accelerator import choose_kernels
    from mrt_hpc.training.rendezvous import Ranks, join, leave

    torch.set_num_threads(1)
    choose_kernels(None)
    join(Ranks(), timeout_s=60)
    yield Ranks()
    leave()
