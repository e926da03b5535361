"""Checks of the run directory and its filesystem."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mrt_hpc.launch.create import refuse_writable_by_others
from mrt_hpc.launch.filesystems import (
    OPERATIONS,
    Filesystem,
    existing_ancestor,
    filesystem,
    gigabytes,
    trial_folder,
    try_operations,
)
from mrt_hpc.launch.slurm.doctor.findings import doubtful, fails, ok
from mrt_hpc.launch.slurm.parameters import require_plain_path
from mrt_hpc.plan.compile import evaluated_versions
from mrt_hpc.plan.expected import count_problems
from mrt_hpc.plan.throughput import BYTES, model_billions
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mrt_hpc.launch.slurm.doctor.findings import Result
    from mrt_hpc.launch.slurm.doctor.situation import Situation
    from mrt_hpc.plan.jobs import Plan
    from mrt_hpc.recipe.schema import Recipe

OTHER_PLACE = "choose another place for the run: --run DIRECTORY"
CHECKPOINT_BYTES = 12
"""Bytes of a checkpoint for each parameter."""
DELTA_SHARE = 0.2
"""The bytes of a weights version that is a delta, as a share of a whole model's; at usual learning rates it is less."""
SPARE = 1.5
"""Space that is less than this many times what is needed is doubtful: traces and logs come on top."""
FILES_OF_A_GROUP, FILES_OF_A_TASK, FILES_OF_A_RANK, FILES_OF_A_PROBLEM = 8, 15, 4, 3
"""At most so many files and folders: of an iteration's group, of a task (state, events, logs), of one rank's part of a
checkpoint or weights version, and of an evaluated problem."""
CLOCK_S = 5.0
"""Seconds by which the clocks of two machines may differ."""


def run_directory(situation: Situation) -> Iterator[Result]:
    """The run directory can be made, or is one of this user's."""
    root, layout = situation.root, RunLayout(situation.root)
    require_plain_path(layout)
    if root.exists():
        refuse_writable_by_others(root)
        if any(root.iterdir()) and not layout.recipe_lock.is_file():
            yield fails(f"{root} is not empty, and is not a run", OTHER_PLACE)
        else:
            yield ok(f"{root} is there, and only you can write to it")
        return
    above = existing_ancestor(root)
    if not above.is_dir():
        yield fails(f"{above} is a file", OTHER_PLACE)
        return
    with trial_folder(above):
        yield ok(f"{root} can be made in {above}")


def operations(situation: Situation) -> Iterator[Result]:
    """The filesystem does what results, leases and commits rely on."""
    for trial in try_operations(existing_ancestor(situation.root), OPERATIONS):
        about = f"({trial.name})"
        if trial.problem:
            yield fails(f"{trial.problem}; it is needed so that {trial.what_for}", OTHER_PLACE, about=about)
        else:
            yield ok(f"tried in {existing_ancestor(situation.root)}", about=about)


def is_shared(situation: Situation) -> Iterator[Result]:
    """Compute nodes see the run directory: a node has said so, or the type of the filesystem is a shared one."""
    if situation.slurm is None or any(answer.facts for answer in situation.answers):
        return  # a node that has answered has written its answer there
    found = filesystem(situation.root)
    said = f"/proc/self/mountinfo: {found.type} at {found.mount_point}"
    if found.is_shared:
        yield ok(said)
    else:
        yield doubtful(
            f"{said}, which is not known to be shared with compute nodes",
            "--on-node shows whether they see it; else --run DIRECTORY on a shared filesystem",
        )


def space(situation: Situation) -> Iterator[Result]:
    """There is room for checkpoints and weights versions."""
    found = filesystem(situation.root)
    needed = None if situation.recipe is None else bytes_needed(situation.recipe)
    if needed is None:
        yield ok(found.told())
        return
    said = f"checkpoints and weights need {gigabytes(needed)}; {found.told()}"
    remedy = (
        f"{_make_room(found)}, lower training.keep_checkpoints or training.keep_weights, or evaluate less often; or "
        f"{OTHER_PLACE}"
    )
    if needed > found.writable_bytes:
        yield fails(said, remedy)
    elif needed * SPARE > found.writable_bytes:
        yield doubtful(f"{said}; traces come on top", remedy)
    else:
        yield ok(said)


