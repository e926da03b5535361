"""Settings for all tests."""

import gc
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import settings
from ruamel.yaml import YAML
from ruamel.yaml.nodes import Node
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Machines that run tests are shared and slow by turns: no test fails for being slow once.
settings.register_profile("mrt-hpc", deadline=None)
settings.load_profile("mrt-hpc")

ROOT = Path(__file__).parents[1]
SLOW = ("slurm", "chaos", "integration", "install")
"""Folders of tests that share servers, runs or a cluster, in the order in which they begin. Unit tests come last, since
they fill what is left.
"""
OWN_CLUSTER = {"test_slurm_plain.py", "test_slurm_rules.py"}
LONG_ON_SLURM = {"test_slurm_container.py", "test_slurm_runs.py", "test_slurm_sweep.py", "test_slurm_two_nodes.py"}
"""These take about as long as all others that share a cluster."""
AWAITED = "test_quickstart_learns.py"
"""Other tests need its run, so it begins first."""
WITH_QUICKSTART_S = 1800
"""A test that needs the run of the quickstart may have to wait until another process has made it, seconds."""
ALONE = re.compile("<<|^%", re.MULTILINE)
"""A merge key or a directive in a text of YAML."""


CONFIGURATION = tempfile.TemporaryDirectory(prefix="mrt-hpc-test-config-")


def pytest_configure() -> None:
    """Commands print to a pipe as they do for users: readline, which pytest loads, sets a width of 80 for the processes
    that share the tests. And they take this machine where a test names no site, whatever the developer has set and
    whether or not a Slurm controller answers; what other programs are configured with stays. SIGINT interrupts
    them, also where the shell that started the tests in the background lets them ignore it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("COLUMNS", None)
    os.environ.pop("MRT_HPC_SITE", None)
    before, here = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"), Path(CONFIGURATION.name)
    for own in before.iterdir() if before.is_dir() else ():
        if own.name != "mrt-hpc":
            (here / own.name).symlink_to(own)
    (here / "mrt-hpc").mkdir()
    (here / "mrt-hpc" / "settings.yaml").write_text("site: local\n")
    os.environ["XDG_CONFIG_HOME"] = str(here)
    os.environ.pop("MRT_HPC_DATA", None)
    os.environ["XDG_DATA_HOME"] = str(here / "data")


gc.disable()  # half of the time in which the tests are collected, and each process collects all of them


def pytest_collection_finish() -> None:
    """What was made by now stays to the end."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests begin first."""
    items.sort(key=lambda item: (item.path.name != AWAITED, _place(item.nodeid)))
    for item in items:
        if "quickstart" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(WITH_QUICKSTART_S))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Share the tests out among processes by `what_stays_together`."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return what_stays_together(nodeid)

    return Scheduler(config, log)


def what_stays_together(nodeid: str) -> str:
    """Tests on Slurm share a cluster, of which there are two at a time; but for files with a cluster of their own. The
    tests of any other file share servers, runs and what it imports.
    """
    file, folder = nodeid.split("::", 1)[0], _folder(nodeid)
    if folder != "slurm" or Path(file).name in OWN_CLUSTER:
        return file
    return f"{folder}, {'long' if Path(file).name in LONG_ON_SLURM else 'short'}"


def _place(nodeid: str) -> int:
    folder = _folder(nodeid)
    return SLOW.index(folder) if folder in SLOW else len(SLOW)


def _folder(nodeid: str) -> str:
    return Path(nodeid.split("::", 1)[0]).parts[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Benchmarks and training sets beside the checkout; tests that read them are skipped where they are absent."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no ../shared/data beside this checkout")
    return path


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all users of this machine can enter."""
    from other_users import shared_folder

    with shared_folder() as path:
        yield path


@pytest.fixture(autouse=True)
def _own_umask() -> Iterator[None]:
    """Give each test the usual umask: a command on a run that the group reads sets that of its process, and tests share
    one.
    """
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(scope="session", autouse=True)
def _yaml_is_parsed_once() -> Iterator[None]:
    """Parse each text once: the tests read the same recipes, locks and sites ten thousand times, in 10 to 50 ms each. A
    text with a merge key is changed when it is read, and one with a directive changes its parser: these are parsed each
    time.
    """
    compose = YAML.compose

    @lru_cache(maxsize=512)
    def composed(text: str) -> Node | None:
        return compose(YAML(typ="safe", pure=True), text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(YAML, "compose", lambda self, text: compose(self, text) if ALONE.search(text) else composed(text))
        yield
