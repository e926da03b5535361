"""A back end that the package does not know, in one file beside the site profile; and this machine's own."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from basics import INFERENCE, JOBS, QUICKSTART, ROOT, TRAINER, resources
from commands import in_a_process, refusal
from ruamel.yaml import YAML
from run_of import bare_run, read_events, run_of
from submitted import latest_ids

from mrt_hpc import RunLayout, UserError
from mrt_hpc.attempt import ledger
from mrt_hpc.attempt.ledger import record_site, record_submission, recorded_site, submissions
from mrt_hpc.attempt.ranks import run_one_task
from mrt_hpc.backends.local.backend import LocalRun, run_plan
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.local.slots import Slots, largest_need, machine_slots
from mrt_hpc.backends.queued_jobs import live_jobs
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.plan.compile import build_plan
from mrt_hpc.plan.jobs import Dependency, DependencyKind, Job, Plan, Role, read_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task

SMALL = ("resources.inference.tasks=2", "data.problems=40", "resilience.retries=1")


def write_site(folder: Path, **fields: object) -> Path:
    """A site profile with the example beside it, under a module name of its own: modules are imported once."""
    folder.mkdir(exist_ok=True)
    module = f"queue_{folder.parent.name}_{folder.name}".replace("-", "_")
    shutil.copy(ROOT / "recipes" / "examples" / "my_queue.py", folder / f"{module}.py")
    values = {"type": f"{module}:ScriptSite", "name": "batch", "folder": str(folder / "scripts"), **fields}
    YAML(typ="safe", pure=True).dump({**values, "environment": {"PYTHONPATH": str(ROOT)}}, folder / "batch.yaml")
    return folder / "batch.yaml"


def submit(run: Path, site: Path | str | None, *changes: str, exits: int = 0) -> str:
    where = [] if site is None else ["--site", site]
    sets = [word for change in (*SMALL, *changes) for word in ("--set", change)]
    return in_a_process("submit", QUICKSTART, "--run", run, *where, *sets, exits=exits)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return write_site(tmp_path / "site")


@pytest.fixture
def scripts(site: Path) -> Path:
    return site.parent / "scripts"


@pytest.fixture
def run(site: Path, tmp_path: Path) -> RunLayout:
    submit(tmp_path / "run", site)
    return RunLayout(tmp_path / "run")


def test_submit_hands_every_job_over_once(site: Path, run: RunLayout, scripts: Path) -> None:
    assert latest_ids(run) == {name: str(number) for number, name in enumerate(JOBS, 1)}
    before = sorted(path.name for path in scripts.iterdir())
    assert {"1_0.sh", "2_0.sh", "2_1.sh", "3_0.sh"} <= set(before)
    assert set(live_jobs(run)) == set(JOBS)
    assert "0 job(s) submitted, 5 queued before, 0 done" in submit(run.root, site)
    assert sorted(path.name for path in scripts.iterdir()) == before
    shown = in_a_process("status", run.root)
    assert ("2 queued" in shown, "not reached" in shown) == (True, False), "the array of two inference tasks"
    (scripts / "2_1.sh").unlink()
    assert "task(s) 1 had been lost" in submit(run.root, site), "which is sent again alone"
    assert {one.tasks for one in submissions(run) if one.job == INFERENCE} == {None, (1,)}
    assert live_jobs(run)[INFERENCE].tasks == {0: "2_0", 1: "6_1"}


def test_a_script_runs_its_task_and_the_next_submission_sends_the_rest(site: Path, run: RunLayout) -> None:
    scripts = site.parent / "scripts"
    subprocess.run(["sh", scripts / "1_0.sh"], check=True, timeout=120)
    assert read_task(run, "prepare", 0).state is TaskState.DONE, (scripts / "1_0.ended").read_text()
    assert run.weights_version(0).is_dir()
    assert "1 done" in in_a_process("status", run.root)
    assert f"4 job(s) in the queue (scripts in {scripts})" in in_a_process("cancel", run.root)
    assert live_jobs(run) == {}
    assert "4 job(s) submitted, 0 queued before, 1 done" in submit(run.root, site)
    assert latest_ids(run)[TRAINER] == "7"
    assert "1_0.ended" not in (scripts / "7_0.sh").read_text(), "what is done is not waited for"


def test_a_run_stays_in_its_queue(run: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what waits for a task that has failed is cancelled and sent again."""
    scripts, other = tmp_path / "site" / "scripts", write_site(tmp_path / "other")
    for elsewhere in (other, "local"):
        refused = submit(run.root, elsewhere, exits=2)
        assert all(word in refused for word in ("5 job(s)", "scripts in", f"mrt-hpc cancel {run.root}"))
    monkeypatch.setenv("MRT_HPC_SITE", str(other))
    (scripts / "1_0.ended").write_text("1\n")
    assert "5 job(s) submitted, 0 queued before, 0 done" in submit(run.root, None)
    assert (scripts / "3_0.cancelled").is_file()
    assert latest_ids(run)["prepare"] == "6"
    assert not (tmp_path / "other" / "scripts").exists()


