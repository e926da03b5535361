"""A short seeded schedule of faults over a whole shrunk run of one segment, and an auditor that finds what is wrong.
``chaos_run.py`` strikes runs of two segments.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from chaos_auditor import audit
from chaos_backends import LocalRun, Run, SlurmRun
from chaos_faults import FaultKind, possible
from chaos_run import DISK_MIB, RUN_DEADLINE_S, Outcome, run_under_faults, small_disk, table
from slurm_session import NoClusterHereError, running_cluster

from mrt_hpc.run.archive import unpack
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import MANIFEST

KINDS = (FaultKind.KILL_SERVER, FaultKind.FULL_DISK, FaultKind.CUT_NODE)
SEED = 7
CHANGES = ("resources.trainer.ranks=2", "schedule.iterations=4", "schedule.iterations_per_job=4")
LONGEST_S = RUN_DEADLINE_S + 600.0  # for the run, and for its cluster


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Outcome, Path]]:
    """A run under faults, and where it lies: on a cluster of its own, or where there can be none on this machine."""
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(DISK_MIB))
        try:
            run: Run = SlurmRun(stack.enter_context(running_cluster({}, own=True)), disk, CHANGES)
        except NoClusterHereError as reason:
            print(f"on this machine: {reason}")
            run = LocalRun((disk or tmp_path_factory.mktemp("chaos")) / "run", disk, CHANGES[1:])
        there = possible(slurm=isinstance(run, SlurmRun), disk=disk is not None)
        kinds = [kind for kind in KINDS if kind in there]
        yield run_under_faults(SEED, len(kinds), kinds, run), run.target().layout.root


@pytest.mark.timeout(LONGEST_S)
def test_a_run_under_faults_ends_as_an_undisturbed_one(outcome: tuple[Outcome, Path]) -> None:
    found, _ = outcome
    print(table([found]))
    assert (found.exit_code, found.audit.violations) == (0, [])
    assert len(found.strikes) >= 3, "a run that ends early was hardly disturbed"
    assert found.audit.steps_redone <= len(found.strikes)


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def _group(layout: RunLayout, iteration: int, position: int) -> Path:
    """A group of an iteration in a directory, as all of them are before they are archived."""
    unpack(layout, iteration)
    layout.group_archive(iteration).unlink(missing_ok=True)
    return layout.group(iteration, position)


def _swap_groups(layout: RunLayout) -> None:
    shutil.rmtree(_group(layout, 2, 1))
    shutil.copytree(_group(layout, 1, 1), layout.group(2, 1))


def _rewrite(path: Path, before: str, after: str) -> None:
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))


HARM: dict[str, Callable[[RunLayout], object]] = {
    "rollouts.parquet": lambda run: _flip(_group(run, 1, 2) / "rollouts.parquet", -1),
    "groups.zip": lambda run: _flip(run.group_archive(0), run.group_archive(0).stat().st_size // 3),
    "iteration 0: groups": lambda run: shutil.rmtree(_group(run, 0, 3)),
    "belongs to another place": _swap_groups,
    "metrics of iterations 3": lambda run: run.metrics(3).unlink(),
    "seal does not fit": lambda run: _rewrite(run.weights_version(0) / MANIFEST, '"version": 0', '"version": 1'),
    "shard-00000": lambda run: shutil.rmtree(run.evaluation_shard(0, "held-out", 0)),
    "failed": lambda run: _rewrite(next((run.root / "tasks").rglob("*.json")), '"done"', '"failed"'),
    "the run's key stands in": lambda run: shutil.copy(run.secrets / "server_key", run.logs / "leak.log"),
}
"""By words of the violation."""


@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("words", HARM)
def test_the_auditor_finds_what_is_wrong(outcome: tuple[Outcome, Path], tmp_path: Path, words: str) -> None:
    copy = RunLayout(tmp_path / "run")
    shutil.copytree(outcome[1], copy.root)
    HARM[words](copy)
    assert any(words in violation for violation in audit(copy.root).violations)
