"""What holds of every run directory, whatever has happened to it: asked by the auditor of chaos runs and by the
explorer of crash states.

Each question looks at files alone and knows nothing of faults. ``Audit`` collects the answers that are wrong.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from mrt_hpc import Problem, Rollout, RunLayout, UserError
from mrt_hpc.algorithms.batch import batch_digest
from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.run.archive import read_sampled, sampled_positions
from mrt_hpc.run.groups import Group
from mrt_hpc.run.manifest import MANIFEST, read_manifest, verify

T = TypeVar("T")


@dataclass
class Audit:
    violations: list[str] = field(default_factory=list)
    steps: int = 0  # updates computed, those that were computed again included
    iterations: int = 0
    groups_discarded: int = 0  # sampled by two, of which the second was dropped
    set_aside: int = 0
    leftovers: int = 0  # unfinished files of writers that were killed

    @property
    def steps_redone(self) -> int:
        return self.steps - self.iterations

    def check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.violations.append(otherwise)

    def readable(self, read: Callable[[], T]) -> T | None:
        """What ``read`` gives; None, and a violation, where it is damaged or missing."""
        try:
            return read()
        except (UserError, OSError) as error:
            self.violations.append(str(error))
            return None


def altered(directory: Path) -> str | None:
    """What differs in a directory from its manifest, by code of its own; None where it is what was written."""
    for name, (size, digest) in json.loads((directory / MANIFEST).read_text())["files"].items():
        content = (directory / name).read_bytes() if (directory / name).is_file() else b""
        if len(content) != size or hashlib.sha256(content).hexdigest() != digest:
            return f"{directory / name} is not what was written"
    return None


def check_whole(found: Audit, directory: Path) -> None:
    """What a reader accepts is what was written."""
    if found.readable(partial(verify, directory)) is not None:
        found.check((wrong := altered(directory)) is None, f"accepted: {wrong}")


def checked_groups(
    found: Audit, layout: RunLayout, where: str, number: int, drawn: Sequence[Problem], size: int
) -> list[Group]:
    """The groups of an iteration: the problems that the seed draws, each sample of each once."""
    positions = sampled_positions(layout, number)
    found.check(positions == set(range(len(drawn))), f"{where}: groups {sorted(positions)}")
    groups = [g for p in sorted(positions) if (g := found.readable(partial(read_sampled, layout, number, p)))]
    rollouts = [r for g in groups for r in g.rollouts]
    check_samples(found, where, rollouts, drawn, size)
    found.check({r.iteration for r in rollouts} <= {number}, f"{where} holds rollouts of another")
    return groups


def check_samples(found: Audit, where: str, rollouts: Sequence[Rollout], drawn: Sequence[Problem], n: int) -> None:
    there = Counter((r.problem_id, r.sample) for r in rollouts)
    wanted = Counter((p.id, s) for p in drawn for s in range(n))
    found.check(there == wanted, f"{where}: missing {wanted - there}, too many {there - wanted}")


def check_versions(found: Audit, where: str, groups: Sequence[Group], allowed: set[int]) -> None:
    rollouts = [r for g in groups for r in g.rollouts]
    versions = {r.weights_version for r in rollouts} | {v for r in rollouts for _, v in r.later_weights}
    found.check(versions <= allowed, f"{where}: weights {sorted(versions)}")


def check_trained(found: Audit, layout: RunLayout, iteration: int, groups: Sequence[Group]) -> None:
    if (metrics := found.readable(lambda: IterationMetrics.read(layout.metrics(iteration)))) is not None:
        trained = batch_digest(g.digest for g in groups)
        found.check(metrics.batch == trained, f"iteration {iteration} was trained on other groups than those there")


def check_evaluated(found: Audit, layout: RunLayout, version: int, shard: Path) -> None:
    weights = found.readable(partial(read_manifest, layout.weights_version(version)))
    manifest = found.readable(partial(read_manifest, shard))
    same = manifest is not None and weights is not None and manifest.about["weights"] == weights.digest
    found.check(same, f"{shard} was sampled by other weights than version {version}")
