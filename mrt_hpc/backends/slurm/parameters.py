"""Makes of a job and a site profile sbatch's parameters, the command line of a task, and the folders that its container
binds. Pure, but for the look into these folders; imports no submitit.
"""

import hashlib
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mrt_hpc.backends.slurm.after_srun import AttemptOutcome
from mrt_hpc.backends.slurm.commands import MARKS
from mrt_hpc.backends.slurm.environment import BEGAN_AT, ENDS_AT
from mrt_hpc.backends.slurm.site import Container, GpuRequest, Requeue, SlurmSite
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.jobs import Job, JobResources
from mrt_hpc.recipe.hub_models import cache_of, is_hub_name
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.run.access import CACHES, CACHES_FOLDER
from mrt_hpc.run.layout import RunLayout

MIB_PER_GIB = 1024
SIGNAL_BEFORE_LIMIT_S = 90
"""Seconds before the time limit at which a task is asked to stop and be queued again."""
SCRIPT = "submission.sh"
"""Name of the file that sbatch is given."""
NO_TOKEN = "NEW"
"""Stands for the token of a run that is not made yet; it needs no quotes in a job script, as the token."""
EPILOGUE = Path(__file__).with_name("job_epilogue.sh")
BASH = "/bin/bash"
"""The shell of the job script, which needs no PATH to be found."""
UNPACKED = "@IMAGE@"
"""The word in the command of a task that the shell replaces by the folder into which it has unpacked the image."""
NO_LOCKS = (
    "$image.lock cannot be locked: name a folder on a disk of each node, which takes locks, as scratch in the site "
    "profile, and type the same submit again"
)
"""What a task says where it cannot unpack its image because of that."""
MOST_AWAITED = 100
"""Tasks named in a dependency: Slurm looks at each of them whenever it schedules."""
MOST_LEFT_OUT = 4
"""Nodes that a task leaves out because they were at fault: where more are, something else is."""
LATE_S = 5
"""The most seconds between a task's last look at its time and Slurm's note of its end."""

_END_BY_SQUEUE = (
    "id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}; id=${id:-$SLURM_JOB_ID}",
    'asked() { (unset ${!SQUEUE_@}; SLURM_TIME_FORMAT=%s timeout 60 squeue --noheader --jobs="$id" --format=%e); }',
    "end_by_squeue() { asked | grep --extended-regexp --line-regexp --max-count=1 '[0-9]+'; }",
)
"""Shell lines that name this task (the raw id of one task of each array is that of the whole array), and ask for its
end in seconds since the epoch: a plugin or a partition may have given it another time limit than the plan's.
"""

# A name as it stands in submitit's text: characters that sbatch options need not quote, so that texts with placeholders
# and texts with ids differ in nothing else.
_TOKEN = re.compile(r"@([A-Za-z0-9._-]+)@")


def require_plain_path(layout: RunLayout) -> RunLayout:
    """The layout with an absolute root, as tasks start in another folder.

    Raises:
        UserError: the path holds a character that Slurm reads as something else.
    """
    root = layout.root.absolute()
    for holds, what, why in (
        ("%" in str(root), "a percent sign", "which Slurm would replace in the names of log files"),
        (any(mark in str(root) for mark in MARKS), f"one of {'  '.join(MARKS)}", "between which squeue lists the jobs"),
        ("\\" in str(root), "a backslash", "which Slurm drops from the names of log files: they would be elsewhere"),
        (not str(root).isprintable(), "a line break or a control character", "which would end the line of an option"),
    ):
        if holds:
            raise UserError(
                f"the run directory's path holds {what}",
                value=str(root),
                expected=f"a path without {what}, {why}",
                advice="the same command with --run DIR, another run directory",
            )
    return replace(layout, root=root)


def as_sbatch_reads(script: str) -> str:
    """A job script in whose lines of options each backslash stands for itself: sbatch takes one as an escape, also
    within quotes.
    """
    lines = (line.replace("\\", "\\\\") if line.startswith("#SBATCH ") else line for line in script.split("\n"))
    return "\n".join(lines)


