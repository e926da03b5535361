"""What tests submit: small plans of trivial tasks, and the quickstart recipe, shrunk for a cluster on one host."""

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from basics import QUICKSTART, resources
from slurm_cluster import Cluster, notes
from submitted import latest_ids
from tables import tables

from mrt_hpc.attempt.ledger import record_submission
from mrt_hpc.backends.sites import find_site
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.plan.jobs import Dependency, DependencyKind, Job, Plan, Role
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import lock_text
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import wait_until

RETRIES = 1
SHRUNK: dict[str, object] = tables("slurm_submissions")["shrunk"]


def job(
    name: str, *, role: Role = Role.INFERENCE, tasks: int = 1, ranks: int = 1, ok: tuple[str, ...] = (),
    any: tuple[str, ...] = (), max_parallel: int | None = None, memory_gib: float = 0.25, gpus: int = 0,
    minutes: int = 30,
) -> Job:  # fmt: skip
    """A job that asks for next to nothing; ``ok`` and ``any`` name the jobs that it waits for."""
    memory = {"memory_gib_per_node": memory_gib * ranks, "time_limit_minutes": minutes}
    asked = resources(ranks_per_node=ranks, gpus_per_rank=gpus, **memory)
    after = [Dependency(job=other, kind=DependencyKind.AFTEROK) for other in ok]
    after += [Dependency(job=other, kind=DependencyKind.AFTERANY) for other in any]
    return Job(name=name, role=role, tasks=tasks, resources=asked, after=tuple(after), max_parallel=max_parallel)


def plan(*jobs: Job) -> Plan:
    return Plan(name="trivial", iterations=1, segments=1, jobs=jobs)


def run_directory(cluster: Cluster, name: str, the_plan: Plan) -> RunLayout:
    """As much of a run directory as a task reads."""
    layout = RunLayout(cluster.run_dir(name))
    changes = (f"resilience.retries={RETRIES}", "resilience.heartbeat_limit_s=5.0", "evaluation.benchmarks=[]")
    layout.recipe_lock.write_text(lock_text(load_recipe(QUICKSTART, changes)))
    layout.plan.write_text(the_plan.model_dump_json())
    return layout


def begun(
    cluster: Cluster, the_plan: Plan, function: str = "lives", **options: object
) -> tuple[RunLayout, dict[str, str]]:
    """A run of trivial tasks that has been submitted, and the ids that stand in its ledger."""
    layout = run_directory(cluster, the_plan.jobs[0].name, the_plan)
    ids = cluster.submitted(the_plan, layout.root, function, **options)
    for name, job_id in ids.items():
        record_submission(layout, name, job_id, "onehost")
    return layout, ids


def started(layout: RunLayout) -> Counter[str]:
    """How often each job has started, by the notes of its tasks."""
    return Counter(str(note["job"]) for note in notes(layout.root) if note["what"] == "start")


def await_start(layout: RunLayout, *names: str, tasks: int = 1) -> None:
    for name in names:
        wait_until(lambda name=name: started(layout)[name] >= tasks, reason=f"the start of {name}", deadline_s=180)


def node_of(layout: RunLayout, name: str) -> str:
    (node,) = {str(note["node"]) for note in notes(layout.root) if note["job"] == name}
    return node


def site_file(cluster: Cluster, run: Path, **changes: object) -> Path:
    """The cluster's profile as a user would write it."""
    path = run.parent / f"{run.name}.site.yaml"
    path.write_text(cluster.site(**changes).model_dump_json())  # JSON is YAML
    return path


def options(changes: Mapping[str, object]) -> list[str]:
    return [word for field, value in changes.items() for word in ("--set", f"{field}={value}")]


def quickstart(cluster: Cluster, run: Path, changes: Mapping[str, object], **site: object) -> list[str]:
    """The arguments of `plan` and `submit` for the quickstart with changes."""
    recipe = cluster.checkout / "recipes/quickstart.yaml"
    if any(str(value).startswith("slurm_verifier:") for value in changes.values()):
        recipe = beside_verifier(run, recipe)
    return [str(recipe), "--site", str(site_file(cluster, run, **site)), "--run", str(run), *options(changes)]


def beside_verifier(run: Path, whole: Path) -> Path:
    """A recipe or a suite in the user's own folder, beside the module of the verifier that holds a run."""
    shutil.copy(Path(__file__).with_name("slurm_verifier.py"), run.parent)
    return Path(shutil.copy(whole, run.parent))


def sent(
    cluster: Cluster, run: Path, changes: Mapping[str, object], **site: object
) -> tuple[RunLayout, dict[str, str]]:
    """The quickstart with changes, submitted; its directory and the ids of its jobs."""
    done = cluster.mrt_hpc("submit", *quickstart(cluster, run, changes, **site))
    assert done.returncode == 0, done.stderr
    return RunLayout(run), latest_ids(RunLayout(run))


def all_logs(cluster: Cluster, layout: RunLayout) -> str:
    return cluster.mrt_hpc("logs", str(layout.root), "--all").stdout


def accounting(ids: Iterable[str]) -> str:
    fields = "JobID%-12,JobName%-36,Partition,AllocCPUS,NTasks,NodeList,Elapsed,State,ExitCode"
    command = ["sacct", f"--jobs={','.join(ids)}", f"--format={fields}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def examined(cluster: Cluster, run: Path, site: Path, *more: str) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit status of the doctor, and its findings by check."""
    words = ("doctor", "--site", str(site), "--recipe", "quickstart", *options(SHRUNK), "--run", str(run / "run"))
    done = cluster.mrt_hpc(*words, "--json", *more, timeout=240)
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, {one["check"]: one for one in json.loads(done.stdout)["checks"]}


def written_profile(cluster: Cluster, run: Path, *wishes: str) -> tuple[Path, SlurmSite]:
    """The profile that init writes, with the Python that the user may read."""
    path = run.parent / f"{run.name}.yaml"
    done = cluster.mrt_hpc("init", "onehost", "--yes", "--python", cluster.python, "--output", str(path), *wishes)
    assert done.returncode == 0, done.stderr
    site = find_site(str(path))
    assert isinstance(site, SlurmSite)
    return path, site
