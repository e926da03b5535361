"""Makes of a job and a site profile sbatch's parameters and a task's command line."""

import hashlib
import re
import shlex
import sys
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

from mrt_hpc.backends.slurm.after_srun import AttemptOutcome
from mrt_hpc.backends.slurm.environment import BEGAN_AT, ENDS_AT
from mrt_hpc.backends.slurm.site import Container, GpuRequest, MemoryRequest, Requeue, SlurmSite
from mrt_hpc.errors import ExitCode
from mrt_hpc.plan.jobs import Job, JobResources
from mrt_hpc.run.access import CACHES, CACHES_FOLDER
from mrt_hpc.run.layout import RunLayout

MIB_PER_GIB = 1024
SIGNAL_BEFORE_LIMIT_S = 90
"""A task is asked to stop and be queued again this long before its time limit."""
SCRIPT = "submission.sh"
NO_TOKEN = "NEW"
"""The token of a run that is not made yet; it needs no quotes in a job script."""
PROLOGUE, EPILOGUE = (Path(__file__).with_name(f"job_{part}.sh") for part in ("prologue", "epilogue"))
BASH = "/bin/bash"
"""Found without PATH."""
TEMPORARY = "@TMPDIR@"
"""The shell puts the node's folder for temporary files here."""
UNPACKED = "@IMAGE@"
"""The shell puts the folder of the unpacked image here."""
NO_LOCKS = (
    "$image.lock cannot be locked: name a folder on a disk of each node, which takes locks, as scratch in the site "
    "profile, and type the same submit again"
)
MOST_AWAITED = 100
"""Slurm looks at each task of a dependency whenever it schedules."""
MOST_LEFT_OUT = 4
"""Nodes at fault that a task leaves out; more of them have another cause."""
LATE_S = 5
"""The most seconds between a task's last look at its time and Slurm's note of its end."""

_OWN_PYTHON = (
    "unset PYTHONHOME",
    'own() { IFS=:; set -f; for place in $PYTHONPATH; do [ ! -d "$place/mrt_hpc" ] || printf "%s:" "$place"; done; }',
    "export PYTHONPATH=$(own)",
)
"""Drops what the user's shell or a setup line has set for other Pythons, as ``forget_other_pythons`` in ``run.process``
does: an empty variable counts as unset, and ``environment`` of the site profile comes later.
"""
_END_BY_SQUEUE = (
    'asked() { (unset ${!SQUEUE_@}; SLURM_TIME_FORMAT=%s timeout 60 squeue --noheader --jobs="$id" --format=%e); }',
    "end_by_squeue() { asked | grep --extended-regexp --line-regexp --max-count=1 '[0-9]+'; }",
)
"""Asks for this task's end, seconds since the epoch: a plugin or a partition may have changed its time limit."""

# A name as it stands in submitit's text: characters that sbatch options need not quote, so that texts with placeholders
# and texts with ids differ in nothing else.
_TOKEN = re.compile(r"@([A-Za-z0-9._-]+)@")


def escape_for_sbatch(script: str) -> str:
    """sbatch takes a backslash in its lines of options as an escape, also within quotes."""
    lines = (line.replace("\\", "\\\\") if line.startswith("#SBATCH ") else line for line in script.split("\n"))
    return "\n".join(lines)


def sbatch_parameters(job: Job, site: SlurmSite, layout: RunLayout, *, waited_for: bool) -> dict[str, Any]:
    """Arguments of submitit's executor, without dependencies. ``waited_for``: another job starts only if this one ends
    well.
    """
    resources = job.resources
    options = site.options(resources.kind)
    return {
        "job_name": queue_name(job.name, layout),
        **{name: options.pop(name, None) for name in ("account", "qos", "partition")},
        "time": resources.time_limit_minutes,
        "nodes": resources.nodes,
        "ntasks_per_node": resources.ranks_per_node,
        "cpus_per_task": resources.cpus_per_rank,
        **_memory_parameters(resources, site),
        **_gpu_parameters(resources, site, options.pop("gres", None)),
        "signal_delay_s": SIGNAL_BEFORE_LIMIT_S,
        "wckey": None,
        "setup": _setup_lines(job, site, layout),
        "teardown": _teardown_lines(job, site, layout, waited_for=waited_for),
        "srun_args": [*_srun_arguments(resources), *_options_of_image(job, site, layout)],
        "array_parallelism": job.max_parallel or job.tasks,
        "additional_parameters": {**_requeue(site), "kill-on-invalid-dep": "yes", **options},
    }