def sbatch_parameters(job: Job, site: SlurmSite, layout: RunLayout, *, waited_for: bool) -> dict[str, Any]:
    """Keyword arguments for submitit's executor, dependencies excepted.

    Args:
        job: of the plan.
        site: where it is to run.
        layout: of its run.
        waited_for: whether another job starts only if this one ends well.
    """
    resources = job.resources
    parameters: dict[str, Any] = {
        "job_name": queue_name(job.name, layout),
        "account": site.account,
        "qos": site.qos,
        "partition": site.partitions.gpu if resources.gpus else site.partitions.cpu,
        "time": resources.time_limit_minutes,
        "nodes": resources.nodes,
        "ntasks_per_node": resources.ranks_per_node,
        "cpus_per_task": resources.cpus_per_rank,
        "mem": f"{mebibytes(resources)}M" if site.memory_request else None,
        "signal_delay_s": SIGNAL_BEFORE_LIMIT_S,
        "wckey": None,
        "setup": _setup_lines(resources, site),
        "teardown": _teardown_lines(job, site, layout, waited_for=waited_for),
        "srun_args": _srun_arguments(resources),
        "array_parallelism": job.max_parallel or job.tasks,
        "additional_parameters": {**_requeue(site), "kill-on-invalid-dep": "yes", **site.sbatch},
    }
    return parameters | _gpu_parameters(resources, site)


def queue_name(job: str, layout: RunLayout) -> str:
    """The name that a job has in the queue: those of the run directory and of the job, and a token of the run, by which
    a job that the ledger lacks is found again.
    """
    try:
        token = hashlib.sha256(layout.identity.read_bytes()).hexdigest()[:8]
    except FileNotFoundError:
        token = NO_TOKEN
    return f"{layout.root.name}.{job}.{token}"


def _requeue(site: SlurmSite) -> dict[str, Any]:
    """The option that lets Slurm start a job again, or keeps it from that."""
    if site.requeue is Requeue.FORBIDDEN:
        return {"no-requeue": True}
    return {"requeue": "expedite" if site.requeue is Requeue.EXPEDITE else True}


def mebibytes(resources: JobResources) -> int:
    """The memory that a job asks for on each node."""
    return max(1, round(resources.memory_gib_per_node * MIB_PER_GIB))


def _gpu_parameters(resources: JobResources, site: SlurmSite) -> dict[str, Any]:
    per_node = resources.gpus_per_rank * resources.ranks_per_node
    if not per_node or site.gpu_request is GpuRequest.NONE:
        return {}
    kind = f"{site.gpu_type}:" if site.gpu_type else ""
    if site.gpu_request is GpuRequest.GRES:
        return {"gres": f"gpu:{kind}{per_node}"}
    return {"gpus_per_node": f"{kind}{per_node}"}


def _setup_lines(resources: JobResources, site: SlurmSite) -> list[str]:
    """The site's own lines come first and its variables last, so that they win over the number of threads."""
    threads = f"export OMP_NUM_THREADS={resources.cpus_per_rank}"
    exports = [f"export {name}={shlex.quote(value)}" for name, value in site.environment.items()]
    scratch = [f"export TMPDIR={_in_double_quotes(site.scratch)}"] if site.scratch else []
    by_the_plan = f"echo $(($(date +%s) + {resources.time_limit_minutes * 60}))"
    ends_at = f"export {ENDS_AT}=${{SLURM_JOB_END_TIME:-$(end_by_squeue || {by_the_plan})}}"
    goes_on = ["set +eu +o pipefail", "trap - ERR", "trap : TERM"]  # after srun, whatever it ends with: the teardown
    safe_path = "export PYTHONSAFEPATH=1"  # the folder that it was submitted from holds no modules of ours
    began_at = f"export {BEGAN_AT}=${{SLURM_JOB_START_TIME:-$(date +%s)}}"
    return [began_at, *site.setup, *goes_on, safe_path, threads, *scratch, *exports, *_END_BY_SQUEUE, ends_at]


