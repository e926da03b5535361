"""Checks of this machine: the Python and the image of the tasks, scratch, and the limits that jobs inherit."""

import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import mrt_hpc
from mrt_hpc.attempt.gpus import OLDEST_DRIVER
from mrt_hpc.attempt.python_look import PythonLookError, look_at_python, no_sampling
from mrt_hpc.backends.slurm.parameters import folders_read, require_plain_path
from mrt_hpc.cluster.doctor.checks import CheckResult, doubtful, fails, not_checked, ok
from mrt_hpc.cluster.doctor.node_half import LIMITS
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.cluster.filesystems import (
    GIB,
    OPERATIONS,
    Filesystem,
    existing_ancestor,
    filesystem,
    gigabytes,
    scratch_problems,
    trial_folder,
    try_operations,
)
from mrt_hpc.domains.base import Verifier
from mrt_hpc.domains.verifiers import verifiers_of
from mrt_hpc.errors import UserError, word
from mrt_hpc.inference.server_main import LONGEST_SOCKET_FOLDER
from mrt_hpc.plan.hours import BYTES, count_problems, model_billions
from mrt_hpc.plan.jobs import Plan
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import HuggingFaceModel, JsonlProblems, SmallWorldProblems
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.submit.create import (
    check_model,
    given_samples,
    problems_of,
    refuse_repeated_problems,
    refuse_writable_by_others,
)

IMAGE_INSTEAD = "or build an image, `mrt-hpc container build {kind} mrt-hpc-{kind}.sif`, and name it as container.image"
LEAST_OPEN_FILES = 4096
LEAST_PROCESSES = 1024
LEAST_BYTES, LEAST_FILES = GIB, 10_000
"""What the filesystem of the environment should have free."""


def python(situation: Situation) -> Iterator[CheckResult]:
    """The Python that runs the tasks is here, has this version of mrt-hpc and the training stack."""
    site = situation.slurm
    if site is not None and site.container is not None:
        return
    path = sys.executable if site is None or site.python is None else site.python
    if not Path(path).exists():
        yield fails(
            f"site profile: python: {path} does not exist here",
            "set python in the site profile to the Python of an environment on the shared filesystem (env/setup "
            "cuda), or to null for the Python that runs mrt-hpc",
        )
        return
    kind = _kind(situation)
    yield from _asked(
        situation,
        path,
        [path],
        f"run `env/setup {kind}` of a checkout on the shared filesystem and name its .venv/bin/python as python in the "
        f"site profile; {IMAGE_INSTEAD.format(kind=kind)}",
    )


def image(situation: Situation) -> Iterator[CheckResult]:
    """The image of the profile and Apptainer are here, and the Python in it has this version of mrt-hpc."""
    site = situation.slurm
    if site is None or site.container is None:
        return
    container = site.container
    if not Path(container.image).exists():
        yield fails(
            f"site profile: container.image: {container.image} does not exist",
            f"mrt-hpc container build {_kind(situation)} {container.image}; or correct container.image",
        )
        return
    if not os.access(container.image, os.R_OK):
        yield fails(f"{container.image} cannot be read by you", f"chmod +r {word(Path(container.image))}, as its owner")
        return
    if shutil.which(container.executable) is None:
        yield doubtful(
            f"{container.executable} is not in PATH here; the image was not tried",
            "--on-node shows whether compute nodes have it; a `module load` belongs into setup of the site profile",
        )
        return
    remedy = f"mrt-hpc container build {_kind(situation)} {container.image} --force, with this version of mrt-hpc"
    yield from _asked(situation, container.image, container.python_words, remedy)


def _kind(situation: Situation) -> str:
    """The locked environment that the jobs of this recipe and site need."""
    return "cuda" if situation.uses_gpus else "cpu"


def _asked(situation: Situation, name: str, words: list[str], remedy: str) -> Iterator[CheckResult]:
    """Start a Python as a task would, and compare what it has."""
    site = situation.slurm
    setup = () if site is None else site.setup
    try:
        has = look_at_python(words, setup=setup, environment=None if site is None else site.environment)
    except PythonLookError as error:
        if error.timed_out:
            yield doubtful(f"{name}: {error}", "try `mrt-hpc doctor --on-node`")
            return
        yield fails(
            f"{name} cannot be started{' after the lines of setup' if setup else ''}: {error}",
            f"{'correct setup in the site profile; or ' if setup else ''}{remedy}",
        )
        return
    said = f"{name}: Python {has.python}, mrt-hpc {has.mrt_hpc or 'missing'}"
    if has.mrt_hpc != mrt_hpc.__version__:
        yield fails(f"{said}; this command has mrt-hpc {mrt_hpc.__version__}", remedy)
    elif has.errors:
        yield fails(f"{said}, without {', '.join(has.errors)}, which tasks need", remedy)
    elif has.needs_gpus and (recipe := situation.recipe) and (refusal := no_sampling(recipe, lambda: name)) is not None:
        yield fails(refusal.evidence, refusal.advice or remedy)
    elif situation.uses_gpus and has.cuda is None:
        result = fails if situation.recipe is not None else doubtful
        yield result(f"{said}; its torch is a build without CUDA, and jobs ask for GPUs", remedy)
    else:
        yield ok(f"{said}{_cuda(has.cuda)}")


