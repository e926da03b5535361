"""The queue's estimates of when jobs could start, in words of several versions of sbatch, which is a script here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from basics import QUICKSTART, executable
from commands import commands_first, recipe, refusal, typed

from mrt_hpc.backends.backend import StartEstimate
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm import arrays
from mrt_hpc.backends.slurm.arrays import MOST_ASKED, sbatch_texts, start_estimates
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.plan import start_lines
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.plan.jobs import Plan

SITE = SlurmSite(name="cluster", gpu_type="a100", account="us", python="/shared/python", sbatch={"constraint": "ib"})
MADE = 1_795_608_000
"""A moment, in seconds since the epoch."""
STARTS = f"sbatch: Job 1234 to start at {MADE} using 8 processors on nodes n1 in partition gpu"
NO_NODES = "allocation failure: Requested node configuration is not available"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(arrays, "ASK_S", 3.0)
    return commands_first(tmp_path / "commands", monkeypatch)


@pytest.fixture
def plan() -> Plan:
    return compile_plan(recipe("mrt_online"), SITE)


def sbatch(folder: Path, answer: str) -> None:
    """Put a script in the place of sbatch, which keeps its options and what it is given."""
    begin = f'cd {folder}\necho "$*" >> calls\nn=$(wc -l < calls)\ncat > script-$n'
    executable(folder / "sbatch", f"{begin}\n{answer}")


def said(words: str, status: int = 0) -> str:
    return f"{{ echo '{words}' >&2; exit {status}; }}"


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def asked(plan: Plan, tmp_path: Path) -> list[StartEstimate]:
    return start_estimates(plan.jobs, SITE, RunLayout(tmp_path / "run"))


def test_each_kind_of_job_is_asked_about_once(plan: Plan, tmp_path: Path, folder: Path) -> None:
    sbatch(folder, said(STARTS))
    found = asked(plan, tmp_path)
    assert calls(folder) == ["--test-only"] * 5
    kinds = [one.jobs[0] for one in found]
    assert kinds == ["prepare", *(f"segment-000.{role}" for role in ("inference", "trainer", "evaluation")), "report"]
    assert {one.at for one in found} == {float(MADE)}
    assert sum(len(one.jobs) for one in found) == len(plan.jobs)
    assert not (tmp_path / "run").exists(), "nothing is written"
    submitted = dict(sbatch_texts(plan, SITE, RunLayout(tmp_path / "run")))
    for number, name in enumerate(kinds, 1):
        options, wanted = (
            [line for line in text.splitlines() if line.startswith("#SBATCH")]
            for text in ((folder / f"script-{number}").read_text(), submitted[name])
        )
        assert options == [line for line in wanted if "--dependency" not in line]
        assert "#SBATCH --constraint=ib" in options
    assert "#SBATCH --array=0-3%4" in (folder / "script-2").read_text()


@pytest.mark.parametrize(
    "words",
    [
        STARTS.replace(str(MADE), "{time}"),
        "sbatch: Job 1234 to start at {time} using 8 processors on n1",
        "sbatch: lua: the account is us\nsbatch: Job 7 to start at {time} using 1 processors on nodes n[1-2] in "
        "partition gpu\nsbatch:   Preempts: 3,4",
    ],
)
def test_a_start_is_found_in_the_words_of_each_version(words: str, plan: Plan, tmp_path: Path, folder: Path) -> None:
    """By the local clock, or in seconds since the epoch."""
    for text in (time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(MADE)), str(MADE)):
        sbatch(folder, said(words.format(time=text)))
        assert asked(plan, tmp_path)[0].at == MADE


@pytest.mark.parametrize(
    ("answer", "shown", "questions"),
    [
        (said(f"sbatch: error: {NO_NODES}", 1), NO_NODES, 5),
        (said("sbatch: error: lua: no\nsbatch: error: allocation failure: Invalid qos", 1), "lua: no; alloc", 5),
        (said("sbatch: Job 1 to start at Unknown using 1 processors on nodes n1"), "Job 1 to start at Unknown", 5),
        (said("sbatch: Job 1 would wait"), "Job 1 would wait", 5),
        ("echo tested", "tested", 5),
        ("exit 0", "nothing", 5),
        ("exit 3", "exit code 3", 5),
        (said("sbatch: error: Unable to contact slurm controller (connect failure)", 1), "Unable to contact slurm", 1),
        ("exec sleep 600", "sbatch did not answer", 1),
    ],
)
def test_an_answer_without_a_time(
    answer: str, shown: str, questions: int, plan: Plan, tmp_path: Path, folder: Path
) -> None:
    """It is shown once for all jobs. Each kind may be accepted where another is refused; Slurm that cannot be reached
    is asked once.
    """
    sbatch(folder, answer)
    (one,) = asked(plan, tmp_path)
    assert len(calls(folder)) == questions
    assert (one.at, sorted(one.jobs)) == (None, sorted(job.name for job in plan.jobs))
    assert one.answer.startswith(shown)


def test_a_machine_without_sbatch(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (one,) = asked(plan, tmp_path)
    assert (one.at, one.answer, len(one.jobs)) == (None, "sbatch was not found", len(plan.jobs))


def test_one_kind_may_be_refused(plan: Plan, tmp_path: Path, folder: Path) -> None:
    sbatch(folder, f"if grep -q gres=gpu: script-$n; then {said(f'sbatch: error: {NO_NODES}', 1)}; fi\n{said(STARTS)}")
    found = {one.jobs[0]: one.at for one in asked(plan, tmp_path)}
    assert found == {"prepare": MADE, "segment-000.inference": None, "report": MADE}


def test_the_number_of_questions_has_a_limit(plan: Plan, tmp_path: Path, folder: Path) -> None:
    sbatch(folder, said(STARTS))
    job = plan.jobs[0]
    times = [job.resources.model_copy(update={"time_limit_minutes": minutes}) for minutes in range(1, 30)]
    many = [job.model_copy(update={"resources": resources}) for resources in times]
    assert len(start_estimates(many, SITE, RunLayout(tmp_path / "run"))) == MOST_ASKED


def test_what_cannot_be_asked_is_not_asked(plan: Plan, tmp_path: Path) -> None:
    """A path that Slurm would misread; and this machine makes no estimates."""
    assert "a%b" in refusal(start_estimates, plan.jobs, SITE, RunLayout(tmp_path / "a%b")).message()
    assert LocalSite().backend().starts(plan.jobs, recipe("mrt_online"), RunLayout(tmp_path / "run")) == []


@pytest.mark.parametrize(
    ("seconds", "jobs", "facts"),
    [
        (719, 1, ["  prepare could start at", "(in 12 minutes)"]),
        (7380, 3, ["the first task of segment-000.inference", "2 other job(s)", "(in 2 h 3 min)"]),
        (-5, 1, ["(at once)"]),
        (119 * 60, 1, ["(in 119 minutes)"]),
        (None, 1, ["prepare", "no"]),
        (None, 12, ["prepare, segment-000.inference, segment-000.trainer and 9 other job(s)", "no"]),
    ],
)
def test_estimates_in_words(plan: Plan, seconds: int | None, jobs: int, facts: list[str]) -> None:
    inference = [job.name for job in plan.jobs if job.name.endswith("inference")]
    names = inference[:3] if jobs == 3 else [job.name for job in plan.jobs][:jobs]
    at = None if seconds is None else float(MADE + seconds)
    lines = [*start_lines(plan, [StartEstimate("sbatch --test-only", at, "no", tuple(names))], float(MADE))]
    assert all(fact in lines[-1] for fact in facts)
    assert "sbatch --test-only" in lines[0]
    if at is not None:
        assert time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) in lines[-1]


def test_plan_prints_the_estimates_of_what_is_not_done_and_itself_without(tmp_path: Path, folder: Path) -> None:
    site, run = tmp_path / "site.yaml", tmp_path / "run"
    site.write_text("type: slurm\nname: here\ngpu_type: a100\n")

    def planned(*words: object) -> str:
        return typed("plan", QUICKSTART, *words).output

    sbatch(folder, said(STARTS.replace(str(MADE), str(int(time.time()) + 3000))))
    shown = planned("--site", site, "--run", run)
    assert "prepare could start" in shown and "(in 50 minutes)" in shown
    assert "could start at" not in planned()
    asked = recipe("quickstart")
    write_task(create_or_open(run, asked, compile_plan(asked, SITE)), "prepare", 0, TaskRecord(TaskState.DONE))
    shown = planned("--site", site, "--run", run)
    assert "segment-000.inference could start" in shown and "prepare could start" not in shown
    sbatch(folder, said("sbatch: error: invalid partition specified: cpu", 1))
    shown = planned("--site", site, "--run", run)
    assert "invalid partition specified: cpu" in shown and "segment-000.inference" in shown
    assert "percent" in planned("--site", site, "--run", tmp_path / "a%b"), "the queue is not asked, and why"
