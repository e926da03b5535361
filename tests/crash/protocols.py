"""The protocols that keep a run whole, by their real functions: what each does from any state, and what it promises.

``act`` is what a task does: it is also what the next attempt does after a crash, so it ends from every state. It calls
``promise`` with what counts as done from that moment on, and ``kept`` says of a disk whether such a promise is kept.
``outcome`` is what an undisturbed run leaves behind; the same must be there after every crash.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from invariants import Audit, check_evaluated, check_trained, checked_groups
from run_of import run_of
from samples import draw_problems, rollout, sampled
from tiny_training import ATTEMPTS, CHANGES, TinyRun, check_one_trainer, first_version, shard_of

from mrt_hpc.run.archive import archive_groups, open_archive, read_sampled, sampled_manifest, sampled_positions
from mrt_hpc.run.groups import commit_group, read_group, refuse_other_samples
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import Holder, Observer, group_leases
from mrt_hpc.run.manifest import DamagedError, verify
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.weights import prune, publish, published_versions

Promise = Callable[[Any], None]


class Protocol:
    """One of them, on a run directory."""

    name: str
    states: int
    """How many crash states the tests try, if there are as many."""

    def make(self, layout: RunLayout) -> None:
        """Make the run directory; it is on the disk before anything happens."""
        layout.root.mkdir()
        layout.identity.write_text("run")

    def act(self, layout: RunLayout, promise: Promise) -> None:
        raise NotImplementedError

    def kept(self, layout: RunLayout, promised: Any) -> bool:
        """Whether what was promised is there, before anything is mended."""
        raise NotImplementedError

    def outcome(self, layout: RunLayout) -> Any:
        raise NotImplementedError

    def stands(self, layout: RunLayout) -> bool:
        """Whether readers find what they need beside a task that has come so far."""
        return True

    def mends_itself(self, layout: RunLayout, unit: Path | None) -> bool:
        """Whether the attempt in which a finished directory is damaged makes it again."""
        return False

    def accepts(self, layout: RunLayout, unit: Path) -> bool:
        """Whether a reader takes a finished directory or archive for whole."""
        try:
            return is_whole(unit)
        except DamagedError:
            return False


def is_whole(directory: Path) -> bool:
    """Whether a directory is what its manifest says."""
    verify(directory)
    return True


def group_is_whole(layout: RunLayout, iteration: int, position: int) -> bool:
    """Whether a group is there, in its archive or beside it, as its manifest says."""
    archive = open_archive(layout, iteration)
    if archive is None or position not in archive.members:
        return is_whole(layout.group(iteration, position))
    manifest = archive.manifest(position)
    return all(archive.read_verified(position, manifest, name) for name in manifest.files)


class Groups(Protocol):
    """Claim and commit of the groups of an iteration, and its archive when training has passed it."""

    name = "groups"
    states = 6200
    positions = range(3)

    def act(self, layout: RunLayout, promise: Promise) -> None:
        me = Holder(layout.root, "segment-000.inference", 0, ATTEMPTS.new())
        leases = group_leases(layout, 0, me, Observer(20.0))
        for position in self.positions:
            if position not in sampled_positions(layout, 0) and leases.claim(position):
                commit_group(layout.group(0, position), sampled(rollout(f"p{position}", 0)))
                promise(position)
        archive_groups(layout, 0, len(self.positions))

    def kept(self, layout: RunLayout, promised: int) -> bool:
        return group_is_whole(layout, 0, promised)

    def outcome(self, layout: RunLayout) -> Any:
        whole = [position for position in self.positions if group_is_whole(layout, 0, position)]
        digests = [sampled_manifest(layout, 0, position).digest for position in whole]
        return digests, layout.groups(0).exists(), layout.leases(0).exists()


class Versions(Protocol):
    """Publication of whole weights versions, and the removal of those that are not needed any more."""

    name = "weights versions"
    states = 600
    last = 3

    def act(self, layout: RunLayout, promise: Promise) -> None:
        for version in range(1, self.last + 1):
            if version < max(published_versions(layout), default=-1):
                continue

            def write(directory: Path, version: int = version) -> None:
                (directory / "model.safetensors").write_bytes(bytes([version]) * 64)
                (directory / "config.json").write_text("{}")

            publish(layout, version, write)
            promise(version)
            prune(layout, {version})

    def kept(self, layout: RunLayout, promised: int) -> bool:
        newest = max(published_versions(layout), default=-1)
        return newest >= promised and is_whole(layout.weights_version(newest))

    def outcome(self, layout: RunLayout) -> Any:
        return [(v, verify(layout.weights_version(v)).digest) for v in published_versions(layout)]


class Training(Protocol):
    """A run of two iterations: groups, updates, metrics, weights versions, checkpoints, archives, and what a trainer
    that resumes sets aside.
    """

    name = "training"
    states = 420
    last = 2

    def make(self, layout: RunLayout) -> None:
        run_of(layout.root, *CHANGES, recipe="small_world/grpo")
        first_version(layout)
        TinyRun.of(layout)  # reads recipe and plan, which it keeps

    def act(self, layout: RunLayout, promise: Promise) -> None:
        TinyRun.of(layout).end(promise)

    def kept(self, layout: RunLayout, promised: Any) -> bool:
        if promised[0] == "group":
            return group_is_whole(layout, *promised[1:])
        newest = max(path for path in layout.checkpoints.iterdir() if layout.step_of(path) is not None)
        published = [layout.weights_version(version) for version in published_versions(layout)]
        return layout.step_of(newest) > promised[1] and all(is_whole(path) for path in (newest, *published))

    def check(self, found: Audit, layout: RunLayout) -> None:
        """What holds of every run that has ended."""
        problems = read_problems(layout.train_data)
        for iteration in range(self.last):
            drawn = draw_problems(problems, 0, iteration, 2)
            check_trained(found, layout, iteration, checked_groups(found, layout, "", iteration, drawn, 2))
        check_evaluated(found, layout, self.last, shard_of(layout, self.last))
        check_one_trainer(found, layout)
        found.check(len(list_directory(layout.checkpoints)) <= 2, "old checkpoints are left")

    def outcome(self, layout: RunLayout) -> dict[Path, Any]:
        self.check(found := Audit(), layout)
        assert found.violations == [], found.violations
        last = self.last
        groups = {layout.group(i, p): read_sampled(layout, i, p) for i in range(last) for p in range(2)}
        return {
            **{path: [rollout.token_ids for rollout in group.rollouts] for path, group in groups.items()},
            **{path: (path / "model.safetensors").read_bytes() for path in map(layout.weights_version, (0, last))},
            shard_of(layout, last): [r.token_ids for r in read_group(shard_of(layout, last)).rollouts],
        }

    def mends_itself(self, layout: RunLayout, unit: Path | None) -> bool:
        """It does so with the weights of which samples are wanted."""
        return unit in map(layout.weights_version, range(1, self.last))

    def accepts(self, layout: RunLayout, unit: Path) -> bool:
        if not unit.is_relative_to(layout.root / "iterations"):
            return super().accepts(layout, unit)
        iteration = int(unit.relative_to(layout.root).parts[1])
        drawn = draw_problems(read_problems(layout.train_data), 0, iteration, 2)
        wanted = {int(unit.name)} if unit.name.isdecimal() else {0, 1}
        try:
            for position in wanted:
                refuse_other_samples(read_sampled(layout, iteration, position), drawn[position].id, range(2), unit)
        except DamagedError:
            return False
        return True