def _cuda(version: str | None) -> str:
    if version is None:
        return ", torch without CUDA"
    oldest = OLDEST_DRIVER.get(int(version.partition(".")[0]))
    return f", torch for CUDA {version}" + (f", which needs driver {oldest} or newer" if oldest else "")


def scratch(situation: Situation) -> Iterator[CheckResult]:
    """The folder for sockets and temporary files is short enough for a socket, and absolute. Where tasks run here, it
    does what they do in it.
    """
    site = situation.slurm
    if site is None:
        yield from scratch_results("this machine", scratch_problems(Path(tempfile.gettempdir()), os.environ))
    if site is None or site.scratch is None:
        return
    path = site.scratch
    for name, value in (("SLURM_JOB_ID", "12345678"), ("SLURM_ARRAY_TASK_ID", "100")):
        path = path.replace(f"${{{name}}}", value).replace(f"${name}", value)
    path = os.path.expandvars(path)
    if not path.startswith(("/", "$")):
        yield fails(
            f"site profile: scratch: {site.scratch} is no absolute path", "set scratch to a path that begins with /"
        )
    elif len(path) > LONGEST_SOCKET_FOLDER:
        yield doubtful(
            f"site profile: scratch: {path} has {len(path)} characters, more than the {LONGEST_SOCKET_FOLDER} that "
            "leave room for a socket: servers put their sockets into /tmp instead",
            "choose a shorter scratch if nodes have no /tmp of their own",
        )
    else:
        yield ok(f"site profile: scratch: {path} has {len(path)} of at most {LONGEST_SOCKET_FOLDER} characters")


def scratch_results(node: str, problems: Mapping[str, str]) -> Iterator[CheckResult]:
    """What a node's folder for temporary files does not do.

    Args:
        node: the node's name.
        problems: by operation; empty text where it works.
    """
    remedy = (
        "set scratch in the site profile (on this machine TMPDIR) to a folder on a disk of each node that takes locks "
        "and sockets and is not mounted noexec; where a variable is named, set that one in environment, or remove it"
    )
    return trial_results(node, problems, remedy, "(what tasks do there)")


def trial_results(node: str, problems: Mapping[str, str], remedy: str, about: str) -> Iterator[CheckResult]:
    """What was tried on a node: the operations that do not work there, or all of them in one result.

    Args:
        node: its name.
        problems: what went wrong by operation; empty text where it works.
        remedy: for each that does not work.
        about: what the result is about where all work.
    """
    broken = {name: problem for name, problem in problems.items() if problem}
    for name, problem in broken.items():
        yield fails(f"on {node}: {problem}", remedy, about=f"({name})")
    if problems and not broken:
        yield ok(f"on {node}: {', '.join(problems)}", about=about)


def environment(situation: Situation) -> Iterator[CheckResult]:
    """The filesystem of the Python that runs the tasks has some room: one that is full ends more than installations."""
    site = situation.slurm
    if site is not None and site.container is not None:
        return
    environment_disk = filesystem(Path(sys.executable if site is None or site.python is None else site.python).parent)
    few = environment_disk.writable_files is not None and environment_disk.writable_files < LEAST_FILES
    if few or environment_disk.writable_bytes < LEAST_BYTES:
        remedy = "make room: `uv cache clean` removes uv's cache, which may be as large as the environment"
        yield doubtful(environment_disk.in_words(), f"{remedy}; env/setup says how much an environment needs")
    else:
        yield ok(environment_disk.in_words())


def verifiers(situation: Situation) -> Iterator[CheckResult]:
    """Verifiers that need something of the machine find it here, where tasks run here."""
    for verifier in [] if situation.recipe is None else verifiers_of(situation.recipe):
        if type(verifier).refusal is Verifier.refusal:
            continue
        if situation.slurm is not None:
            yield not_checked("answers are judged on compute nodes", "add --on-node", about=verifier.type)
        elif (refusal := verifier.refusal()) is not None:
            yield fails(refusal.evidence, refusal.advice or "give it what it lacks", about=verifier.type)
        else:
            yield ok("answers can be judged here", about=verifier.type)


