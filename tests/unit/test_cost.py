"""The reckoning of hours: small runs whose numbers are computed by hand, with canned texts of sacct."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from basics import executable
from commands import commands_first, typed
from run_of import read_events, run_of
from tables import tables

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.analysis.spending import Accounts, Allocation, Spending, prices, spending
from mrt_hpc.attempt.ledger import record_submission
from mrt_hpc.backends.slurm.accounting import attempts_of
from mrt_hpc.backends.slurm.parameters import queue_name
from mrt_hpc.backends.slurm.queue import A_DAY_S
from mrt_hpc.cli.cost import hours_text
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.recipe.lock import read_lock
from mrt_hpc.run.events import EventKind, EventLog, Use, event_file
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task

INFERENCE, TRAINER = "segment-000.inference", "segment-000.trainer"
SACCT = tables("cost")["sacct"]
WHOLE = (1400 * 2 + 1500 * 1) / 3600  # the GPU-hours of this text


def use(what: Use) -> dict[str, Any]:
    return {"kind": EventKind.USE, "use": what.value}


def committed(rollouts: int, branches: int) -> dict[str, Any]:
    return {"kind": EventKind.GROUP_COMMITTED, "rollout_tokens": rollouts, "branch_tokens": branches}


ENDED = {"kind": EventKind.TASK_ENDED, "outcome": "done"}


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """A run with an inference task that was preempted once, and a trainer that waited for it."""
    gpus = ("resources.inference.gpus=2", "resources.inference.cpus=4", "resources.trainer.gpus=1")
    layout = run_of(tmp_path / "run", *gpus)
    for number, (job, job_id) in enumerate(((INFERENCE, "20"), (TRAINER, "12")), 1):
        record_submission(layout, job, job_id, "site")
        entry = layout.jobs / f"queued-{number:06d}.json"
        entry.write_text(json.dumps({**json.loads(entry.read_text()), "time": 900.0}))
    preempted = [(1100, use(Use.WAITING)), (1200, use(Use.GENERATING)), (1500, committed(300, 100))]
    write(layout, INFERENCE, "20_0.0", 1010, preempted, began=1000)
    whole = [(2200, use(Use.GENERATING)), (2400, committed(100, 0)), (2450, use(Use.ENDING)), (2480, ENDED)]
    write(layout, INFERENCE, "20_0.1", 2110, whole, began=2100, earlier={"attempt": "20_0.0", "until": 1990.0})
    trained = [(1050, use(Use.WAITING)), (1550, use(Use.TRAINING)), (2000, use(Use.SAVING))]
    trained += [(2100, {"kind": EventKind.CHECKPOINT, "iteration": 1}), (2480, ENDED)]
    write(layout, TRAINER, "12.0", 1010, trained, began=1000)
    return layout


def write(
    layout: RunLayout, job: str, attempt: str, started: float, events: list[tuple[int, dict[str, Any]]], **first: Any
) -> None:
    """The events of rank 0 of an attempt, and those of its second rank, which count nowhere."""
    begin = {"kind": EventKind.TASK_STARTED, "job": job, "task": 0, "attempt": attempt, "world_size": 2, **first}
    for rank in (0, 1):
        every = [(started, {**begin, "rank": rank}), *events]
        lines = [json.dumps({"time": time, "host": "n", "pid": rank + 1, **event}) for time, event in every]
        event_file(layout.events, job, 0, rank, attempt).write_text("".join(f"{line}\n" for line in lines))


def reckoned(layout: RunLayout, accounts: Accounts | None = None) -> Spending:
    return spending(layout, read_plan(layout.plan), read_lock(layout.recipe_lock), accounts)


def of(layout: RunLayout, role: Role, accounts: Accounts | None = None) -> dict[Use, float]:
    return {row.use: round(row.hours * 3600, 6) for row in reckoned(layout, accounts).rows if row.role is role}


@pytest.fixture
def commands(run: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = commands_first(tmp_path / "bin", monkeypatch)
    put_sacct(folder, run, SACCT)
    return folder


def put_sacct(folder: Path, run: RunLayout, text: str, *others: str) -> None:
    """Let sacct print lines of the run's jobs, with their names, and lines of others."""
    jobs = {"12": TRAINER, "20": INFERENCE}
    lines = [f"{line}|{queue_name(jobs[line[:2]], run)}" for line in text.splitlines()]
    executable(folder / "sacct", "\n".join(["cat <<'END'", *others, *lines, "END"]))


def cost(run: RunLayout, *options: object) -> str:
    return typed("cost", run.root, *options).output