def _teardown_lines(job: Job, site: SlurmSite, layout: RunLayout, *, waited_for: bool) -> list[str]:
    """What the job script does after srun: an attempt that is to be run again is queued again, under the same id.

    Slurm's commands are run here, on the node itself, so a container needs none of them.
    """
    settle = [*_python(job, site, layout), "-m", "mrt_hpc.backends.slurm.after_srun", str(layout.root), job.name]
    return [
        "code=$?",
        f'settle() {{ {shlex.join(settle)} ${{SLURM_ARRAY_TASK_ID:-0}} $code "$@"; }}',
        f"AGAIN={int(AttemptOutcome.AGAIN)}; OVER={int(AttemptOutcome.OVER)}; DONE={int(AttemptOutcome.DONE)}",
        f"GAVE_BACK={int(ExitCode.GIVE_BACK)}; MOST_AWAITED={MOST_AWAITED}; MOST_LEFT_OUT={MOST_LEFT_OUT}",
        f"WAITED_FOR={'yes' if waited_for else ''}; LATE_S={LATE_S}",
        f"JOB={job.name}; EVENTS={shlex.quote(str(layout.events))}",
        *EPILOGUE.read_text().splitlines(),
    ]


def _in_double_quotes(path: str) -> str:
    """The path for the shell as it stands, except that ``$SLURM_JOB_ID`` and other variables get their values."""
    return '"' + re.sub(r'(["`\\]|\$\()', r"\\\1", path) + '"'


def _srun_arguments(resources: JobResources) -> list[str]:
    """srun takes its processors from its own options (since Slurm 22.05); one lost rank ends them all. The tasks get
    the environment of the job script, whatever ``SLURM_EXPORT_ENV`` says.
    """
    return [f"--cpus-per-task={resources.cpus_per_rank}", "--cpu-bind=none", "--kill-on-bad-exit=1", "--export=ALL"]


def python_command(job: Job, site: SlurmSite, layout: RunLayout) -> str:
    """The shell words that start Python in a task, in the container where the site has one.

    The signal that announces a time limit or a preemption would kill a Python that is still importing. It is therefore
    ignored until submitit listens. The folders for temporary files and for caches are made here, as each node of a task
    has its own; a container sees them.
    """
    lines = ['trap "" USR2', *_folder_lines(), *(_bind_lines() if site.container else ())]
    if site.container is None or not site.container.unpack:
        return shlex.join([BASH, "-c", "; ".join([*lines, 'exec "$0" "$@"']), *_python(job, site, layout)])
    # In newer versions of bash an & in the folder's name would stand for the word that is replaced.
    start = f'shopt -u patsub_replacement 2> /dev/null; exec "$0" "${{@//{UNPACKED}/$image}}"'
    words = _in_container(site.container, job, layout, UNPACKED)
    return shlex.join([BASH, "-c", "; ".join([*lines, *_unpack_lines(site.container), start]), *words])


def _folder_lines() -> list[str]:
    """Shell lines that make this node's folders. The caches are in a private one, as their content is executed: it is
    chosen as `private_folder` does.
    """
    exports = [f'{name}="${{{name}:-$caches/{folder}}}"' for name, folder in CACHES.items()]
    private = '[ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] && [ "$(stat -c %a "$1" | tail -c 4)" = 700 ]'
    another = 'echo "$place belongs to another user, is a link, or is open to others; $caches is used instead" >&2'
    return [
        'mkdir -p "${TMPDIR:-/tmp}" || exit 1',
        f'place="${{TMPDIR:-/tmp}}/{CACHES_FOLDER}-$(id -u)"',
        f"private() {{ {private}; }}",
        'for caches in "$place" "$place"-*; do private "$caches" && break; done',
        'private "$caches" || { caches=$place; mkdir -m 700 "$caches" 2> /dev/null; }',
        'private "$caches" || caches=$(mktemp -d "$place-XXXXXXXX") || exit 1',
        f'[ "$caches" = "$place" ] || {another}',
        f"export {' '.join(exports)}",
    ]


def _bind_lines() -> list[str]:
    """Shell lines that let Apptainer, or Singularity, see a folder whose name only the node knows."""
    names = ("APPTAINER_BIND", "SINGULARITY_BIND")
    binds = [f'{name}="${{{name}:+${name},}}$TMPDIR"' for name in names]
    return [f'if [ -n "${{TMPDIR:-}}" ]; then export {" ".join(binds)}; fi']