def inherited_limits(situation: Situation) -> Iterator[CheckResult]:
    """No limit of this shell (ulimit), which jobs inherit, ends a task."""
    settings = None if situation.cluster is None else situation.cluster.settings
    if situation.slurm is not None and settings is not None and not settings.propagates:
        yield ok("scontrol show config: PropagateResourceLimits = NONE: jobs do not inherit the limits of this shell")
        return
    failures = list(limit_results({name: resource.getrlimit(number) for name, number in LIMITS.items()}))
    yield from failures or [ok("ulimit: no limit of this shell, which jobs inherit, is too low")]


def limit_results(limits: dict[str, tuple[int, int]]) -> Iterator[CheckResult]:
    """The limits that are too low.

    Args:
        limits: soft and hard limit by name; -1 for none.
    """
    where = "in ~/.bashrc or before mrt-hpc submit, or `sbatch: {propagate: NONE}` in the site profile"
    if limits["cpu"][0] != resource.RLIM_INFINITY:
        yield fails(
            f"ulimit -t: {limits['cpu'][0]} s of CPU time: tasks are killed after that", f"ulimit -t unlimited {where}"
        )
    if limits["as"][0] != resource.RLIM_INFINITY:
        yield fails(
            f"ulimit -v: {limits['as'][0] // 1024} KiB of address space: CUDA and vLLM reserve far more",
            f"ulimit -v unlimited {where}",
        )
    if limits["fsize"][0] != resource.RLIM_INFINITY:
        yield fails(f"ulimit -f: files of {limits['fsize'][0]} bytes at most", f"ulimit -f unlimited {where}")
    if 0 <= limits["nofile"][1] < LEAST_OPEN_FILES:
        yield doubtful(f"ulimit -Hn: {limits['nofile'][1]} open files", f"ulimit -n {LEAST_OPEN_FILES} {where}")
    if 0 <= limits["nproc"][0] < LEAST_PROCESSES:
        yield doubtful(f"ulimit -u: {limits['nproc'][0]} processes and threads", f"ulimit -u {LEAST_PROCESSES} {where}")


def cuda_here(situation: Situation) -> Iterator[CheckResult]:
    """Whether GPUs were looked at: that takes a job on a node."""
    if situation.slurm is not None and situation.uses_gpus and not situation.answers:
        yield not_checked("drivers and GPUs are on compute nodes", "add --on-node")


# -- place checks ------------------------------------------------------------------------------------------------------
# Checks of the run directory and its filesystem.


OTHER_PLACE = "choose another place for the run: --run DIRECTORY"
CHECKPOINT_BYTES = 12
"""Bytes of a checkpoint for each parameter."""
DELTA_SHARE = 0.2
"""The bytes of a weights version that is a delta, as a share of a whole model's; at usual learning rates it is less."""
SPARE = 1.5
"""Space that is less than this many times what is needed is doubtful: traces and logs come on top."""
FILES_OF_A_GROUP, FILES_OF_A_TASK, FILES_OF_A_RANK, FILES_OF_A_PROBLEM = 8, 15, 4, 3
"""The most files and folders: of an iteration's group, of a task (state, events, logs), of one rank's part of a
checkpoint or weights version, and of an evaluated problem."""
CLOCK_S = 5.0
"""Seconds by which the clocks of two machines may differ."""


def run_directory(situation: Situation) -> Iterator[CheckResult]:
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


def operations(situation: Situation) -> Iterator[CheckResult]:
    """The filesystem does what results, leases and commits rely on."""
    for trial in try_operations(existing_ancestor(situation.root), OPERATIONS):
        about = f"({trial.name})"
        if trial.problem:
            yield fails(f"{trial.problem}; it is needed so that {trial.what_for}", OTHER_PLACE, about=about)
        else:
            yield ok(f"tried in {existing_ancestor(situation.root)}", about=about)


def is_shared(situation: Situation) -> Iterator[CheckResult]:
    """Compute nodes see the run directory: a node has said so, or the type of the filesystem is a shared one."""
    if situation.slurm is None or any(answer.facts for answer in situation.answers):
        return  # a node that has answered has written its answer there
    disk = filesystem(situation.root)
    said = f"/proc/self/mountinfo: {disk.type} at {disk.mount_point}"
    yield _shared(disk, said, "--on-node shows whether they see it; else --run DIRECTORY on a shared filesystem")


def _shared(disk: Filesystem, said: str, remedy: str) -> CheckResult:
    doubt = f"{said}, which is not known to be shared with compute nodes"
    return ok(said) if disk.is_shared else doubtful(doubt, remedy)