def queue_name(job: str, layout: RunLayout) -> str:
    """Run directory, job, and a token of the run, which finds jobs that the ledger lacks."""
    try:
        token = hashlib.sha256(layout.identity.read_bytes()).hexdigest()[:8]
    except FileNotFoundError:
        token = NO_TOKEN
    return f"{layout.root.name}.{job}.{token}"


def _requeue(site: SlurmSite) -> dict[str, Any]:
    if site.requeue is Requeue.FORBIDDEN:
        return {"no-requeue": True}
    return {"requeue": "expedite" if site.requeue is Requeue.EXPEDITE else True}


def mebibytes(resources: JobResources) -> int:
    """The memory of each node."""
    return max(1, round(resources.memory_gib_per_node * MIB_PER_GIB))


def _memory_parameters(resources: JobResources, site: SlurmSite) -> dict[str, str]:
    if site.memory_request is MemoryRequest.NONE:
        return {}
    if site.memory_request is MemoryRequest.MEM:
        return {"mem": f"{mebibytes(resources)}M"}
    return {"mem_per_cpu": f"{ceil(mebibytes(resources) / resources.cpus_per_node)}M"}


def _gpu_parameters(resources: JobResources, site: SlurmSite, gres: object) -> dict[str, str]:
    further = [] if gres is None else [str(gres)]
    asked = f"{site.gpu_type}:{resources.gpus_per_node}" if site.gpu_type else str(resources.gpus_per_node)
    parameters = {}
    if resources.gpus and site.gpu_request is GpuRequest.GRES:
        further.insert(0, f"gpu:{asked}")
    elif resources.gpus and site.gpu_request is GpuRequest.GPUS_PER_NODE:
        parameters["gpus_per_node"] = asked
    return parameters | ({"gres": ",".join(further)} if further else {})


def _setup_lines(job: Job, site: SlurmSite, layout: RunLayout) -> list[str]:
    """The site's lines come first and its variables last, so that they win over the number of threads."""
    resources, names = job.resources, f"JOB={job.name}; EVENTS={shlex.quote(str(layout.events))}"
    threads = f"export OMP_NUM_THREADS={resources.cpus_per_rank}"
    exports = [f"export {name}={shlex.quote(value)}" for name, value in site.task_environment.items()]
    scratch = [f"export TMPDIR={_double_quote(site.scratch)}"] if site.scratch else []
    by_the_plan = f"echo $(($(date +%s) + {resources.time_limit_minutes * 60}))"
    ends_at = f"export {ENDS_AT}=${{SLURM_JOB_END_TIME:-$(end_by_squeue || {by_the_plan})}}"
    goes_on = ["set +eu +o pipefail", "trap - ERR", "trap : TERM"]  # after srun, whatever it ends with: the teardown
    safe_path = "export PYTHONSAFEPATH=1"  # the folder that it was submitted from holds no modules of ours
    began_at = f"export {BEGAN_AT}=${{SLURM_JOB_START_TIME:-$(date +%s)}}"
    own = [*goes_on, *_OWN_PYTHON, safe_path, threads, *scratch, *exports]
    return [began_at, names, *PROLOGUE.read_text().splitlines(), *site.setup, *own, *_END_BY_SQUEUE, ends_at]


def _teardown_lines(job: Job, site: SlurmSite, layout: RunLayout, *, waited_for: bool) -> list[str]:
    """An attempt that is to be run again is queued again, under the same id. Slurm's commands run on the node itself,
    so a container needs none.
    """
    settle = [*_python(job, site, layout), "-m", "mrt_hpc.backends.slurm.after_srun", str(layout.root), job.name]
    return [
        "code=$?",
        f'settle() {{ {shlex.join(settle)} ${{SLURM_ARRAY_TASK_ID:-0}} $code "$@"; }}',
        f"AGAIN={int(AttemptOutcome.AGAIN)}; OVER={int(AttemptOutcome.OVER)}; DONE={int(AttemptOutcome.DONE)}",
        f"GAVE_BACK={int(ExitCode.GIVE_BACK)}; MOST_AWAITED={MOST_AWAITED}; MOST_LEFT_OUT={MOST_LEFT_OUT}",
        f"WAITED_FOR={'yes' if waited_for else ''}; LATE_S={LATE_S}",
        *EPILOGUE.read_text().splitlines(),
    ]