def _unpack_lines(container: Container) -> list[str]:
    """Shell lines that unpack the image once on each node, for all its tasks, and name the folder ``image``. The number
    of its files is kept beside it: clusters that empty TMPDIR file by file leave a folder that looks whole. Such a
    folder is renamed and not removed, as other tasks may run in it.
    """
    image, tool = shlex.quote(container.image), shlex.quote(container.executable)
    unpack = [
        '{ [ ! -e "$image" ] || mv -T "$image" "$image.old.$$"; }',
        'rm -rf "$image.part"',
        f'{tool} build --sandbox "$image.part" {image} >&2',
        'files "$image.part" > "$image.count"',
        'mv -T "$image.part" "$image"',
    ]
    return [
        'files() { find "$1" | wc -l; }',
        f'image="$caches/image-$(stat --dereference --format=%i-%s-%Y {image})" || exit 1',
        f'exec 8> "$image.lock" && flock 8 || {{ echo "{NO_LOCKS}" >&2; exit 1; }}',
        'whole() { [ -d "$image" ] && [ "$(files "$image")" = "$(cat "$image.count")" ]; }',
        f"whole || {{ {' && '.join(unpack)}; }} || exit 1",
        "exec 8>&-",
    ]


def _python(job: Job, site: SlurmSite, layout: RunLayout) -> list[str]:
    """The words that start Python, in the container where the site has one."""
    if site.container is None:
        return [site.python or sys.executable]
    return _in_container(site.container, job, layout, site.container.image)


def _in_container(container: Container, job: Job, layout: RunLayout, image: str) -> list[str]:
    run = f"{layout.root}:{layout.root}"
    return [*container.words("exec", run, gpus=job.resources.gpus > 0, image=image), container.python]


def dependency_tokens(job: Job) -> str | None:
    """sbatch's dependency, the other jobs' names as tokens; None for a job that waits for nothing."""
    return ",".join(f"{wait.kind}:@{wait.job}@" for wait in job.after) or None


def fill_in_ids(text: str, job: Job, ids: Mapping[str, str]) -> str:
    """Put ids (or ``{name}``) in place of the tokens, in the dependency line only."""
    token = dependency_tokens(job)
    if token is None:
        return text
    if (line := f"--dependency={token}\n") not in text:  # a name that submitit has quoted
        raise ValueError(f"the script of {job.name} does not wait for {token}")
    filled = _TOKEN.sub(lambda match: ids.get(match[1], f"{{{match[1]}}}"), token)
    return text.replace(line, f"--dependency={filled}\n", 1)


# -- folders that containers bind --------------------------------------------------------------------------------------


def with_models_bound(site: SlurmSite, recipe: Experiment) -> SlurmSite:
    """Return the site with the folders that the recipe's tasks read added to its container's binds; a site without a
    container is returned unchanged."""
    if site.container is None:
        return site
    given = {bind.partition(":")[0] for bind in site.container.binds}
    more = tuple(folder for folder in folders_read(recipe) if folder not in given)
    return site.model_copy(
        update={"container": site.container.model_copy(update={"binds": (*site.container.binds, *more)})}
    )


def folders_read(recipe: Experiment) -> list[str]:
    """The folders of the models, of the prover's model and of results, and those that the
    files of models are links into: a snapshot of a download holds nothing else. Of a model in the hub's cache it is the
    whole cache, where a link may lead to another link.
    """
    published = [model.run for model in recipe.models if model.run is not None]  # a version to come has no folder yet
    named = (*recipe.model_directories.values(), *published)
    folders = [Path(path) for path in named if not is_hub_name(path)]
    behind = {file.resolve().parent for folder in folders if folder.is_dir() for file in folder.iterdir()}
    behind |= {cache for folder in folders if (cache := cache_of(folder)) is not None}
    results = set() if recipe.evaluation.results is None else {str(Path(recipe.evaluation.results).absolute())}
    return sorted({str(folder.absolute()) for folder in folders} | {str(folder) for folder in behind} | results)