def test_plan_asks_it_what_it_would_refuse_and_prints_its_scripts(tmp_path: Path) -> None:
    site = write_site(tmp_path / "site", most_scripts=3)
    for words, facts in (
        (["--sbatch"], (f"# ---- {TRAINER}\n#!/bin/sh\n", "{prepare}_0")),
        ([], ("submit will refuse", "doubtful: ")),
    ):
        planned = in_a_process("plan", QUICKSTART, "--site", site, *words)
        assert all(fact in planned for fact in facts)
    assert "the host takes 3" in submit(tmp_path / "run", site, exits=2)
    assert not (tmp_path / "run").exists()


def test_a_task_that_fails_for_good_is_not_run_again(run: RunLayout, scripts: Path) -> None:
    """A wrong lock is a failure that no attempt can repair. And where the module of the site is gone, files tell."""
    run.recipe_lock.write_text("name: [\n")
    subprocess.run(["sh", scripts / "1_0.sh"], check=True, timeout=120)
    assert (scripts / "1_0.ended").read_text() == "2\n"
    assert "1 failed" in in_a_process("status", run.root)
    entry = run.jobs / "site-batch.json"
    entry.write_text(re.sub(r'"type": "\w+:', '"type": "no_such_module:', entry.read_text()))
    assert "not reached (batch: " in in_a_process("status", run.root)
    assert "module" in in_a_process("cancel", run.root, exits=2)


def test_a_recorded_profile_with_a_field_that_is_gone_says_which_line_to_take_out(tmp_path: Path) -> None:
    layout, path = bare_run(tmp_path), tmp_path / "jobs" / "site-cluster.json"
    record_submission(layout, TRAINER, "12", "cluster")
    assert isinstance(recorded_site(layout, "cluster"), SlurmSite), "the profile of the submission is not recorded"
    record_site(layout, SlurmSite(name="cluster"))
    entry = json.loads(path.read_text())
    path.write_text(json.dumps({**entry, "site": {**entry["site"], "notify": "mail me"}}))
    refused = refusal(recorded_site, layout, "cluster")
    assert (refused.value, refused.where) == ("notify", path)
    assert "notify" in str(refused.advice) and str(path) in str(refused.advice)
    path.write_text(json.dumps(entry))
    assert recorded_site(layout, "cluster").name == "cluster"


# -- this machine; the tasks are reports of an empty run, which start fast, and fail because everything is missing


@dataclass
class Machine:
    """Runs jobs of reports of an empty run, one at a time; ``running`` is what it ran last."""

    layout: RunLayout
    running: LocalRun | None = None

    def runs(self, *jobs: Job, retries: int = 2, kill: int = 0) -> bool:
        """Whether all went well; the first children are killed, so many."""
        plan, killed = Plan(name="p", iterations=1, segments=1, jobs=jobs), set[int]()
        self.layout.plan.write_text(plan.model_dump_json())

        def show(running: LocalRun) -> None:
            self.running = running
            for child in (child for task in running.running for child in task.children):
                if len(killed) < kill and child.pid not in killed:
                    killed.add(child.pid)
                    child.kill()

        return run_plan(plan, self.layout, LocalSite(cpus=1), retries=retries, show=show)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(run_of(tmp_path / "run"))


