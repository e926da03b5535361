"""The reckoning of hours: small runs whose numbers are computed by hand, with canned texts of sacct."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.analysis.spending import Accounts, Allocation, prices, spending
from mrt_hpc.attempt.ledger import record_submission
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.queue import attempts_of
from mrt_hpc.cli.main import main
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import read_lock
from mrt_hpc.run.events import EventKind, EventLog, Use, event_file, read_events
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.analysis.spending import Spending
    from mrt_hpc.run.layout import RunLayout

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
INFERENCE, TRAINER = "segment-000.inference", "segment-000.trainer"
HEADER = "JobID|State|Submit|Eligible|Start|ElapsedRaw|AllocCPUS|AllocTRES"
SACCT = """\
20_0|PREEMPTED|900|900|1000|1000|4|billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=8G,node=1
20_0|COMPLETED|2000|2010|2100|400|4|billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=8G,node=1
20_1|CANCELLED by 1000|900|900|Unknown|0|0|
12|COMPLETED|900|1000|1000|1500|4|cpu=4,gres/gpu=1,node=1
"""


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """A run with an inference task that was preempted once, and a trainer that waited for it."""
    recipe = load_recipe(
        QUICKSTART,
        ("resources.inference.gpus=2", "resources.inference.cpus=4", "resources.trainer.gpus=1"),
    )
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    for number, (job, job_id) in enumerate(((INFERENCE, "20"), (TRAINER, "12")), 1):
        record_submission(layout, job, job_id, "site")
        entry = layout.jobs / f"queued-{number:06d}.json"
        entry.write_text(json.dumps({**json.loads(entry.read_text()), "time": 900.0}))
    preempted = [(1100, use(Use.WAITING)), (1200, use(Use.GENERATING)), (1500, committed(300, 100))]
    write(layout, INFERENCE, "20_0.0", 1010, preempted, began=1000)
    whole = [(2200, use(Use.GENERATING)), (2400, committed(100, 0)), (2450, use(Use.ENDING)), (2480, ended("done"))]
    write(layout, INFERENCE, "20_0.1", 2110, whole, began=2100, earlier={"attempt": "20_0.0", "until": 1990.0})
    trained = [(1050, use(Use.WAITING)), (1550, use(Use.TRAINING)), (2000, use(Use.SAVING))]
    trained += [(2100, {"kind": EventKind.CHECKPOINT, "iteration": 1}), (2480, ended("done"))]
    write(layout, TRAINER, "12.0", 1010, trained, began=1000)
    return layout


def use(what: Use) -> dict[str, Any]:
    return {"kind": EventKind.USE, "use": what.value}


def committed(rollouts: int, branches: int) -> dict[str, Any]:
    return {"kind": EventKind.SHARD_COMMITTED, "rollout_tokens": rollouts, "branch_tokens": branches}


def ended(outcome: str) -> dict[str, Any]:
    return {"kind": EventKind.TASK_ENDED, "outcome": outcome}


def write(
    layout: RunLayout, job: str, attempt: str, started: float, told: list[tuple[int, dict[str, Any]]], **first: Any
) -> None:
    """The events of rank 0 of an attempt, and those of its second rank, which count nowhere."""
    begin = {"kind": EventKind.TASK_STARTED, "job": job, "task": 0, "attempt": attempt, "world_size": 2, **first}
    for rank in (0, 1):
        events = [(started, {**begin, "rank": rank}), *told]
        lines = [json.dumps({"time": time, "host": "n", "pid": rank + 1, **event}) for time, event in events]
        path = event_file(layout.events, job, 0, rank, attempt)
        path.write_text("".join(f"{line}\n" for line in lines))


def script_ended(layout: RunLayout, job: str, attempt: str, time: float) -> None:
    """What the job script of an attempt writes at its end."""
    line = {"time": time, "kind": "allocation_ended", "attempt": attempt, "host": "n", "pid": 3}
    (layout.events / f"{job}.00000.script.{attempt}.jsonl").write_text(json.dumps(line) + "\n")


def of(spent: Spending, role: Role) -> dict[Use, float]:
    """The seconds of each use of a role."""
    return {row.use: round(row.hours * 3600, 6) for row in spent.rows if row.role is role}


def reckoned(layout: RunLayout, accounts: Accounts | None = None) -> Spending:
    return spending(layout, read_plan(layout.plan), read_lock(layout.recipe_lock), accounts)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def put_sacct(folder: Path, script: str) -> None:
    (folder / "sacct").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "sacct").chmod(0o755)


def cost(run: RunLayout, *options: str) -> str:
    result = CliRunner().invoke(main, ["cost", str(run.root), *options])
    assert result.exit_code == 0, result.output
    return result.output


WITH_ACCOUNTING = f"cat <<'END'\n{SACCT}END"
WITHOUT_ACCOUNTING = "echo 'Slurm accounting storage is disabled' >&2; exit 1"


def test_every_second_of_accounting_has_one_use(run: RunLayout, commands: Path) -> None:
    put_sacct(commands, WITH_ACCOUNTING)
    told = json.loads(cost(run, "--json"))
    seconds = {(row["role"], row["use"]): round(row["hours"] * 3600, 6) for row in told["by_role_and_use"]}
    assert seconds == {
        ("inference", "starting"): 200,
        ("inference", "waiting for a peer"): 100,
        ("inference", "generating"): 0.75 * 300 + 250,
        ("inference", "branching"): 0.25 * 300,
        ("inference", "lost to preemption or failure"): 500,
        ("inference", "ending"): 50,
        ("trainer", "starting"): 50,
        ("trainer", "waiting for a peer"): 500,
        ("trainer", "training"): 450,
        ("trainer", "saving"): 480,
        ("trainer", "ending"): 20,
    }
    whole = (1400 * 2 + 1500 * 1) / 3600  # sacct's own sum
    assert told["source"] == "accounting"
    assert told["gpu_hours"] == pytest.approx(whole, rel=1e-12)
    assert sum(row["gpu_hours"] for row in told["by_role_and_use"]) == pytest.approx(whole, rel=1e-12)
    assert told["core_hours"] == pytest.approx((1400 * 4 + 1500 * 4) / 3600, rel=1e-12)
    assert told["queue_hours"] == pytest.approx({"inference": (100 + 90) / 3600, "trainer": 0.0})


def test_without_accounting_the_events_tell_the_same_to_three_per_cent(run: RunLayout, commands: Path) -> None:
    put_sacct(commands, WITHOUT_ACCOUNTING)
    script_ended(run, INFERENCE, "20_0.1", 2499)
    script_ended(run, TRAINER, "12.0", 2499)
    told = json.loads(cost(run, "--json"))
    by_account = (1400 * 2 + 1500 * 1) / 3600
    assert told["source"] == "events"
    assert told["gpu_hours"] == pytest.approx((990 * 2 + 399 * 2 + 1499) / 3600)
    assert told["gpu_hours"] == pytest.approx(by_account, rel=0.03)
    assert sum(row["gpu_hours"] for row in told["by_role_and_use"]) == pytest.approx(told["gpu_hours"], rel=1e-12)
    # From the submission to the first begin, and from the end of an attempt to the next one.
    assert told["queue_hours"]["inference"] == pytest.approx((100 + (2100 - 1990)) / 3600)
    assert "keeps no accounting" in cost(run)


def test_an_attempt_that_runs_has_lost_nothing(run: RunLayout) -> None:
    write(run, INFERENCE, "30_0.0", 5000, [(5100, use(Use.GENERATING)), (5400, committed(1, 1))], began=4990)
    write_task(run, INFERENCE, 0, TaskRecord(TaskState.RUNNING, attempt="30_0.0"))
    before = of(reckoned(run), Role.INFERENCE)
    write_task(run, INFERENCE, 0, TaskRecord(TaskState.STOPPED, attempt="30_0.0"))
    assert before[Use.LOST] == of(reckoned(run), Role.INFERENCE)[Use.LOST] == 490  # all of it is kept in both cases
    write(run, INFERENCE, "30_0.0", 5000, [(5100, use(Use.GENERATING)), (5400, use(Use.ENDING))], began=4990)
    after = of(reckoned(run), Role.INFERENCE)
    assert after[Use.LOST] == 490 + 410  # start and generation, but not the end


def test_an_attempt_that_waited_in_vain_and_gave_its_nodes_back_has_lost_nothing(run: RunLayout) -> None:
    waited = [(3100, use(Use.WAITING)), (3700, ended("gave back"))]
    write(run, TRAINER, "12.1", 3010, waited, began=3000)
    found = of(reckoned(run), Role.TRAINER)
    assert Use.LOST not in found
    assert found[Use.WAITING] == 500 + 600


def test_an_allocation_without_events_is_lost_or_unaccounted(run: RunLayout) -> None:
    def one(began: float, *, failed: bool) -> Allocation:
        return Allocation("99", began, 60.0, 1, 4, 0.0, failed, TRAINER)

    found = of(reckoned(run, Accounts([one(9000, failed=True), one(9100, failed=False)])), Role.TRAINER)
    assert found[Use.LOST] == 60
    assert found[Use.UNACCOUNTED] == 60


def test_gpus_that_accounting_does_not_name_are_those_of_the_plan(run: RunLayout, commands: Path) -> None:
    put_sacct(commands, WITH_ACCOUNTING.replace("gres/gpu:a100=2,gres/gpu=2,", "").replace("gres/gpu=1,", ""))
    told = json.loads(cost(run, "--json"))
    assert told["gpu_hours"] == pytest.approx((1400 * 2 + 1500 * 1) / 3600)
    assert any("AccountingStorageTRES" in note for note in told["notes"])


def test_a_job_of_the_same_id_before_the_submission_is_of_another_run(run: RunLayout, commands: Path) -> None:
    put_sacct(commands, WITH_ACCOUNTING.replace("END\n", "END\n12|COMPLETED|1|1|2|500|4|cpu=4,gres/gpu=1\n", 1))
    assert json.loads(cost(run, "--json"))["gpu_hours"] == pytest.approx((1400 * 2 + 1500 * 1) / 3600)


def test_accounting_that_does_not_answer_is_said(run: RunLayout, commands: Path) -> None:
    put_sacct(commands, "echo 'sacct: error: no permission' >&2; exit 1")
    told = cost(run)
    assert "accounting was not reached" in told
    assert "by the run's own events" in told


def test_the_table_and_the_csv_add_up(run: RunLayout, commands: Path, tmp_path: Path) -> None:
    put_sacct(commands, WITH_ACCOUNTING)
    told = cost(run, "--csv", str(tmp_path / "cost.csv"))
    assert "1.19 GPU-hours and 3.22 core-hours by the cluster's accounting" in told
    rows = list(csv.DictReader((tmp_path / "cost.csv").read_text().splitlines()))
    assert sum(float(row["gpu_hours"] or 0) for row in rows) == pytest.approx((1400 * 2 + 1500) / 3600)
    assert [row["role"] for row in rows if row["use"] == "queued"] == ["inference", "trainer"]
    assert "mrt-hpc report" in told


def test_what_a_point_of_accuracy_cost(run: RunLayout) -> None:
    evaluations = [
        summarise_evaluation(version, name, {"p": [1.0] * right + [0.0] * (4 - right)})
        for name, version, right in (("up", 0, 1), ("up", 8, 2), ("down", 0, 2), ("down", 8, 1), ("alone", 8, 1))
    ]
    up, down = prices(reckoned(run), evaluations)
    hours = (990 * 2 + 380 * 2 + 1480) / 3600
    assert (up.benchmark, up.first, up.last, up.gain) == ("up", 0, 8, 25.0)
    assert up.gpu_hours == pytest.approx(hours / 25)
    assert (down.gain, down.gpu_hours) == (-25.0, None)


def test_a_run_that_has_not_started_has_cost_nothing(tmp_path: Path) -> None:
    recipe = load_recipe(QUICKSTART)
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    assert "has cost nothing yet" in cost(layout)
    assert json.loads(cost(layout, "--json"))["gpu_hours"] == 0


def test_one_line_of_sacct() -> None:
    assert attempts_of("20_1|CANCELLED by 1000|900|900|Unknown|0|0|\n7_[2-9]|PENDING|900|Unknown|Unknown|0|0|") == []
    (kinds,) = attempts_of("7|RUNNING|900|Unknown|1000|60|8|cpu=8,gres/gpu:a100=1,gres/gpu:2080ti=2,gres/gpumem=80G")
    assert (kinds.gpus, kinds.cpus, kinds.queued_s) == (3, 8, 100.0)


def test_the_same_use_again_writes_nothing(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "a.jsonl")
    for what in (Use.STARTING, Use.WAITING, Use.WAITING, Use.GENERATING):
        log.spend(what)
    assert [event["use"] for event in read_events(tmp_path)] == ["waiting for a peer", "generating"]
