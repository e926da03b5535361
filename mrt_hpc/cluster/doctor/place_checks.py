"""Checks of the run directory and its filesystem."""

import time
from collections.abc import Iterator
from pathlib import Path

from mrt_hpc.backends.slurm.plain_paths import require_plain_path
from mrt_hpc.cluster import filesystems
from mrt_hpc.cluster.doctor.checks import CheckResult, doubtful, fails, ok
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.plan.hours import BYTES, count_problems, model_billions
from mrt_hpc.plan.jobs import Plan
from mrt_hpc.recipe.ownership import refuse_to_write
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.layout import RunLayout

OTHER_PLACE = "choose another place for the run: --run DIRECTORY"
CHECKPOINT_BYTES = 12
SPARE = 1.5
"""Less than this factor of room is doubtful: traces and logs come on top."""
FILES_OF_A_GROUP, FILES_OF_A_TASK, FILES_OF_A_RANK, FILES_OF_A_PROBLEM = 8, 15, 4, 3
"""The most files and folders: of an iteration's group, of a task, of one rank's part of a checkpoint or weights
version, and of an evaluated problem.
"""
CLOCK_S = 5.0


def run_directory(situation: Situation) -> Iterator[CheckResult]:
    """The run directory can be made, or is this user's."""
    root, layout = situation.root, RunLayout(situation.root)
    require_plain_path(layout)
    above = filesystems.existing_ancestor(root)
    if root.exists():
        refuse_to_write(root)
        is_foreign = any(root.iterdir()) and not layout.recipe_lock.is_file()
        foreign = fails(f"{root} is not empty, and is not a run", OTHER_PLACE)
        yield foreign if is_foreign else ok(f"{root} is there, and only you can write to it")
    elif not above.is_dir():
        yield fails(f"{above} is a file", OTHER_PLACE)
    else:
        with filesystems.trial_folder(above):
            yield ok(f"{root} can be made in {above}")


def operations(situation: Situation) -> Iterator[CheckResult]:
    """The filesystem does what results, leases and commits rely on."""
    place = filesystems.existing_ancestor(situation.root)
    for trial in filesystems.try_operations(place, filesystems.OPERATIONS):
        about, why = f"({trial.name})", f"{trial.problem}; it is needed so that {trial.what_for}"
        yield fails(why, OTHER_PLACE, about=about) if trial.problem else ok(f"tried in {place}", about=about)


def is_shared(situation: Situation) -> Iterator[CheckResult]:
    """Compute nodes see the run directory: a node has said so, or the filesystem's type is shared."""
    if situation.slurm is None or any(answer.facts for answer in situation.answers):
        return  # a node that has answered has written its answer there
    disk = filesystems.filesystem(situation.root)
    remedy = "--on-node shows whether they see it; else --run DIRECTORY on a shared filesystem"
    yield shared_or_doubtful(disk, f"/proc/self/mountinfo: {disk.type} at {disk.mount_point}", remedy)


def shared_or_doubtful(disk: filesystems.Filesystem, said: str, remedy: str) -> CheckResult:
    doubt = f"{said}, which is not known to be shared with compute nodes"
    return ok(said) if disk.is_shared else doubtful(doubt, remedy)


def space(situation: Situation) -> Iterator[CheckResult]:
    """Checkpoints and weights versions have room."""
    disk = filesystems.filesystem(situation.root)
    needed = None if situation.recipe is None else bytes_needed(situation.recipe)
    if needed is None:
        yield ok(disk.facts_text())
        return
    said = f"checkpoints and weights need {filesystems.gigabytes(needed)}; {disk.facts_text()}"
    more = "" if disk.quota is None else f", or ask for more quota ({disk.quota.command})"
    remedy = (
        f"make room{more}, lower training.keep_checkpoints or training.keep_weights, or evaluate less often; or "
        f"{OTHER_PLACE}"
    )
    yield _room(needed, disk.writable_bytes, said, remedy, "; traces come on top")


def _room(needed: float, free: float, said: str, remedy: str, doubt: str = "") -> CheckResult:
    if needed > free:
        return fails(said, remedy)
    return doubtful(f"{said}{doubt}", remedy) if needed * SPARE > free else ok(said)


def bytes_needed(recipe: Recipe) -> float | None:
    """None for an unknown model size. One more of each is being written, and evaluated versions stay."""
    if (billions := model_billions(recipe)) is None:
        return None
    training = recipe.training
    checkpoints = CHECKPOINT_BYTES * (training.keep_checkpoints + 1)
    versions = training.keep_weights + 1 + len(recipe.evaluated_versions)
    return billions * 1e9 * (checkpoints + BYTES[training.weights_dtype] * versions)


def files(situation: Situation) -> Iterator[CheckResult]:
    disk = filesystems.filesystem(situation.root)
    if situation.recipe is None or situation.plan is None or (free := disk.writable_files) is None:
        return
    needed = files_needed(situation.recipe, situation.plan)
    said = f"about {needed:,} files are needed, and {free:,} can be created; {disk.facts_text()}"
    yield _room(needed, free, said, f"remove files, or ask for a higher limit of files; or {OTHER_PLACE}")


def files_needed(recipe: Recipe, plan: Plan) -> int:
    """The most files and folders of a run at a time; past iterations' groups become one file each."""
    groups = recipe.sampling.problems_per_iteration or 0
    live = recipe.schedule.max_staleness + recipe.training.checkpoint_every + 2
    versions = recipe.evaluated_versions
    problems = sum(count_problems(benchmark.problems) or 0 for benchmark in recipe.evaluation.benchmarks)
    kept = recipe.training.keep_checkpoints + recipe.training.keep_weights + len(versions) + 2
    return (
        live * groups * FILES_OF_A_GROUP
        + len(versions) * problems * FILES_OF_A_PROBLEM
        + plan.tasks * FILES_OF_A_TASK
        + kept * FILES_OF_A_RANK * (recipe.resources.trainer.ranks + 4)
        + recipe.schedule.iterations * 4
    )


def server_clock(situation: Situation) -> Iterator[CheckResult]:
    above = filesystems.existing_ancestor(situation.root)
    skew = _skew(above)
    remedy = "ask the administrators: the clocks of file server and login node differ (`timedatectl`)"
    side = "after" if skew > 0 else "before"
    said = f"a file written in {above} is dated {abs(skew):.1f} s {side} this machine's clock"
    yield doubtful(said, remedy) if abs(skew) > CLOCK_S else ok(said)


def _skew(place: Path) -> float:
    """Seconds by which the filesystem's clock is ahead."""
    with filesystems.trial_folder(place) as folder:
        before = time.time()
        (folder / "now").write_text("now")
        dated, after = (folder / "now").stat().st_mtime, time.time()
    # the system stamps files with a clock that ticks slower
    return 0.0 if before - 1 <= dated <= after else dated - after
