"""The queue's estimates of when jobs could start, in words of several versions of sbatch, which is a script here."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from mrt_hpc.backends.backend import StartEstimate
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm import arrays
from mrt_hpc.backends.slurm.arrays import MOST_ASKED, sbatch_texts, start_estimates
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.main import main
from mrt_hpc.cli.plan import start_lines
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.plan.jobs import Plan
    from mrt_hpc.recipe.schema import Recipe

RECIPES = Path(__file__).parents[2] / "recipes"
SITE = SlurmSite(name="cluster", gpu_type="a100", account="us", python="/shared/python", sbatch={"constraint": "ib"})
MADE = 1_795_608_000
"""A moment, in seconds since the epoch."""
SBATCH = """#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> calls
n=$(wc -l < calls)
cat > script-$n
{answer}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first where commands are looked for."""
    commands = tmp_path / "commands"
    commands.mkdir()
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return commands


def sbatch(folder: Path, answer: str) -> None:
    """Put a script in the place of sbatch."""
    (folder / "sbatch").write_text(SBATCH.format(answer=answer))
    (folder / "sbatch").chmod(0o755)


def said(words: str) -> str:
    return f"echo '{words}' >&2"


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


@pytest.fixture
def online() -> Recipe:
    return load_recipe(RECIPES / "mrt_online.yaml", ())


@pytest.fixture
def plan(online: Recipe) -> Plan:
    return compile_plan(online, SITE)


def asked(plan: Plan, tmp_path: Path) -> list[StartEstimate]:
    return start_estimates(plan.jobs, SITE, RunLayout(tmp_path / "run"))


def test_each_kind_of_job_is_asked_about_once(plan: Plan, tmp_path: Path, folder: Path) -> None:
    sbatch(folder, said(f"sbatch: Job 1234 to start at {MADE} using 8 processors on nodes n1 in partition gpu"))
    found = asked(plan, tmp_path)
    assert calls(folder) == ["--test-only"] * 5
    assert [one.jobs[0] for one in found] == [
        "prepare", "segment-000.inference", "segment-000.trainer", "segment-000.evaluation", "report",
    ]  # fmt: skip
    assert {one.at for one in found} == {float(MADE)}
    assert sum(len(one.jobs) for one in found) == len(plan.jobs)
    assert not (tmp_path / "run").exists(), "nothing is written"


def test_the_question_is_the_script_of_a_submission_without_its_dependencies(
    plan: Plan, tmp_path: Path, folder: Path
) -> None:
    sbatch(folder, said("sbatch: Job 1 to start at 2026-11-25T12:00:00 using 8 processors on nodes n1"))
    asked(plan, tmp_path)
    submitted = dict(sbatch_texts(plan, SITE, RunLayout(tmp_path / "run")))
    for number, name in enumerate(("prepare", "segment-000.inference", "segment-000.trainer"), 1):
        given = (folder / f"script-{number}").read_text()
        options = [line for line in given.splitlines() if line.startswith("#SBATCH")]
        wanted = [line for line in submitted[name].splitlines() if line.startswith("#SBATCH")]
        assert options == [line for line in wanted if "--dependency" not in line]
        assert "#SBATCH --constraint=ib" in options
    assert "#SBATCH --array=0-3%4" in (folder / "script-2").read_text()


@pytest.mark.parametrize(
    "words",
    [
        "sbatch: Job 1234 to start at {time} using 8 processors on nodes n1 in partition gpu",
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
    ("answer", "told"),
    [
        (
            said("sbatch: error: allocation failure: Requested node configuration is not available") + "; exit 1",
            "allocation failure: Requested node configuration is not available",
        ),
        (said("sbatch: error: lua: no\nsbatch: error: allocation failure: Invalid qos") + "; exit 1", "lua: no; alloc"),
        (said("sbatch: Job 1 to start at Unknown using 1 processors on nodes n1"), "Job 1 to start at Unknown"),
        (said("sbatch: Job 1 would wait"), "Job 1 would wait"),
        ("echo tested", "tested"),
        ("exit 0", "nothing"),
        ("exit 3", "exit code 3"),
    ],
)
def test_an_answer_without_a_time_is_told_once_for_all_jobs(
    answer: str, told: str, plan: Plan, tmp_path: Path, folder: Path
) -> None:
    sbatch(folder, answer)
    found = asked(plan, tmp_path)
    assert len(calls(folder)) == 5, "one kind may be refused and another accepted"
    assert len(found) == 1
    assert found[0].at is None
    assert found[0].answer.startswith(told)
    assert sorted(found[0].jobs) == sorted(job.name for job in plan.jobs)


def test_one_kind_may_be_refused(plan: Plan, tmp_path: Path, folder: Path) -> None:
    refused = said("sbatch: error: allocation failure: Requested node configuration is not available")
    start = said(f"sbatch: Job 1 to start at {MADE} using 1 processors on nodes n1 in partition cpu")
    sbatch(folder, f"if grep -q gres=gpu: script-$n; then {refused}; exit 1; else {start}; fi")
    found = {one.jobs[0]: one.at for one in asked(plan, tmp_path)}
    assert found == {"prepare": MADE, "segment-000.inference": None, "report": MADE}


def test_slurm_that_does_not_answer_is_asked_once(
    plan: Plan, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "ASK_S", 3.0)
    sbatch(folder, "exec sleep 600")
    began = time.monotonic()
    (one,) = asked(plan, tmp_path)
    assert time.monotonic() - began < 120
    assert len(calls(folder)) == 1
    assert (one.at, len(one.jobs)) == (None, len(plan.jobs))
    assert "sbatch did not answer within" in one.answer


def test_slurm_that_cannot_be_reached_is_asked_once(plan: Plan, tmp_path: Path, folder: Path) -> None:
    sbatch(folder, said("sbatch: error: Unable to contact slurm controller (connect failure)") + "; exit 1")
    (one,) = asked(plan, tmp_path)
    assert len(calls(folder)) == 1
    assert (one.answer, len(one.jobs)) == (
        "Unable to contact slurm controller (connect failure)",
        len(plan.jobs),
    )


def test_a_machine_without_sbatch_says_so(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (one,) = asked(plan, tmp_path)
    assert (one.at, one.answer, len(one.jobs)) == (None, "sbatch was not found", len(plan.jobs))


def test_the_number_of_questions_has_a_limit(plan: Plan, tmp_path: Path, folder: Path) -> None:
    sbatch(folder, said(f"sbatch: Job 1 to start at {MADE} using 1 processors on nodes n1 in partition cpu"))
    job = plan.jobs[0]
    many = [
        job.model_copy(update={"resources": job.resources.model_copy(update={"time_limit_minutes": minutes})})
        for minutes in range(1, 30)
    ]
    assert len(start_estimates(many, SITE, RunLayout(tmp_path / "run"))) == MOST_ASKED


def test_a_path_that_slurm_would_misread_is_not_asked_about(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="percent"):
        start_estimates(plan.jobs, SITE, RunLayout(tmp_path / "a%b"))


def test_this_machine_makes_no_estimates(online: Recipe, plan: Plan, tmp_path: Path) -> None:
    assert LocalSite().backend().starts(plan.jobs, online, RunLayout(tmp_path / "run")) == []


def test_the_sentences_of_estimates(plan: Plan) -> None:
    now = float(MADE)

    def lines(at: float | None, *jobs: str, answer: str = "") -> list[str]:
        return list(start_lines(plan, [StartEstimate("sbatch --test-only", at, answer, jobs)], now))

    here = time.strftime("%Y-%m-%d %H:%M", time.localtime(MADE + 719))
    assert lines(now + 719, "prepare") == [
        "If it were submitted now and waited for no other job, by the queue's present estimate (sbatch --test-only),",
        f"  prepare could start at {here} (in 12 minutes)",
    ]
    inference = lines(now + 7380, "segment-000.inference", "segment-001.inference", "segment-002.inference")[1]
    assert inference.startswith(
        "  the first task of segment-000.inference, and 2 other job(s) of its size, could start"
    )
    assert inference.endswith("(in 2 h 3 min)")
    assert "(at once)" in lines(now - 5, "prepare")[1]
    assert "(in 119 minutes)" in lines(now + 119 * 60, "prepare")[1]
    names = [job.name for job in plan.jobs]
    assert lines(None, *names, answer="no") == [
        "No start time for prepare, segment-000.inference, segment-000.trainer and 9 other job(s): sbatch --test-only "
        "was asked, and answered: no"
    ]
    assert lines(None, "prepare", answer="no")[0].startswith("No start time for prepare: sbatch")


def profile(tmp_path: Path) -> str:
    path = tmp_path / "site.yaml"
    path.write_text("type: slurm\nname: here\ngpu_type: a100\n")
    return str(path)


def printed(*words: str) -> str:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def test_plan_prints_the_estimates_and_prints_itself_without(tmp_path: Path, folder: Path) -> None:
    words = ("plan", str(RECIPES / "quickstart.yaml"), "--site", profile(tmp_path), "--run", str(tmp_path / "run"))
    sbatch(folder, said(f"sbatch: Job 1 to start at {int(time.time()) + 3000} using 1 processors on nodes n1"))
    told = printed(*words)
    assert "If it were submitted now" in told
    assert "(in 50 minutes)" in told
    sbatch(folder, said("sbatch: error: invalid partition specified: cpu") + "; exit 1")
    told = printed(*words)
    assert "sbatch --test-only was asked, and answered: invalid partition specified: cpu" in told
    assert "segment-000.inference" in told
    other = printed(*words[:-1], str(tmp_path / "a%b"))
    assert "the queue was not asked when the jobs could start: the run directory" in other
    assert "could start at" not in printed(*words[:2])


def test_jobs_that_are_done_are_not_asked_about(tmp_path: Path, folder: Path) -> None:
    sbatch(folder, said(f"sbatch: Job 1 to start at {MADE} using 1 processors on nodes n1"))
    recipe = load_recipe(RECIPES / "quickstart.yaml", ())
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, SITE))
    write_task(layout, "prepare", 0, TaskRecord(TaskState.DONE))
    told = printed(
        "plan", str(RECIPES / "quickstart.yaml"), "--site", profile(tmp_path), "--run", str(tmp_path / "run")
    )
    assert "segment-000.inference could start" in told
    assert "prepare could start" not in told
