"""Folders in places that all users of a node share: only what is private is used, and nobody can stop a task."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.attempt.ranks import start_ranks, stop
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.parameters import python_command
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.access import CACHES, cache_variables
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
ANOTHER = 65534
"""The id of another user."""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in which every user may make files, like /tmp."""
    path = Path(tempfile.mkdtemp(prefix="shared-"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def given_away(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, ANOTHER, ANOTHER)


def linked(path: Path) -> None:
    path.with_name("elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.with_name("elsewhere"))


def link_to_nothing(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


def open_to_others(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def readable(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)


def a_file(path: Path) -> None:
    path.write_text("")


TAKEN = [pytest.param(given_away, marks=ROOT_ONLY), linked, link_to_nothing, open_to_others, readable, a_file]
"""What others, or the user earlier, may have left under the name."""


def assert_private(path: Path) -> None:
    found = path.lstat()
    assert path.is_dir()
    assert not path.is_symlink()
    assert (found.st_uid, found.st_mode & 0o777) == (os.geteuid(), 0o700)


def in_a_task_of_this_machine(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    return Path(cache_variables()["TORCHINDUCTOR_CACHE_DIR"]).parent


def in_a_job(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a job of Slurm takes on its node, by the shell lines before Python."""
    plan = compile_plan(load_recipe(QUICKSTART), LocalSite())
    words = shlex.split(python_command(plan.jobs[0], SlurmSite(name="s"), RunLayout(shared / "run")))
    assert words[:2] == ["/bin/bash", "-c"]
    command = ["bash", "-c", words[2], "bash", "-c", "echo $TORCHINDUCTOR_CACHE_DIR"]
    for name in CACHES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(shared))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    log.warning("%s", done.stderr)
    return Path(done.stdout.strip()).parent


WAYS = pytest.mark.parametrize("taken_by", [in_a_task_of_this_machine, in_a_job])
NAME = f"mrt-hpc-caches-{os.geteuid()}"


@WAYS
def test_caches_are_in_a_private_folder_which_is_found_again(
    shared: Path, taken_by: Callable[[Path, pytest.MonkeyPatch], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = taken_by(shared, monkeypatch)
    assert path == shared / NAME
    assert_private(path)
    assert taken_by(shared, monkeypatch) == path


@WAYS
@pytest.mark.parametrize("leave", TAKEN)
def test_what_is_not_private_is_not_used(
    shared: Path,
    leave: Callable[[Path], None],
    taken_by: Callable[[Path, pytest.MonkeyPatch], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    leave(shared / NAME)
    with caplog.at_level(logging.WARNING):
        path = taken_by(shared, monkeypatch)
    assert_private(path)
    assert path.name.startswith(f"{NAME}-")
    assert f"{shared / NAME} belongs to another user, is a link, or is open to others; {path} is used" in caplog.text
    assert taken_by(shared, monkeypatch) == path, "the next task finds the same"


@ROOT_ONLY
@WAYS
def test_a_second_choice_of_another_user_is_not_used_either(
    shared: Path, taken_by: Callable[[Path, pytest.MonkeyPatch], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    given_away(shared / NAME)
    given_away(shared / f"{NAME}-a")
    linked(shared / f"{NAME}-b")
    path = taken_by(shared, monkeypatch)
    assert_private(path)
    (shared / NAME).rmdir()
    assert taken_by(shared, monkeypatch) == path, "processes of one task agree, also when the first name becomes free"


def test_tasks_of_this_machine_keep_what_they_compile_there(tmp_path: Path) -> None:
    """And what the user has set stays."""
    recipe = load_recipe(QUICKSTART)
    plan = compile_plan(recipe, LocalSite())
    layout = create_or_open(tmp_path / "run", recipe, plan)
    environment = {name: value for name, value in os.environ.items() if name not in CACHES}  # torch sets some of them
    running = start_ranks(layout, plan.jobs[0], 0, {**environment, "TRITON_CACHE_DIR": "/mine"})
    try:
        environ = Path(f"/proc/{running.children[0].pid}/environ")
        lines = wait_until(environ.read_bytes, reason="the environment of a new process", deadline_s=10).split(b"\0")
    finally:
        stop(running)
    found = dict(line.decode().partition("=")[::2] for line in lines)
    assert found["TRITON_CACHE_DIR"] == "/mine"
    assert_private(Path(found["TORCHINDUCTOR_CACHE_DIR"]).parent)