def report_job(name: str, *after: tuple[str, DependencyKind], tasks: int = 1) -> Job:
    dependencies = tuple(Dependency(job=job, kind=kind) for job, kind in after)
    return Job(name=name, role=Role.REPORT, tasks=tasks, resources=resources(), after=dependencies)


def test_what_needs_a_failed_job_is_given_up_and_the_rest_goes_on(machine: Machine) -> None:
    layout, ok, anyway = machine.layout, DependencyKind.AFTEROK, DependencyKind.AFTERANY
    for index in range(3):
        write_task(layout, "done", index, TaskRecord(TaskState.DONE))
    done = report_job("done", tasks=3)
    assert machine.runs(done)
    assert read_events(layout.events) == [], "it ends well at once"
    jobs = (report_job("a", ("done", ok)), report_job("b", ("a", ok)), report_job("c", ("b", anyway)))
    assert not machine.runs(done, *jobs) and machine.running is not None
    ended = {name: state for (name, _), state in machine.running.ended.items() if name != "done"}
    assert ended == {"a": TaskState.FAILED, "b": TaskState.STOPPED, "c": TaskState.FAILED}
    assert [e["job"] for e in read_events(layout.events, EventKind.TASK_STARTED)] == ["a", "c"]
    assert read_task(layout, "b", 0).state is TaskState.WAITING


@pytest.mark.parametrize(("retries", "kill", "failures"), [(2, 2, 3), (1, 9, 2)])
def test_a_killed_task_is_run_again(machine: Machine, retries: int, kill: int, failures: int) -> None:
    assert not machine.runs(report_job("a"), retries=retries, kill=kill)
    record = read_task(machine.layout, "a", 0)
    assert (record.state, record.failures) == (TaskState.FAILED, failures)
    assert ("incomplete" in record.message) == (kill == 2)


def test_a_task_of_a_queue_is_run_as_often_as_its_retries_allow(tmp_path: Path) -> None:
    """Each attempt is a real process, which finds a folder in the place of its file."""
    layout = run_of(tmp_path / "run", "resilience.retries=1")
    layout.report.mkdir()
    record = run_one_task(layout, read_plan(layout.plan).job("report"), 0, retries=1)
    assert (record.state, record.failures) == (TaskState.FAILED, 2), record.message
    assert len({path.name for path in layout.logs.glob("report.*")}) == 2


def test_slots_are_given_out_and_come_back() -> None:
    slots = Slots(cpus=4, gpus=["0", "1", "2"])
    two = resources(gpus_per_rank=2, cpus_per_rank=3)
    assert (slots.take(two), (slots.fit(two), slots.fit(resources()))) == (["0", "1"], (False, True))
    slots.give_back(two, ["0", "1"])
    assert (slots.fit(two), slots.take(two)) == (True, ["2", "0"])


def test_a_concurrent_pair_must_fit_and_a_sequential_one_need_not() -> None:
    def plan(*changes: str) -> Plan:
        gpus = ("resources.inference.gpus=1", "resources.trainer.gpus=1")
        return build_plan(load_recipe(QUICKSTART, (*gpus, *changes)), max_array_size=None)

    sequential = plan("schedule.coupling=sequential", "schedule.iterations_per_job=1")
    assert (largest_need(plan()), largest_need(sequential)[1]) == ((3, 2), 1)
    with pytest.raises(UserError, match="2 GPUs at a time, and this machine has 1") as refused:
        machine_slots(plan(), LocalSite(gpus=1))
    advised = re.findall(r"--set (\S+=\w+)", str(refused.value.advice))
    assert len(advised) == 3
    for fits in (plan(*advised), sequential):
        assert machine_slots(fits, LocalSite(gpus=1)).gpus == ["0"]


def test_a_process_whose_name_is_no_utf_8_is_known_by_its_start() -> None:
    own = Path("/proc/self/comm")
    before, start = own.read_bytes(), ledger._kernel_start(os.getpid())
    try:
        own.write_bytes(b"\xe9 ) R\n")
        assert ledger._kernel_start(os.getpid()) == start != ""
    finally:
        own.write_bytes(before)
