"""The commands of the pages that need a cluster, typed on one in an empty folder with an empty home: `init` writes the
profile, and all others go where it says.
"""

import subprocess

import pytest
from documents import DOCS, README, commands
from slurm_cluster import Cluster
from submitted import current_ids

from mrt_hpc.run.family import runs_of
from mrt_hpc.run.layout import RunLayout

INIT, DOCTOR, SUBMIT = "init mycluster", "doctor --recipe quickstart", "submit quickstart"
SWEPT = "runs/quickstart-sweep"
JOBS = 5  # of a run of the quickstart


class Reader:
    """The cluster's user, who has nothing yet."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.folder = cluster, cluster.folder("pages")

    def types(self, *words: str) -> subprocess.CompletedProcess[str]:
        home = self.folder / "home"
        empty = ("-C", str(self.folder), f"HOME={home}", f"XDG_CONFIG_HOME={home}/.config", f"XDG_DATA_HOME={home}")
        return self.cluster.as_user("env", *empty, self.cluster.python, "-m", "mrt_hpc", *words, timeout=300)


@pytest.fixture(scope="module")
def reader(cluster: Cluster) -> Reader:
    """He has typed what README types first; it asks at a terminal, and --yes is what it says elsewhere."""
    reader = Reader(cluster)
    assert [" ".join(words) for words in of_pages(INIT)] == [INIT]
    refused = reader.types(*INIT.split())
    assert refused.returncode == 2 and "--yes" in refused.stderr
    written = reader.types(*INIT.split(), "--yes")
    assert written.returncode == 0, written.stderr
    return reader


def of_pages(begin: str) -> list[tuple[str, ...]]:
    every = (command.words for page in (README, *DOCS) for command in commands(page))
    return [*dict.fromkeys(words for words in every if " ".join(words).startswith(begin))]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", of_pages(DOCTOR), ids=" ".join)
def test_the_doctor_says_that_this_environment_has_no_gpus(reader: Reader, words: tuple[str, ...]) -> None:
    done = reader.types(*words)
    assert done.returncode == 2 and "a build without CUDA" in done.stdout, done.stdout + done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", of_pages(SUBMIT), ids=" ".join)
def test_what_is_submitted_is_queued(reader: Reader, words: tuple[str, ...]) -> None:
    done = reader.types(*words)
    assert done.returncode == 0, done.stderr
    named = words[words.index("--run") + 1] if "--run" in words else SWEPT if "--sweep" in words else "runs/quickstart"
    root = reader.folder / named
    try:
        members = [RunLayout(run) for run in runs_of(root)]
        assert len(members) == (6 if "--sweep" in words else 1)
        assert [len(current_ids(member)) for member in members] == [JOBS] * len(members)
    finally:
        cancelled = reader.types("cancel", str(root))
    assert cancelled.returncode == 0, cancelled.stderr