def _make_room(found: Filesystem) -> str:
    return "make room" if found.quota is None else f"make room, or ask for more quota ({found.quota.command})"


def bytes_needed(recipe: Recipe) -> float | None:
    """Bytes of all checkpoints and weights versions that lie on the disk at a time; None if the model's size is not
    known. One more of each is there while it is written, and evaluated versions stay. The oldest version may be a
    delta, and need all from the whole model that it was made of.
    """
    billions = model_billions(recipe)
    if billions is None:
        return None
    training = recipe.training
    checkpoints = CHECKPOINT_BYTES * (training.keep_checkpoints + 1)
    versions = training.keep_weights + 1 + len(evaluated_versions(recipe)) + _chain(recipe, DELTA_SHARE)
    return billions * 1e9 * (checkpoints + BYTES[training.weights_dtype] * versions)


def _chain(recipe: Recipe, share: float) -> float:
    """What the oldest versions that stay were made of: a whole model, and deltas that count as a share of one."""
    deltas = recipe.training.full_weights_every - 1
    return 1 + (deltas - 1) * share if deltas else 0


def models_on_node_bytes(recipe: Recipe) -> float | None:
    """Bytes of the models that an inference task has in the folder for temporary files of its node, where it puts
    weights versions together that are published as deltas; None if the model's size is not known. Up to
    ``max_staleness + 1`` of them are in use, and one more is being made.
    """
    if recipe.training.full_weights_every == 1:
        return 0.0
    billions = model_billions(recipe)
    if billions is None:
        return None
    return billions * 1e9 * BYTES[recipe.training.weights_dtype] * (recipe.schedule.max_staleness + 2)


def files(situation: Situation) -> Iterator[Result]:
    """There are inodes, and quota of files, for what the recipe writes."""
    found = filesystem(situation.root)
    if situation.recipe is None or situation.plan is None or (free := found.writable_files) is None:
        return
    needed = files_needed(situation.recipe, situation.plan)
    said = f"about {needed:,} files are needed, and {free:,} can be created; {found.told()}"
    remedy = f"remove files, or ask for a higher limit of files; or {OTHER_PLACE}"
    if needed > free:
        yield fails(said, remedy)
    elif needed * SPARE > free:
        yield doubtful(said, remedy)
    else:
        yield ok(said)


def files_needed(recipe: Recipe, plan: Plan) -> int:
    """Files and folders of a run that are there at a time, at most. Groups of past iterations become one file each."""
    groups = recipe.sampling.problems_per_iteration or 0
    live = recipe.schedule.max_staleness + recipe.training.checkpoint_every + 2
    versions = evaluated_versions(recipe)
    problems = sum(count_problems(benchmark.problems) or 0 for benchmark in recipe.evaluation.benchmarks)
    kept = recipe.training.keep_checkpoints + recipe.training.keep_weights + len(versions) + 2
    kept += recipe.training.full_weights_every - 1
    return (
        live * groups * FILES_OF_A_GROUP
        + len(versions) * problems * FILES_OF_A_PROBLEM
        + plan.tasks * FILES_OF_A_TASK
        + kept * FILES_OF_A_RANK * (recipe.resources.trainer.ranks + 4)
        + recipe.schedule.iterations * 4
    )


def server_clock(situation: Situation) -> Iterator[Result]:
    """The clock of this machine agrees with that of the file server."""
    above = existing_ancestor(situation.root)
    skew = _skew(above)
    said = (
        f"a file written in {above} is dated {abs(skew):.1f} s {'after' if skew > 0 else 'before'} this machine's clock"
    )
    if abs(skew) > CLOCK_S:
        yield doubtful(said, "ask the administrators: the clocks of file server and login node differ (`timedatectl`)")
    else:
        yield ok(said)


def _skew(place: Path) -> float:
    """Seconds by which the filesystem's clock is ahead of this machine's."""
    with trial_folder(place) as folder:
        before = time.time()
        (folder / "now").write_text("now")
        dated, after = (folder / "now").stat().st_mtime, time.time()
    if before - 1 <= dated <= after:  # the system stamps files with a clock that ticks slower
        return 0.0
    return dated - after