def _double_quote(path: str) -> str:
    """The shell puts values for ``$SLURM_JOB_ID`` and other variables."""
    return '"' + re.sub(r'(["`\\]|\$\()', r"\\\1", path) + '"'


def _srun_arguments(resources: JobResources) -> list[str]:
    """srun takes processors from its own options (since Slurm 22.05); one lost rank ends all. Tasks get the job
    script's environment, whatever ``SLURM_EXPORT_ENV`` says.
    """
    return [f"--cpus-per-task={resources.cpus_per_rank}", "--cpu-bind=none", "--kill-on-bad-exit=1", "--export=ALL"]


def _options_of_image(job: Job, site: SlurmSite, layout: RunLayout) -> list[str]:
    container = site.container
    return _container_words(container, job, layout, container.image)[:-1] if container and container.is_of_srun else []


def python_command(job: Job, site: SlurmSite, layout: RunLayout) -> str:
    """Signals of a time limit or a preemption are ignored until submitit listens: they would kill a Python that is
    still importing. Each node makes its own folders for temporary files and caches.
    """
    container, lines = site.container, ['trap "" USR2', *_folder_lines()]
    if container is None or container.is_of_srun:
        python = site.python or sys.executable if container is None else container.python
        return shlex.join([BASH, "-c", "; ".join([*lines, 'exec "$0" "$@"']), python])
    if container.command:
        start = _start_with(TEMPORARY, "${TMPDIR:-/tmp}")
        words = _container_words(container, job, layout, container.image, f"{TEMPORARY}:{TEMPORARY}")
    elif container.unpack:
        lines += [*_bind_lines(), *_unpack_lines(container)]
        start, words = _start_with(UNPACKED, "$image"), _container_words(container, job, layout, UNPACKED)
    else:
        lines += _bind_lines()
        start, words = 'exec "$0" "$@"', _container_words(container, job, layout, container.image)
    return shlex.join([BASH, "-c", "; ".join([*lines, start]), *words])


def _start_with(word: str, value: str) -> str:
    """Put a value that only the node knows in place of a word. Newer versions of bash read an & in it as the replaced
    word.
    """
    return f'shopt -u patsub_replacement 2> /dev/null; exec "$0" "${{@//{word}/{value}}}"'


def _folder_lines() -> list[str]:
    """Caches are private, as their content is executed; `private_folder` chooses likewise."""
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
    """Let Apptainer, or Singularity, see a folder whose name only the node knows."""
    binds = [f'{name}="${{{name}:+${name},}}$TMPDIR"' for name in ("APPTAINER_BIND", "SINGULARITY_BIND")]
    return [f'if [ -n "${{TMPDIR:-}}" ]; then export {" ".join(binds)}; fi']


def _unpack_lines(container: Container) -> list[str]:
    """Unpack the image once on each node. Clusters empty TMPDIR file by file: a folder with fewer files than were
    unpacked is renamed, as other tasks may run in it.
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
    if site.container is None:
        return [site.python or sys.executable]
    words = _container_words(site.container, job, layout, site.container.image)
    return ["srun", "--nodes=1", "--ntasks=1", "--export=ALL", *words] if site.container.is_of_srun else words


def _container_words(container: Container, job: Job, layout: RunLayout, image: str, *folders: str) -> list[str]:
    run = f"{layout.root}:{layout.root}"
    return [*container.words("exec", run, *folders, gpus=job.resources.gpus > 0, image=image), container.python]


def dependency_tokens(job: Job) -> str | None:
    return ",".join(f"{wait.kind}:@{wait.job}@" for wait in job.after) or None


def fill_in_ids(text: str, job: Job, ids: Mapping[str, str]) -> str:
    """Put ids (or ``{name}``) in place of the tokens, in the dependency line only."""
    if (token := dependency_tokens(job)) is None:
        return text
    if (line := f"--dependency={token}\n") not in text:  # a name that submitit has quoted
        raise ValueError(f"the script of {job.name} does not wait for {token}")
    filled = _TOKEN.sub(lambda match: ids.get(match[1], f"{{{match[1]}}}"), token)
    return text.replace(line, f"--dependency={filled}\n", 1)
