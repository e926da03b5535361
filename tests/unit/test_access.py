"""Who may read a run; and folders that all users of a node share, of which only private ones are used."""

import logging
import os
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from basics import QUICKSTART
from run_of import publish_some, run_of

from mrt_hpc.attempt.entry import run_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.attempt.ranks import start_ranks, stop
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.parameters import python_command
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.access import CACHES, cache_variables
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import wait_until
from mrt_hpc.submit.create import create_or_open


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("group_access", [True, False])
def test_the_group_reads_a_run_of_a_site_that_allows_it_and_writes_nothing(tmp_path: Path, group_access: bool) -> None:
    recipe = load_recipe(QUICKSTART)
    assert not (LocalSite().group_access or SlurmSite(name="here").group_access), "nothing by default"
    os.umask(0o077)  # the strictest that users have
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()), group_access=group_access)
    os.umask(0o077)
    run_task(str(layout.root), "prepare", 0, Placement(0, 1, 0, "1"), lambda task: publish_some(task.layout, 1))
    assert mode(layout.root) == (0o2750 if group_access else 0o700)
    inside = [path for path in layout.root.rglob("*") if path != layout.secrets and layout.secrets not in path.parents]
    for path in inside:
        wanted = (0o750 if path.is_dir() else 0o640) if group_access else mode(path) & 0o700
        assert mode(path) & 0o777 == wanted, path
    assert {layout.events, layout.weights_version(1)} <= {path.parent for path in inside}
    assert (mode(layout.secrets) & 0o777, mode(layout.secrets / "server_key")) == (0o700, 0o600)


ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
NAME = f"mrt-hpc-caches-{os.geteuid()}"


@pytest.fixture
def shared(shared: Path) -> Path:
    """A folder in which every user may make files, like /tmp."""
    shared.chmod(0o1777)
    return shared


def leave(what: str, path: Path) -> None:
    """What others, or the user earlier, may have left under the name."""
    if what == "a file":
        path.touch()
    elif what.startswith("a link"):
        (path.parent / "elsewhere").mkdir(mode=0o700)
        path.symlink_to("elsewhere" if what == "a link" else "nothing")
    elif what != "nothing":
        path.mkdir()
        path.chmod({"open": 0o777, "readable": 0o755}.get(what, 0o700))
        if what == "given away":
            os.chown(path, 65534, 65534)


GIVEN_AWAY = pytest.param("given away", marks=ROOT_ONLY)
LEFT = ["nothing", "a link", "a link to nothing", "open", "readable", "a file", GIVEN_AWAY]


def assert_private(path: Path) -> None:
    found = path.lstat()
    assert stat.S_ISDIR(found.st_mode)
    assert (found.st_uid, found.st_mode & 0o777) == (os.geteuid(), 0o700)


def in_a_task_of_this_machine(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    return Path(cache_variables()["TORCHINDUCTOR_CACHE_DIR"]).parent


def in_a_job(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a job of Slurm takes on its node, by the shell lines before Python."""
    plan = compile_plan(load_recipe(QUICKSTART), LocalSite())
    words = shlex.split(python_command(plan.jobs[0], SlurmSite(name="s"), RunLayout(shared / "run")))
    assert words[:2] == ["/bin/bash", "-c"]
    for name in CACHES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(shared))
    command = ["bash", "-c", words[2], "bash", "-c", "echo $TORCHINDUCTOR_CACHE_DIR"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    logging.getLogger(__name__).warning("%s", done.stderr)
    return Path(done.stdout.strip()).parent


WAYS = pytest.mark.parametrize("taken_by", [in_a_task_of_this_machine, in_a_job])
TakenBy = Callable[[Path, pytest.MonkeyPatch], Path]


@WAYS
@pytest.mark.parametrize("what", LEFT)
def test_what_is_not_private_is_not_used(
    shared: Path, what: str, taken_by: TakenBy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leave(what, shared / NAME)
    with caplog.at_level(logging.WARNING):
        path = taken_by(shared, monkeypatch)
    assert_private(path)
    assert (path.parent, path.name == NAME) == (shared, what == "nothing")
    if what != "nothing":
        assert path.name.startswith(f"{NAME}-") and all(str(place) in caplog.text for place in (shared / NAME, path))
    assert taken_by(shared, monkeypatch) == path, "the next task finds the same"


@ROOT_ONLY
@WAYS
def test_nor_is_a_second_choice_of_others(shared: Path, taken_by: TakenBy, monkeypatch: pytest.MonkeyPatch) -> None:
    for what, name in (("given away", NAME), ("given away", f"{NAME}-a"), ("a link", f"{NAME}-b")):
        leave(what, shared / name)
    path = taken_by(shared, monkeypatch)
    assert_private(path)
    (shared / NAME).rmdir()
    assert taken_by(shared, monkeypatch) == path, "processes of one task agree, also when the first name becomes free"


def test_tasks_of_this_machine_keep_what_they_compile_there(tmp_path: Path) -> None:
    layout = run_of(tmp_path / "run")
    environment = {name: value for name, value in os.environ.items() if name not in CACHES}  # torch sets some of them
    running = start_ranks(layout, read_plan(layout.plan).jobs[0], 0, {**environment, "TRITON_CACHE_DIR": "/mine"})
    try:
        environ = Path(f"/proc/{running.children[0].pid}/environ")
        lines = wait_until(environ.read_bytes, reason="the environment of a new process", deadline_s=10).split(b"\0")
    finally:
        stop(running)
    found = dict(line.decode().partition("=")[::2] for line in lines)
    assert found["TRITON_CACHE_DIR"] == "/mine"
    assert_private(Path(found["TORCHINDUCTOR_CACHE_DIR"]).parent)
