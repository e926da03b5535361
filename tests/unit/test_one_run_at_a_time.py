"""A run is running in one place at a time, and continues with other resources when asked to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from mrt_hpc.attempt import ledger
from mrt_hpc.attempt.ledger import LocalProcess, claimed, local_process
from mrt_hpc.backends import queued_jobs
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.heartbeats import BEATS_A_LIMIT, NO_BEAT, Heart, read_beat
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.submit.create import create_or_open
from mrt_hpc.submit.renewal import is_renewed, renew

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.run.layout import RunLayout

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
HOLD = """
import signal, sys, time
from pathlib import Path
from mrt_hpc.attempt.ledger import claimed
from mrt_hpc.run.layout import RunLayout
with claimed(RunLayout(Path(sys.argv[1])), 10.0):
    if "deaf" in sys.argv:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("held", flush=True)
    while True:  # as a run waits: a signal to a suspended process may reach another of its threads than the main one
        time.sleep(0.05)
"""


def made(root: Path, *changes: str) -> tuple[RunLayout, Recipe]:
    recipe = load_recipe(QUICKSTART, changes)
    return create_or_open(root, recipe, compile_plan(recipe, LocalSite())), recipe


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return made(tmp_path / "run")[0]


@contextmanager
def holding(layout: RunLayout, *how: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the run, in a group of its own as the jobs of a shell are."""
    command = [sys.executable, "-c", HOLD, str(layout.root), *how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def holder(layout: RunLayout) -> Iterator[subprocess.Popen[str]]:
    with holding(layout) as process:
        yield process


def test_a_run_held_by_a_live_process_is_refused(layout: RunLayout, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(UserError, match=f"running in process {holder.pid}"), claimed(layout, 10.0):
        pass
    found = local_process(layout)
    assert found is not None
    assert found.pid == holder.pid


def test_a_run_whose_process_was_killed_can_be_taken_up_at_once(
    layout: RunLayout, holder: subprocess.Popen[str]
) -> None:
    holder.kill()
    holder.wait()
    assert local_process(layout) is None
    with claimed(layout, 10.0):
        assert read_beat(layout.heart("local", 0)) != NO_BEAT
    assert read_beat(layout.heart("local", 0)) == NO_BEAT


@pytest.mark.parametrize("suspended", [False, True])
def test_a_cancelled_process_has_ended_also_where_it_was_suspended(
    layout: RunLayout, holder: subprocess.Popen[str], suspended: bool
) -> None:
    if suspended:
        os.killpg(holder.pid, signal.SIGSTOP)
    assert CliRunner().invoke(main, ["cancel", str(layout.root)]).exit_code == 0
    assert holder.poll() is not None


def test_a_process_that_does_not_end_is_named(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued_jobs, "ENDS_WITHIN_S", 0.3)
    with holding(layout, "deaf") as process:
        with pytest.raises(UserError) as left:
            list(queued_jobs.cancel_run(layout))
        assert str(process.pid) in left.value.what
        assert str(process.pid) in str(left.value.advice)


def test_of_two_hosts_that_begin_at_once_the_one_that_beats_first_goes_on(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has claimed and does not beat yet, so that it seems dead to the second."""
    with ExitStack() as second:

        class Slow(Heart):
            def __enter__(self) -> Heart:
                if self.attempt.startswith("first:"):
                    monkeypatch.setattr(ledger.socket, "gethostname", lambda: "second")
                    second.enter_context(claimed(layout, 10.0))
                return super().__enter__()

        monkeypatch.setattr(ledger, "Heart", Slow)
        monkeypatch.setattr(ledger.socket, "gethostname", lambda: "first")
        with pytest.raises(UserError, match="on second"), claimed(layout, 10.0):
            pytest.fail("two run the plan")


def test_one_that_looked_before_the_other_beat_sees_the_beat_when_it_has_claimed(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    with claimed(layout, 10.0):
        monkeypatch.setattr(ledger, "_lives", lambda *_: False)
        looks = iter([NO_BEAT])
        monkeypatch.setattr(ledger, "read_beat", lambda path: next(looks, None) or read_beat(path))
        with pytest.raises(UserError, match="already running"), claimed(layout, 10.0):
            pytest.fail("two run the plan")


def test_of_two_who_claim_at_the_same_moment_one_is_refused(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    with claimed(layout, 10.0):
        monkeypatch.setattr(ledger, "_newest_claim", lambda _: (0, None))  # the second has looked before the first came
        with pytest.raises(UserError, match="already running"), claimed(layout, 10.0):
            pass


def elsewhere(layout: RunLayout) -> LocalProcess:
    """A claim from another host."""
    process = LocalProcess(os.getpid(), "1", "another-host")
    (layout.jobs / "local-00001.json").write_text(json.dumps(asdict(process)))
    return process


def test_a_process_on_another_host_is_known_by_its_heart(layout: RunLayout) -> None:
    process = elsewhere(layout)
    with (
        Heart(layout.heart("local", 0), process.name, 0.02 * BEATS_A_LIMIT),
        pytest.raises(UserError, match="on another-host"),
        claimed(layout, 10.0),
    ):
        pass


def test_a_heart_on_another_host_that_stands_still_holds_nothing(layout: RunLayout) -> None:
    process = elsewhere(layout)
    with Heart(layout.heart("local", 0), process.name, 1000.0), claimed(layout, 0.3):
        wait_until(lambda: read_beat(layout.heart("local", 0)).attempt != process.name, reason="beat", deadline_s=5)


def test_other_resources_are_taken_over_and_another_experiment_is_not(tmp_path: Path) -> None:
    layout, recipe = made(tmp_path / "run")
    assert not is_renewed(layout, recipe, compile_plan(recipe, LocalSite()))
    more = load_recipe(QUICKSTART, ("resources.inference.tasks=4", "resilience.retries=7"))
    plan = compile_plan(more, LocalSite())
    assert create_or_open(layout.root, more, plan) == layout
    assert is_renewed(layout, more, plan)
    renew(layout, more, plan)
    assert read_recipe_lock(layout.recipe_lock) == more
    assert not is_renewed(layout, more, plan)
    with pytest.raises(UserError, match=r"training\.learning_rate"):
        made(layout.root, "training.learning_rate=1e-3")


def test_an_iteration_cannot_draw_more_problems_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="more problems than there are"):
        made(tmp_path / "run", "data.problems=31")
    assert list(tmp_path.iterdir()) == []
    assert replace(made(tmp_path / "run", "data.problems=32")[0])
