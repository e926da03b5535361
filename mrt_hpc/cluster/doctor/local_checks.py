"""Checks of what tasks take for granted on this machine and of Slurm."""

import os
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from mrt_hpc.cluster.doctor.checks import CheckResult, doubtful, fails, not_checked, ok
from mrt_hpc.cluster.doctor.node_half import LIMITS
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.cluster.filesystems import GIB, filesystem, scratch_problems
from mrt_hpc.domains.base import Verifier
from mrt_hpc.domains.verifiers import verifiers_of
from mrt_hpc.inference.server_main import LONGEST_SOCKET_FOLDER
from mrt_hpc.plan.jobs import few_names
from mrt_hpc.run.layout import RunLayout

LEAST_OPEN_FILES = 4096
LEAST_PROCESSES = 1024
LEAST_BYTES, LEAST_FILES = GIB, 10_000


def scratch(situation: Situation) -> Iterator[CheckResult]:
    """The folder is absolute and short enough for a socket. Where tasks run here, it does what they do in it."""
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
        remedy = "set scratch to a path that begins with /"
        yield fails(f"site profile: scratch: {site.scratch} is no absolute path", remedy)
    elif len(path) > LONGEST_SOCKET_FOLDER:
        yield doubtful(
            f"site profile: scratch: {path} has {len(path)} characters, more than the {LONGEST_SOCKET_FOLDER} that "
            "leave room for a socket: servers put their sockets into /tmp instead",
            "choose a shorter scratch if nodes have no /tmp of their own",
        )
    else:
        yield ok(f"site profile: scratch: {path} has {len(path)} of at most {LONGEST_SOCKET_FOLDER} characters")


def scratch_results(node: str, problems: Mapping[str, str]) -> Iterator[CheckResult]:
    """``problems`` are by operation, empty where it works."""
    remedy = (
        "set scratch in the site profile (on this machine TMPDIR) to a folder on a disk of each node that takes locks "
        "and sockets and is not mounted noexec; where a variable is named, set that one in environment, or remove it"
    )
    return trial_results(node, problems, remedy, "(what tasks do there)")


def trial_results(node: str, problems: Mapping[str, str], remedy: str, about: str) -> Iterator[CheckResult]:
    """The operations that fail on a node, or one result if all work."""
    broken = {name: problem for name, problem in problems.items() if problem}
    for name, problem in broken.items():
        yield fails(f"on {node}: {problem}", remedy, about=f"({name})")
    if problems and not broken:
        yield ok(f"on {node}: {', '.join(problems)}", about=about)


def environment(situation: Situation) -> Iterator[CheckResult]:
    """The filesystem of the tasks' Python has some room: a full one ends more than installations."""
    site = situation.slurm
    if site is not None and site.container is not None:
        return
    disk = filesystem(Path(sys.executable if site is None else site.python or sys.executable).parent)
    few = disk.writable_files is not None and disk.writable_files < LEAST_FILES
    remedy = "make room: `uv cache clean` removes uv's cache, which may be as large as the environment"
    more = f"{remedy}; env/setup says how much an environment needs"
    yield doubtful(disk.facts_text(), more) if few or disk.writable_bytes < LEAST_BYTES else ok(disk.facts_text())


def verifiers(situation: Situation) -> Iterator[CheckResult]:
    """Verifiers find what they need, where tasks run here."""
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
    """No inherited limit of this shell (ulimit) ends a task."""
    settings = None if situation.cluster is None else situation.cluster.settings
    if situation.slurm is not None and settings is not None and not settings.propagates:
        yield ok("scontrol show config: PropagateResourceLimits = NONE: jobs do not inherit the limits of this shell")
        return
    failures = list(limit_results({name: resource.getrlimit(number) for name, number in LIMITS.items()}))
    yield from failures or [ok("ulimit: no limit of this shell, which jobs inherit, is too low")]


def limit_results(limits: dict[str, tuple[int, int]]) -> Iterator[CheckResult]:
    """Limits by name, soft and hard; -1 for none."""
    where = "in ~/.bashrc or before mrt-hpc submit, or `sbatch: {propagate: NONE}` in the site profile"
    seconds, space, size = (limits[name][0] for name in ("cpu", "as", "fsize"))
    for option, limit, said in (
        ("-t", seconds, f"{seconds} s of CPU time: tasks are killed after that"),
        ("-v", space, f"{space // 1024} KiB of address space: CUDA and vLLM reserve far more"),
        ("-f", size, f"files of {size} bytes at most"),
    ):
        if limit != resource.RLIM_INFINITY:
            yield fails(f"ulimit {option}: {said}", f"ulimit {option} unlimited {where}")
    if 0 <= limits["nofile"][1] < LEAST_OPEN_FILES:
        yield doubtful(f"ulimit -Hn: {limits['nofile'][1]} open files", f"ulimit -n {LEAST_OPEN_FILES} {where}")
    if 0 <= limits["nproc"][0] < LEAST_PROCESSES:
        yield doubtful(f"ulimit -u: {limits['nproc'][0]} processes and threads", f"ulimit -u {LEAST_PROCESSES} {where}")


def tested_jobs(situation: Situation) -> Iterator[CheckResult]:
    """``sbatch --test-only`` takes a job of each kind."""
    if situation.slurm is None or situation.plan is None or situation.recipe is None:
        return
    answers = situation.slurm.backend().starts(situation.plan.jobs, situation.recipe, RunLayout(situation.root))
    for answer in answers:
        said = f"{answer.asked}, {few_names(answer.jobs)}: {answer.answer or 'taken'}"
        if answer.is_taken:
            yield ok(said)
        elif answer.is_taken is None:
            yield not_checked(said, "submit asks again before it sends a job, and goes on without an answer")
        else:
            yield fails(said, "correct what is named in the site profile")


def cuda_here(situation: Situation) -> Iterator[CheckResult]:
    """GPUs were looked at, which takes a job on a node."""
    if situation.slurm is not None and situation.uses_gpus and not situation.answers:
        yield not_checked("drivers and GPUs are on compute nodes", "add --on-node")