@pytest.mark.usefixtures("commands")
def test_every_second_of_accounting_has_one_use(run: RunLayout, tmp_path: Path) -> None:
    found = json.loads(cost(run, "--json"))
    seconds: dict[str, dict[str, float]] = {"inference": {}, "trainer": {}}
    for row in found["by_role_and_use"]:
        seconds[row["role"]][row["use"]] = round(row["hours"] * 3600, 6)
    assert seconds == {
        "inference": {
            "starting": 200, "waiting for a peer": 100, "generating": 0.75 * 300 + 250, "branching": 0.25 * 300,
            "lost to preemption or failure": 500, "ending": 50,
        },
        "trainer": {"starting": 50, "waiting for a peer": 500, "training": 450, "saving": 480, "ending": 20},
    }  # fmt: skip
    assert (found["source"], found["gpu_hours"]) == ("accounting", pytest.approx(WHOLE, rel=1e-12))
    assert sum(row["gpu_hours"] for row in found["by_role_and_use"]) == pytest.approx(WHOLE, rel=1e-12)
    assert found["core_hours"] == pytest.approx((1400 * 4 + 1500 * 4) / 3600, rel=1e-12)
    assert found["queue_hours"] == pytest.approx({"inference": (100 + 90) / 3600, "trainer": 0.0})
    cost(run, "--csv", tmp_path / "cost.csv")
    rows = list(csv.DictReader((tmp_path / "cost.csv").read_text().splitlines()))
    assert sum(float(row["gpu_hours"] or 0) for row in rows) == pytest.approx(WHOLE)
    assert [row["role"] for row in rows if row["use"] == "queued"] == ["inference", "trainer"]


@pytest.mark.usefixtures("commands")
def test_groups_that_were_thrown_away_take_their_share_of_the_tokens(run: RunLayout) -> None:
    """Of 1,000 tokens 400 were thrown away; a quarter of the rest of the time is that of the branches."""
    thrown = {**committed(750, 250), "thrown_groups": 2, "thrown_tokens": 400}
    before, found = of(run, Role.INFERENCE), [(5100, use(Use.GENERATING)), (5400, thrown), (5400, ENDED)]
    write(run, INFERENCE, "30_0.0", 5000, found, began=4990)
    spent = of(run, Role.INFERENCE)
    uses = {Use.THROWN: 0.4 * 300, Use.BRANCHING: 0.25 * 0.6 * 300, Use.GENERATING: 0.75 * 0.6 * 300}
    assert {name: spent[name] - before.get(name, 0.0) for name in uses} == pytest.approx(uses)
    wanted = {"every": 1500, "branches": 350, "thrown": 400, "thrown_groups": 2}
    assert json.loads(cost(run, "--json"))["sampled_tokens"] == wanted
    assert "2 group(s) with 400 of 1,500 sampled tokens were thrown away" in cost(run)


@pytest.mark.parametrize("why", ["Slurm accounting storage is disabled", "sacct: error: no permission"])
def test_without_accounting_the_events_say_the_same_to_three_per_cent(run: RunLayout, commands: Path, why: str) -> None:
    executable(commands / "sacct", f"echo '{why}' >&2; exit 1")
    for job, attempt in ((INFERENCE, "20_0.1"), (TRAINER, "12.0")):  # what the job scripts write at their end
        line = {"time": 2499, "kind": "allocation_ended", "attempt": attempt, "host": "n", "pid": 3}
        (run.events / f"{job}.00000.script.{attempt}.jsonl").write_text(json.dumps(line) + "\n")
    found = json.loads(cost(run, "--json"))
    assert (found["source"], found["gpu_hours"]) == ("events", pytest.approx((990 * 2 + 399 * 2 + 1499) / 3600))
    assert found["gpu_hours"] == pytest.approx(WHOLE, rel=0.03)
    assert sum(row["gpu_hours"] for row in found["by_role_and_use"]) == pytest.approx(found["gpu_hours"], rel=1e-12)
    # from the submission to the first begin, and from the end of an attempt to the next one
    assert found["queue_hours"]["inference"] == pytest.approx((100 + (2100 - 1990)) / 3600)
    assert ("keeps no accounting" if "disabled" in why else "was not reached") in cost(run)


def test_an_attempt_that_runs_has_lost_nothing(run: RunLayout) -> None:
    write(run, INFERENCE, "30_0.0", 5000, [(5100, use(Use.GENERATING)), (5400, committed(1, 1))], began=4990)
    for state in (TaskState.RUNNING, TaskState.STOPPED):
        write_task(run, INFERENCE, 0, TaskRecord(state, attempt="30_0.0"))
        assert of(run, Role.INFERENCE)[Use.LOST] == 490, "all of it is kept in both cases"
    write(run, INFERENCE, "30_0.0", 5000, [(5100, use(Use.GENERATING)), (5400, use(Use.ENDING))], began=4990)
    assert of(run, Role.INFERENCE)[Use.LOST] == 490 + 410, "start and generation, but not the end"


def test_an_attempt_that_waited_in_vain_and_gave_its_nodes_back_has_lost_nothing(run: RunLayout) -> None:
    write(run, TRAINER, "12.1", 3010, [(3100, use(Use.WAITING)), (3700, ENDED | {"outcome": "gave back"})], began=3000)
    found = of(run, Role.TRAINER)
    assert (found[Use.WAITING], Use.LOST in found) == (500 + 600, False)


