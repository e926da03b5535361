"""A short seeded schedule of faults over a whole shrunk run, and an auditor that finds what is wrong."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from chaos_auditor import audit
from chaos_backends import LocalRun, Run, SlurmRun
from chaos_faults import FaultKind, possible
from chaos_run import DISK_MIB, RUN_DEADLINE_S, Outcome, named_scenes, run_under_faults, small_disk, table
from chaos_scenes import attempts, scenes
from slurm_session import NoClusterHereError, running_cluster

from mrt_hpc.run.archive import unpack
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KINDS = (
    FaultKind.KILL_INFERENCE,
    FaultKind.CORRUPT_CHECKPOINT,
    FaultKind.KILL_SERVER,
    FaultKind.FULL_DISK,
    FaultKind.PREEMPT,
    FaultKind.CUT_NODE,
)
SEED = 7
LONGEST_S = RUN_DEADLINE_S + 600.0
"""For the run, and for its cluster."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Outcome, Path]]:
    """A run under faults, and where it lies: on a cluster of its own, or where there can be none on this machine."""
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(DISK_MIB))
        try:
            cluster = stack.enter_context(running_cluster({}, own=True))
            run: Run = SlurmRun(cluster, disk, ("resources.trainer.ranks=2",))
        except NoClusterHereError as reason:
            print(f"on this machine: {reason}")
            run = LocalRun((disk or tmp_path_factory.mktemp("chaos")) / "run", disk)
        there = possible(slurm=isinstance(run, SlurmRun), disk=disk is not None)
        kinds = [kind for kind in KINDS if kind in there]
        yield run_under_faults(SEED, len(kinds), kinds, run), run.target().layout.root


@pytest.mark.timeout(LONGEST_S)
def test_a_run_under_faults_ends_as_an_undisturbed_one(outcome: tuple[Outcome, Path]) -> None:
    found, _ = outcome
    print(table([found]))
    assert found.exit_code == 0
    assert found.audit.violations == []
    assert len(found.strikes) >= 3, "a run that ends early was hardly disturbed"
    corrupted = sum(strike.kind is FaultKind.CORRUPT_CHECKPOINT for strike in found.strikes)
    assert found.audit.steps_redone <= len(found.strikes) + corrupted


def unpacked(layout: RunLayout, iteration: int) -> RunLayout:
    """With the groups of an iteration in directories, as they are before they are archived."""
    unpack(layout, iteration)
    layout.group_archive(iteration).unlink(missing_ok=True)
    return layout


def damage_group(layout: RunLayout) -> str:
    path = unpacked(layout, 1).group(1, 2) / "rollouts.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    return "rollouts.parquet"


def damage_archive(layout: RunLayout) -> str:
    """A byte within a group changes."""
    path = layout.group_archive(0)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    return str(path)


def lose_group(layout: RunLayout) -> str:
    shutil.rmtree(unpacked(layout, 0).group(0, 3))
    return "iteration 0: groups"


def swap_groups(layout: RunLayout) -> str:
    """A whole group of another iteration."""
    shutil.rmtree(unpacked(layout, 2).group(2, 1))
    shutil.copytree(unpacked(layout, 1).group(1, 1), layout.group(2, 1))
    return "belongs to another place"


def lose_metrics(layout: RunLayout) -> str:
    layout.metrics(3).unlink()
    return "metrics of iterations 3"


def change_weights(layout: RunLayout) -> str:
    manifest = layout.weights_version(0) / MANIFEST
    manifest.write_text(manifest.read_text().replace('"version": 0', '"version": 1'))
    return "seal does not fit"


def lose_evaluation(layout: RunLayout) -> str:
    shutil.rmtree(layout.evaluation_shard(0, "held-out", 0))
    return "shard-00000"


def reopen_task(layout: RunLayout) -> str:
    path = next((layout.root / "tasks").rglob("*.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "state": "failed"}))
    return "failed"


def publish_key(layout: RunLayout) -> str:
    (layout.logs / "leak.log").write_text((layout.secrets / "server_key").read_text())
    return "the run's key stands in"


@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize(
    "harm",
    [
        damage_group, damage_archive, lose_group, swap_groups,
        lose_metrics, change_weights, lose_evaluation, reopen_task, publish_key,
    ],
)  # fmt: skip
def test_the_auditor_finds_what_is_wrong(outcome: tuple[Outcome, Path], tmp_path: Path, harm: object) -> None:
    assert callable(harm)
    copy = RunLayout(tmp_path / "run")
    shutil.copytree(outcome[1], copy.root)
    words = harm(copy)
    assert any(words in violation for violation in audit(copy.root).violations)


@pytest.mark.parametrize("role", ["inference", "evaluation"])
def test_scenes_see_when_a_role_has_its_server(outcome: tuple[Outcome, Path], role: str) -> None:
    said = attempts(role, RunLayout(outcome[1]))
    assert any(EventKind.SERVER_STARTED in kinds for kinds in said)


def test_scenes_are_chosen_by_words() -> None:
    assert named_scenes(None) == []
    assert named_scenes([]) == scenes()
    assert {scene.role for scene in named_scenes(["sampling"])} == {"inference", "evaluation"}