def space(situation: Situation) -> Iterator[CheckResult]:
    """There is room for checkpoints and weights versions."""
    disk = filesystem(situation.root)
    needed = None if situation.recipe is None else bytes_needed(situation.recipe)
    if needed is None:
        yield ok(disk.in_words())
        return
    said = f"checkpoints and weights need {gigabytes(needed)}; {disk.in_words()}"
    remedy = (
        f"{_make_room(disk)}, lower training.keep_checkpoints or training.keep_weights, or evaluate less often; or "
        f"{OTHER_PLACE}"
    )
    yield _room(needed, disk.writable_bytes, said, remedy, "; traces come on top")


def _room(needed: float, free: float, said: str, remedy: str, doubt: str = "") -> CheckResult:
    """Whether what is free is enough, and some more than that."""
    if needed > free:
        return fails(said, remedy)
    return doubtful(f"{said}{doubt}", remedy) if needed * SPARE > free else ok(said)


def _make_room(disk: Filesystem) -> str:
    return "make room" if disk.quota is None else f"make room, or ask for more quota ({disk.quota.command})"


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
    versions = training.keep_weights + 1 + len(recipe.evaluated_versions) + _chain(recipe, DELTA_SHARE)
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


def files(situation: Situation) -> Iterator[CheckResult]:
    """There are inodes, and quota of files, for what the recipe writes."""
    disk = filesystem(situation.root)
    if situation.recipe is None or situation.plan is None or (free := disk.writable_files) is None:
        return
    needed = files_needed(situation.recipe, situation.plan)
    said = f"about {needed:,} files are needed, and {free:,} can be created; {disk.in_words()}"
    yield _room(needed, free, said, f"remove files, or ask for a higher limit of files; or {OTHER_PLACE}")


def files_needed(recipe: Recipe, plan: Plan) -> int:
    """Files and folders of a run that are there at a time, at most. Groups of past iterations become one file each."""
    groups = recipe.sampling.problems_per_iteration or 0
    live = recipe.schedule.max_staleness + recipe.training.checkpoint_every + 2
    versions = recipe.evaluated_versions
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


def server_clock(situation: Situation) -> Iterator[CheckResult]:
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


# -- input checks ------------------------------------------------------------------------------------------------------
# Checks of the model and the data that a recipe names.


MAKE_IT = (
    "make it on a node with network access (`mrt-hpc data prepare SOURCE FILE`), or correct the path in the recipe "
    "(`mrt-hpc fields data`)"
)


def model(situation: Situation) -> Iterator[CheckResult]:
    """The model's directory is there and complete, and its files show no fault."""
    if (recipe := situation.recipe) is None:
        return
    check_model(recipe)
    if isinstance(recipe.model, HuggingFaceModel):
        yield ok(f"config.json, tokenizer and weights are complete in {recipe.model.path}")
    else:
        yield ok("the first job makes the model")


def data(situation: Situation) -> Iterator[CheckResult]:
    """The training data and every benchmark are there and can be read."""
    if (recipe := situation.recipe) is None:
        return
    yield _read("for training", recipe.data, recipe)
    for benchmark in recipe.evaluation.benchmarks:
        yield _read(f"of benchmark {benchmark.name}", benchmark.problems)


def _read(about: str, source: object, trained: Recipe | None = None) -> CheckResult:
    """The result of reading one source, which says what is in it; of the data of a recipe, also whether problems
    repeat.
    """
    path = getattr(source, "path", None)
    if path is not None and not Path(path).is_file():
        return fails(f"there is no file {Path(path).resolve()}", MAKE_IT, about=about)
    try:
        if isinstance(source, JsonlProblems | SmallWorldProblems):
            problems = problems_of(source)
            if trained is not None:
                refuse_repeated_problems(trained, problems)
            said = f"{len(problems):,} problems"
        else:
            assert trained is not None, "only a recipe trains on given samples"
            said = f"{len(given_samples(trained)):,} samples"
    except UserError as error:
        return fails(error.evidence, error.advice or "correct the file", about=about)
    return ok(f"{said} {'of the small world' if path is None else f'in {path}'}", about=about)


def inputs_are_shared(situation: Situation) -> Iterator[CheckResult]:
    """Compute nodes see the folders of models and prompts."""
    if situation.recipe is None or situation.slurm is None or any(answer.facts for answer in situation.answers):
        return  # a node that has answered has looked itself
    folders = [Path(folder) for folder in folders_read(situation.recipe) if Path(folder).exists()]
    for folder in folders:
        if any(folder.is_relative_to(other) for other in folders if other != folder):
            continue  # said of the folder that it is in
        disk = filesystem(folder)
        remedy = "--on-node shows whether they can read it; else move it to a shared filesystem"
        yield _shared(disk, f"{folder} is on {disk.type} at {disk.mount_point}", remedy)
