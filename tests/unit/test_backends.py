"""A back end that the package does not know, in one file beside the site profile: all commands work with it."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from submitted import latest_ids

from mrt_hpc.attempt.ledger import record_submission, recorded_site, submissions
from mrt_hpc.attempt.ranks import run_one_task
from mrt_hpc.backends.backend import Site
from mrt_hpc.backends.queued_jobs import live_jobs
from mrt_hpc.backends.sites import find_site
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.site import SITES
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState, read_task

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
EXAMPLE = ROOT / "tests" / "examples" / "my_queue.py"
SMALL = ("resources.inference.tasks=2", "data.problems=40", "resilience.retries=1")
TRAINER = "segment-000.trainer"
JOBS = ("prepare", "segment-000.inference", TRAINER, "segment-000.evaluation", "report")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site profile with the example beside it, under a module name of its own: modules are imported once."""
    return write_site(tmp_path, f"queue_{tmp_path.name}:ScriptSite")


def write_site(folder: Path, kind: str, **fields: object) -> Path:
    shutil.copy(EXAMPLE, folder / f"{kind.partition(':')[0]}.py")
    path = folder / "batch.yaml"
    environment = {"PYTHONPATH": str(ROOT)}
    values = {"type": kind, "name": "batch", "folder": str(folder / "scripts"), "environment": environment, **fields}
    YAML(typ="safe", pure=True).dump(values, path)
    return path


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """`mrt-hpc` as a process of its own: one that submits holds the run until it ends."""
    module = [sys.executable, "-m", "mrt_hpc.cli.main"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run([*module, *words], env=environment, capture_output=True, text=True, check=False, timeout=60)


def submit(run: Path, site: Path | str | None, *changes: str) -> subprocess.CompletedProcess[str]:
    where = [] if site is None else ["--site", str(site)]
    sets = [word for change in (*SMALL, *changes) for word in ("--set", change)]
    return command("submit", str(QUICKSTART), "--run", str(run), *where, *sets)


@pytest.fixture
def run(site: Path) -> RunLayout:
    """A run whose jobs are all queued."""
    result = submit(site.parent / "run", site)
    assert result.returncode == 0, result.stderr
    return RunLayout(site.parent / "run")


def test_submit_hands_every_job_over_once(site: Path, run: RunLayout) -> None:
    assert latest_ids(run) == {name: str(number) for number, name in enumerate(JOBS, 1)}
    scripts = sorted(path.name for path in (site.parent / "scripts").iterdir())
    assert {"1_0.sh", "2_0.sh", "2_1.sh", "3_0.sh"} <= set(scripts)
    assert set(live_jobs(run)) == set(JOBS)
    again = submit(run.root, site)
    assert "0 job(s) submitted, 5 queued before, 0 done" in again.stdout
    assert sorted(path.name for path in (site.parent / "scripts").iterdir()) == scripts


def test_status_needs_the_run_directory_alone(run: RunLayout) -> None:
    told = command("status", str(run.root)).stdout
    assert "2 queued" in told, "the array of two inference tasks"
    assert "not reached" not in told


def test_a_script_runs_its_task_and_the_next_submission_sends_the_rest(site: Path, run: RunLayout) -> None:
    """The task is the real one: it makes weights version 0."""
    subprocess.run(["sh", site.parent / "scripts" / "1_0.sh"], check=True, timeout=120)
    assert read_task(run, "prepare", 0).state is TaskState.DONE, (site.parent / "scripts" / "1_0.ended").read_text()
    assert run.weights_version(0).is_dir()
    assert "1 done" in command("status", str(run.root)).stdout
    cancelled = command("cancel", str(run.root))
    assert f"cancelled 4 job(s) in the queue (scripts in {site.parent / 'scripts'})" in cancelled.stdout
    assert live_jobs(run) == {}
    again = submit(run.root, site)
    assert "4 job(s) submitted, 0 queued before, 1 done" in again.stdout
    assert latest_ids(run)[TRAINER] == "7"
    trainer = (site.parent / "scripts" / "7_0.sh").read_text()
    assert "1_0.ended" not in trainer, "what is done is not waited for"


def test_a_task_that_fails_for_good_is_not_run_again(site: Path, run: RunLayout) -> None:
    """The wrong lock is a failure that no further attempt can repair."""
    run.recipe_lock.write_text("name: [\n")
    subprocess.run(["sh", site.parent / "scripts" / "1_0.sh"], check=True, timeout=120)
    assert (site.parent / "scripts" / "1_0.ended").read_text() == "2\n"
    assert "1 failed" in command("status", str(run.root)).stdout


def test_a_task_is_run_as_often_as_its_retries_allow(run: RunLayout) -> None:
    """Each attempt is a real process, which finds a folder in the place of its file."""
    run.report.mkdir()
    record = run_one_task(run, read_plan(run.plan).job("report"), 0, retries=1)
    assert (record.state, record.failures) == (TaskState.FAILED, 2), record.message
    assert len({path.name for path in run.logs.glob("report.*")}) == 2


def test_a_lost_task_of_an_array_is_sent_again_alone(site: Path, run: RunLayout) -> None:
    (site.parent / "scripts" / "2_1.sh").unlink()
    again = submit(run.root, site)
    assert "of which task(s) 1 had been lost" in again.stdout
    assert {one.tasks for one in submissions(run) if one.job == "segment-000.inference"} == {None, (1,)}
    assert live_jobs(run)["segment-000.inference"].tasks == {0: "2_0", 1: "6_1"}


def test_what_waits_for_a_task_that_has_failed_is_cancelled_and_sent_again(site: Path, run: RunLayout) -> None:
    (site.parent / "scripts" / "1_0.ended").write_text("1\n")
    again = submit(run.root, site)
    assert "5 job(s) submitted, 0 queued before, 0 done" in again.stdout
    assert (site.parent / "scripts" / "3_0.cancelled").is_file()
    assert latest_ids(run)["prepare"] == "6"


def test_other_values_are_refused_while_jobs_are_queued(site: Path, run: RunLayout) -> None:
    refused = submit(run.root, site, "resources.inference.tasks=3")
    assert refused.returncode == 2
    assert "jobs of this run are queued with other values" in refused.stderr
    assert set(live_jobs(run)) == set(JOBS)


def test_a_run_is_in_one_queue_at_a_time(run: RunLayout, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write_site(tmp_path / "other", f"other_{tmp_path.name}:ScriptSite")
    for elsewhere in (other, "local"):
        refused = submit(run.root, elsewhere)
        assert refused.returncode == 2
        assert "5 job(s) of this run are in another queue: scripts in" in refused.stderr
        assert f"first mrt-hpc cancel {run.root}" in refused.stderr


def test_a_run_stays_at_its_site_whatever_the_default_is(
    site: Path, run: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    other = write_site(tmp_path / "other", f"other_{tmp_path.name}:ScriptSite")
    monkeypatch.setenv("MRT_HPC_SITE", str(other))
    (site.parent / "scripts" / "1_0.ended").write_text("1\n")
    again = submit(run.root, None)
    assert "5 job(s) submitted, 0 queued before, 0 done" in again.stdout, again.stderr
    assert latest_ids(run)["prepare"] == "6"
    assert not (tmp_path / "other" / "scripts").exists()


def test_plan_asks_it_what_it_would_refuse_and_prints_its_scripts(tmp_path: Path) -> None:
    site = write_site(tmp_path, f"queue_{tmp_path.name}:ScriptSite", most_scripts=3)
    told = command("plan", str(QUICKSTART), "--site", str(site)).stdout
    assert "beyond the batch host, submit will refuse: the plan has" in told
    assert "doubtful: " in told
    refused = submit(tmp_path / "run", site)
    assert refused.returncode == 2
    assert "the host takes 3" in refused.stderr
    assert not (tmp_path / "run").exists()
    texts = command("plan", str(QUICKSTART), "--site", str(site), "--sbatch").stdout
    assert "# ---- segment-000.trainer\n#!/bin/sh\n" in texts
    assert "{prepare}_0" in texts


def test_where_its_module_is_gone_the_files_still_tell(run: RunLayout) -> None:
    """A profile's class is loaded from where it was when the jobs were submitted."""
    entry = run.jobs / "site-batch.json"
    values = json.loads(entry.read_text())
    values["site"]["type"] = "no_such_module:ScriptSite"
    entry.write_text(json.dumps(values))
    told = command("status", str(run.root))
    assert told.returncode == 0
    assert "the queue was not reached (batch: " in told.stdout
    refused = command("cancel", str(run.root))
    assert refused.returncode == 2
    assert "put the module of that class back" in refused.stderr


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("no_such_module:Site", "No module named 'no_such_module'"),
        ("mrt_hpc.recipe.site:SiteSettings", "subclass of mrt_hpc.backends.backend.Site"),
        ("nowhere", "one of local, slurm"),
    ],
)
def test_a_kind_of_site_that_is_none_is_refused(tmp_path: Path, kind: str, words: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(f'type: "{kind}"\nname: here\n')
    with pytest.raises(UserError) as refused:
        find_site(str(path))
    assert words in refused.value.message()


def test_a_site_whose_profile_is_not_recorded_is_a_slurm_cluster(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    record_submission(layout, TRAINER, "12", "cluster")
    record_submission(layout, TRAINER, "15", "cluster", [1])
    assert [(one.job_id, one.tasks) for one in submissions(layout)] == [("12", None), ("15", (1,))]
    site = recorded_site(layout, "cluster")
    assert isinstance(site, Site)
    assert site.backend().queue == "Slurm"


def test_each_kind_of_site_that_comes_with_the_package_has_a_back_end() -> None:
    recipe = load_recipe(QUICKSTART)
    for kind in SITES.classes:
        site = kind.model_validate({"name": "here"})
        assert isinstance(site, Site)
        assert site.backend().place
        assert compile_plan(recipe, site).jobs


PACKAGE = ROOT / "mrt_hpc"
KINDS = {"SlurmSite", "SlurmBackend", "LocalBackend"}


def test_only_a_back_end_itself_knows_its_kind_of_site() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if not any(path.is_relative_to(PACKAGE / room) for room in ("backends/slurm", "backends/local", "cluster")):
            names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
            assert names.isdisjoint(KINDS), path