def test_an_allocation_without_events_is_lost_or_unaccounted(run: RunLayout) -> None:
    held = [Allocation("99", 9000 + 100 * failed, 60.0, 1, 4, 0.0, failed, TRAINER) for failed in (True, False)]
    found = of(run, Role.TRAINER, Accounts(held))
    assert (found[Use.LOST], found[Use.UNACCOUNTED]) == (60, 60)


def test_gpus_that_accounting_does_not_name_are_those_of_the_plan(run: RunLayout, commands: Path) -> None:
    put_sacct(commands, run, SACCT.replace("gres/gpu:a100=2,gres/gpu=2,", "").replace("gres/gpu=1,", ""))
    found = json.loads(cost(run, "--json"))
    assert found["gpu_hours"] == pytest.approx(WHOLE)
    assert any("AccountingStorageTRES" in note for note in found["notes"])


def test_a_job_of_the_same_id_is_of_another_run(run: RunLayout, commands: Path) -> None:
    """One of long ago by its time, one of a controller that began to count again by its name."""
    row = "12|COMPLETED|{0}|{0}|{0}|500|4|cpu=4,gres/gpu=1|{1}"
    others = row.format(1, queue_name(TRAINER, run)), row.format(int(A_DAY_S) + 900, "thesis")
    put_sacct(commands, run, SACCT, *others)
    for entry in run.jobs.glob("queued-*.json"):
        entry.write_text(json.dumps({**json.loads(entry.read_text()), "time": A_DAY_S + 900.0}))
    assert json.loads(cost(run, "--json"))["gpu_hours"] == pytest.approx(WHOLE)


def test_what_a_point_of_accuracy_cost(run: RunLayout) -> None:
    evaluations = [
        summarise_evaluation(version, name, {"p": [1.0] * right + [0.0] * (4 - right)})
        for name, version, right in (("up", 0, 1), ("up", 8, 2), ("down", 0, 2), ("down", 8, 1), ("alone", 8, 1))
    ]
    up, down = prices(reckoned(run), evaluations)
    assert (up.benchmark, up.first, up.last, up.gain) == ("up", 0, 8, 25.0)
    assert up.gpu_hours == pytest.approx((990 * 2 + 380 * 2 + 1480) / 3600 / 25)
    assert (down.gain, down.gpu_hours) == (-25.0, None)


def test_less_than_an_hour_is_printed_in_minutes() -> None:
    for hours, text in ((0.0, "0.00 GPU-hours"), (0.5, "30.00 GPU-minutes"), (2.5, "2.50 GPU-hours")):
        assert hours_text(hours, "GPU") == text


def test_one_line_of_sacct() -> None:
    for line in ("20_1|CANCELLED by 1000|900|900|Unknown|0|0||a", "7_[2-9]|PENDING|900|Unknown|Unknown|0|0||a"):
        assert attempts_of(line) == []
    resources = "cpu=8,gres/gpu:a100=1,gres/gpu:2080ti=2,gres/gpumem=80G"
    ((kinds, marks),) = attempts_of(f"7|RUNNING|900|Unknown|1000|60|8|{resources}|a|b")
    assert (marks.name, marks.submitted) == ("a|b", 900.0)
    assert (kinds.gpus, kinds.cpus, kinds.queued_s) == (3, 8, 100.0)


def test_numbers_of_sacct_that_are_none_are_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    for start, elapsed in (("1000", "-3500"), ("1000", "00:10:00"), ("1000", "INVALID"), ("9" * 40, "60")):
        assert attempts_of(f"7|COMPLETED|900|900|{start}|{elapsed}|4|cpu=4|a") == []
        assert elapsed in capsys.readouterr().err


def test_the_same_use_again_writes_nothing(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "a.jsonl")
    for what in (Use.STARTING, Use.WAITING, Use.WAITING, Use.GENERATING):
        log.spend(what)
    assert [event["use"] for event in read_events(tmp_path)] == ["waiting for a peer", "generating"]


@pytest.mark.usefixtures("commands")
def test_the_tokens_of_branches_stand_beside_those_of_traces(run: RunLayout) -> None:
    assert json.loads(cost(run, "--json"))["branches"] is None
    for iteration, tokens in ((0, {"branch_tokens": 30, "prefilled_tokens": 50}), (1, {})):
        run.metrics(iteration).parent.mkdir(parents=True, exist_ok=True)
        fields = {"tokens_per_rollout": 1.0, "problems": 2, "generated_tokens": 100, **tokens}
        IterationMetrics(iteration=iteration, **fields).write(run.metrics(iteration))
    assert json.loads(cost(run, "--json"))["branches"] == {"traces": 35.0, "branches": 15.0, "prefilled": 25.0}
    assert "15 generated tokens a problem in branches of the prover beside 35 in traces (30 %)" in cost(run)
