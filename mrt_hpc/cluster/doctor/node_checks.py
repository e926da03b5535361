"""Checks of compute nodes, by what their half of the doctor has answered."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec

import mrt_hpc
from mrt_hpc.attempt.gpus import GpuView, verdict
from mrt_hpc.cluster.doctor.checks import CheckResult, doubtful, fails, not_checked, ok
from mrt_hpc.cluster.doctor.local_checks import limit_results, scratch_results, trial_results
from mrt_hpc.cluster.doctor.node_half import LONGEST_TRIP_S, ROUNDS, SIGNALS, NodeFacts
from mrt_hpc.cluster.doctor.place_checks import CLOCK_S, OTHER_PLACE
from mrt_hpc.cluster.doctor.situation import NodeAnswer, Situation
from mrt_hpc.cluster.filesystems import GIB, gigabytes
from mrt_hpc.plan.jobs import JobKind, JobResources
from mrt_hpc.recipe.sections import Resilience

SLOW_TRIP_S = 10.0
"""Longer trips of a file there and back make waits noticeable."""
LEAST_SCRATCH = 10 * GIB
"""The room for what vLLM and torch compile, and a copy of small files."""
LEAST_SHARED_MEMORY = GIB
LEAST_LOCKED = GIB
"""Sites with a fast network have no limit."""
COMPILER = (
    "setup: [module load gcc] in the site profile for a compiler; a Python with its headers for Python.h, as that of "
    "`uv python install`; or an image of `mrt-hpc container build cuda`, which has both"
)
ONE_GPU = JobResources(
    nodes=1, ranks_per_node=1, gpus_per_rank=1, cpus_per_rank=1, memory_gib_per_node=1.0, time_limit_minutes=1
)


def nodes(situation: Situation) -> Iterator[CheckResult]:
    """Nothing where the nodes were not asked."""
    for answer in situation.answers:
        partition = answer.partition or "the default partition"
        if answer.kind == "gpu" and [other.partition for other in situation.answers].count(answer.partition) > 1:
            partition += " with GPUs"
        for result in _answer_results(situation, answer):
            yield replace(result, check=f"{partition}: {result.check}".strip(": "))


def _answer_results(situation: Situation, answer: NodeAnswer) -> Iterator[CheckResult]:
    for change in answer.changed:
        yield doubtful(f"scontrol show job {answer.job_id}: {change.sentence}", change.advice, about=change.field)
    if answer.setup_problem:
        yield doubtful(
            f"job {answer.job_id}: {answer.setup_problem}, and jobs go on after it",
            "correct setup in the site profile, and type the same command again",
            about="setup",
        )
    if (facts := answer.facts) is None:
        correct = (
            "correct the site profile by what this says (setup, python, container, partitions, run directory on a "
            "shared filesystem), and type the same command again"
        )
        later = "type the same command again later, or with a longer --wait"
        yield not_checked(answer.problem, later) if answer.waits else fails(answer.problem, correct)
        return
    yield ok(f"{facts.node} answered {answer.queued_s:.0f} s after sbatch (job {answer.job_id})")
    yield replace(_versions(facts), check="versions")
    yield replace(_visibility(situation, facts), check="visibility of files")
    yield replace(_clock(facts), check="clock")
    if facts.name_problem and any(job.resources.nodes > 1 for job in situation.jobs(answer.kind)):
        yield doubtful(
            f"on {facts.node}: {facts.name_problem}; tasks of several nodes take the interface towards another node",
            "look whether nodes resolve each other's names (`srun -N2 getent hosts NAME`); where they do not, name the "
            "interface, as in environment: {GLOO_SOCKET_IFNAME: ib0} of the site profile",
            about="names of nodes",
        )
    yield replace(_signals(facts), check="signals")
    for result in trial_results(facts.node, facts.operations, OTHER_PLACE, ""):
        yield replace(result, check=f"filesystem {result.check}".strip())
    yield replace(_commands(answer), check="Slurm's commands")
    for result in scratch_results(facts.node, facts.scratch):
        yield replace(result, check=f"scratch {result.check}")
    yield replace(_scratch(facts), check="scratch")
    if facts.compiler_problem:
        finding = fails if situation.recipe is not None else doubtful
        said = f"on {facts.node}: {facts.compiler_problem}; Triton compiles when a server starts"
        yield finding(said, COMPILER, about="compiler")
    yield from _shared_memory(facts)
    yield from (replace(result, check="limits") for result in limit_results(facts.limits))
    yield from _locked_memory(situation, answer.kind, facts)
    yield from _readable(facts)
    for verifier, (evidence, remedy) in facts.refusals.items():
        yield fails(f"on {facts.node}: {evidence}", remedy, about=f"verifier {verifier}")
    if facts.gpu_view is not None or facts.gpu_problem:
        yield replace(_gpu(situation, facts), check="GPUs")


def _versions(facts: NodeFacts) -> CheckResult:
    packages = ", ".join(f"{name} {version}" for name, version in facts.packages.items())
    said = f"{facts.node} has mrt-hpc {facts.version}, Python {facts.python}, {packages}"
    if facts.version != mrt_hpc.__version__:
        remedy = "install the same version of mrt-hpc on both, and set python in the site profile to it"
        return fails(f"{said}; this command has mrt-hpc {mrt_hpc.__version__}", remedy)
    return ok(said)


def _visibility(situation: Situation, facts: NodeFacts) -> CheckResult:
    if len(facts.trips_s) < ROUNDS:
        return fails(
            f"a file that this machine wrote was not seen by {facts.node} within {LONGEST_TRIP_S:.0f} s",
            f"{OTHER_PLACE}, on a filesystem that both see; or ask the administrators about its caching of names (on "
            "NFS the mount option lookupcache)",
        )
    slowest = max(facts.trips_s)
    said = f"a file to {facts.node} and back took {slowest:.1f} s at most, in {ROUNDS} trials"
    limit_s = (situation.recipe.resilience if situation.recipe else Resilience()).heartbeat_limit_s
    if slowest > limit_s:
        remedy = f"--set resilience.heartbeat_limit_s={round(slowest * 3)}, or {OTHER_PLACE}"
        return fails(f"{said}, longer than resilience.heartbeat_limit_s ({limit_s:g} s)", remedy)
    remedy = f"a run works, and each hand-over waits for that; a faster filesystem: {OTHER_PLACE}"
    return doubtful(said, remedy) if slowest > SLOW_TRIP_S else ok(said)


def _clock(facts: NodeFacts) -> CheckResult:
    if not facts.trips_s:
        return not_checked("no file came back")
    said = f"clocks of {facts.node} and this machine differ by {abs(facts.skew_s):.1f} s"
    if abs(facts.skew_s) > CLOCK_S + min(facts.trips_s) / 2:
        return doubtful(
            said,
            "report it to the administrators; a run judges heartbeats by each task's own clock, but times in logs and "
            "the report will not agree",
        )
    return ok(said)


def _signals(facts: NodeFacts) -> CheckResult:
    arrived = " and ".join(f"SIG{name}" for name in SIGNALS if name in facts.signals)
    missing = " and ".join(f"SIG{name}" for name in SIGNALS if name not in facts.signals)
    if missing:
        return doubtful(
            f"scancel --signal: {missing} did not reach the task on {facts.node}",
            "a preempted task then loses its unfinished work: --set training.checkpoint_every=1; if the site profile "
            "has a container or a script as python, make it end with exec",
        )
    if facts.lost_files:
        return fails(
            f"scancel --signal: {arrived} reached the task on {facts.node}, and ended the mount of its image: "
            f"{facts.lost_files}",
            "container: {unpack: true} in the site profile",
        )
    return ok(f"scancel --signal: {arrived} reached the task")


def _commands(answer: NodeAnswer) -> CheckResult:
    missing = [name for name in ("scontrol", "squeue") if name not in answer.slurm_commands]
    if not missing:
        return ok("scontrol and squeue are in PATH of the job")
    return doubtful(
        f"{' and '.join(missing)} not in PATH of the job: a task cannot queue itself again before its time limit",
        "add Slurm's commands to PATH in setup of the site profile (`module load slurm`), or type the same "
        "`mrt-hpc submit` when a task has ended",
    )


def _scratch(facts: NodeFacts) -> CheckResult:
    """The folder for temporary files has room."""
    said = f"{facts.temporary} on {facts.node} has {gigabytes(facts.temporary_free_bytes)} free"
    if facts.temporary_free_bytes < LEAST_SCRATCH:
        remedy = f"set scratch in the site profile to a folder with {gigabytes(LEAST_SCRATCH)} or more"
        return doubtful(said, remedy)
    return ok(said)


def _locked_memory(situation: Situation, kind: JobKind, facts: NodeFacts) -> Iterator[CheckResult]:
    """NCCL locks the memory that network cards read; so may GPUs of one node."""
    soft = facts.limits["memlock"][0]
    wide = [job for job in situation.jobs(kind) if job.resources.gpus > 1]
    if wide and 0 <= soft < LEAST_LOCKED:
        yield doubtful(
            f"ulimit -l: {soft // 1024} KiB of locked memory on {facts.node}; NCCL locks more in {wide[0].name}",
            "ask the administrators for unlimited locked memory in jobs; until then "
            "`environment: {NCCL_IB_DISABLE: '1'}` in the site profile, which is slower between nodes",
            about="limits",
        )


def _shared_memory(facts: NodeFacts) -> Iterator[CheckResult]:
    if facts.shared_memory_bytes is not None and facts.shared_memory_bytes < LEAST_SHARED_MEMORY:
        yield doubtful(
            f"/dev/shm on {facts.node} has {gigabytes(facts.shared_memory_bytes)} free; NCCL and vLLM use it",
            "ask for more memory in resources of the recipe, or ask the administrators",
            about="shared memory",
        )


def _readable(facts: NodeFacts) -> Iterator[CheckResult]:
    for path, problem in facts.unreadable.items():
        yield fails(
            f"{facts.node} cannot read {path}: {problem}",
            "move it to a filesystem that compute nodes see, or add it to container.binds in the site profile",
            about="model and files",
        )


def _gpu(situation: Situation, facts: NodeFacts) -> CheckResult:
    if facts.gpu_view is None:
        return fails(facts.gpu_problem, "run `nvidia-smi` there, and report it to the administrators")
    view = msgspec.convert(facts.gpu_view, GpuView)
    colocated = situation.recipe is not None and situation.recipe.is_colocated
    if (error := verdict(view, ONE_GPU, shared=colocated)) is None:
        return ok(f"{view.describe_gpus()}; torch for CUDA {view.torch_cuda}")
    result = fails if situation.recipe is not None else doubtful
    evidence = error.evidence.partition("; in node ")[0]
    return result(f"{evidence} (on {facts.node})", error.advice or "choose another partition")
