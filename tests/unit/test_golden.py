"""What commands print, compared whole with tests/golden; ``env/test --update`` writes the files."""

import json
import re
import shutil
from pathlib import Path

import pytest
from basics import INFERENCE, ROOT, TRAINER
from canned_queue import CannedRun, submitted_run
from commands import HELP, python, typed
from golden import assert_golden
from situations import LATER, SITUATIONS
from slurm_texts import RecordedSlurm
from synthetic_run import Shape, SyntheticRun

import mrt_hpc
from mrt_hpc.backends.slurm.site import Partitions, SlurmSite
from mrt_hpc.cli.doctor import print_checks
from mrt_hpc.cluster.doctor import limit_checks, preemption_checks, slurm_checks
from mrt_hpc.cluster.doctor.diagnosis import CHECKS
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState

DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d\d \w{3} |\d{4}-\d\d-\d\d )?"
TIMES = re.compile(rf"\b{DAY}\d\d:\d\d(?::\d\d)?\b")


def compare(name: str, text: str, **places: object) -> None:
    for word, place in {**places, "CHECKOUT": ROOT, "VERSION": mrt_hpc.__version__}.items():
        text = text.replace(str(place), word)
    lines = [TIMES.sub("TIME", line).rstrip() for line in text.splitlines()]
    assert_golden(name, "".join(f"{line}\n" for line in lines))


def test_help() -> None:
    compare("help.txt", python("-c", HELP, COLUMNS="100").stdout)


def test_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the paper's recipe and of one that runs anywhere, on a cluster whose queue cannot be asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    nowhere = ("model.path=/nowhere/model-1.5B", "data={type: jsonl, path: /nowhere/problems.jsonl, limit: 4000}")
    less = ("evaluation.benchmarks=[]", "expected.trace_tokens=1000", "resources.trainer.time_limit_minutes=30")
    changes = [word for setting in (*nowhere, *less) for word in ("--set", setting)]
    wide = typed("plan", "mrt_online", "--site", "example", *changes, columns=160).stdout  # where a plan is a table
    narrow = typed("plan", "quickstart", "--site", "example", columns=80).stdout
    compare("plan.txt", f"{wide}\n{narrow}", HERE=tmp_path)


def test_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is checked of a cluster that answers with recorded texts; other checks look at the machine of the test."""
    recipe = load_recipe(ROOT / "recipes" / "mrt_online.yaml", ())
    good = SlurmSite(name="lab", account="lab", partitions=Partitions(cpu="cpu", gpu="gpu"), max_submit_jobs=5000)
    wrong = SlurmSite(name="lab", account="nobody", partitions=Partitions(gpu="gqu"), sbatch={"constrain": "ib"})
    modules = {module.__name__ for module in (slurm_checks, limit_checks, preemption_checks)}
    checks = [check for check in CHECKS if check.look.__module__ in modules]
    for site in (good, wrong):
        situation = Situation(site, recipe, tmp_path / "run", RecordedSlurm().survey())
        print_checks([result for check in checks for result in check.results(situation)], everything=site is good)
        print()
    compare("doctor.txt", capsys.readouterr().out, HERE=tmp_path)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    return submitted_run(tmp_path, monkeypatch)


def test_explain(run: CannedRun) -> None:
    shown = []
    for words, situated in SITUATIONS.items():
        situated.make(run)
        shown += [f"# {words}", typed("explain", run.layout.root, *situated.words).output]
    run.done()
    shown += ["# the run is finished", typed("explain", run.layout.root).output]
    compare("explain.txt", "\n".join(shown), RUN=run.layout.root)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    return SyntheticRun(tmp_path_factory.mktemp("golden") / "run", Shape(4, 2, problems=4, paragraphs=1)).write()


def at_work(run: CannedRun) -> None:
    run.queue(LATER, *(f"12_{n}|RUNNING|1|None|node{n}" for n in range(2)))
    run.task(TRAINER, TaskState.RETRYING, message="no memory", failures=1)
    for index in range(2):
        run.task(INFERENCE, TaskState.RUNNING, index, attempt=f"12_{index}.0")


def test_status(run: CannedRun, finished: RunLayout) -> None:
    at_work(run)
    shown = [typed("status", root, columns=240).output for root in (run.layout.root, finished.root)]
    compare("status.txt", "\n".join(shown), RUN=run.layout.root, FINISHED=finished.root)


def fields(value: object, at: str) -> set[str]:
    if isinstance(value, dict):
        return {at} | {path for name, inner in value.items() for path in fields(inner, f"{at}.{name}")}
    return {path for inner in value for path in fields(inner, f"{at}[]")} if isinstance(value, list) else {at}


def test_json(run: CannedRun, finished: RunLayout) -> None:
    at_work(run)
    asked = [*(("status", str(root)) for root in (run.layout.root, finished.root)), ("runs", str(finished.root))]
    asked += [("cost", str(finished.root)), ("plan", "quickstart", "--site", "example"), ("recipes", "list")]
    paths = {path for words in asked for path in fields(json.loads(typed(*words, "--json").stdout), words[0])}
    compare("json_fields.txt", "\n".join(sorted(paths)))


def test_report(finished: RunLayout, tmp_path: Path) -> None:
    layout = RunLayout(shutil.copytree(finished.root, tmp_path / "run"))
    typed("report", layout.root)
    compare("report.md", layout.report.read_text(), RUN=layout.root)
