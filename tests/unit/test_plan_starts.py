"""The queue's estimates of when jobs could start, in words of several versions of sbatch, which is a script here."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from basics import INFERENCE, JOBS, executable, resources
from commands import commands_first, recipe, refusal, typed
from run_of import run_of

from mrt_hpc.backends.backend import StartEstimate
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm import starts
from mrt_hpc.backends.slurm.arrays import sbatch_texts
from mrt_hpc.backends.slurm.queued_as import MOST_ASKED
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.backends.slurm.starts import refuse_untaken, start_estimates
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Job
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task

SITE = SlurmSite(name="cluster", gpu_type="a100", account="us", python="/shared/python", sbatch={"constraint": "ib"})
PLAN = compile_plan(recipe("mrt_online"), SITE)
MADE = 1_795_608_000
"""A moment, in seconds since the epoch."""
STARTS = f"sbatch: Job 1234 to start at {MADE} using 8 processors on nodes n1 in partition gpu"
NO_NODES = "allocation failure: Requested node configuration is not available"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(starts, "ASK_S", 3.0)
    return commands_first(tmp_path / "commands", monkeypatch)


def sbatch(folder: Path, answer: str) -> None:
    begin = f'cd {folder}\necho "$*" >> calls\nn=$(wc -l < calls)\ncat > script-$n'
    executable(folder / "sbatch", f"{begin}\n{answer}")


def said(words: str, status: int = 0) -> str:
    return f"{{ echo '{words}' >&2; exit {status}; }}"


def asked(folder: Path, site: SlurmSite = SITE, jobs: Sequence[Job] = PLAN.jobs) -> list[StartEstimate]:
    return start_estimates(jobs, site, RunLayout(folder / "run"))


def test_each_kind_of_job_is_asked_about_once(folder: Path) -> None:
    sbatch(folder, said(STARTS))
    found, run = asked(folder), RunLayout(folder / "run")
    assert (folder / "calls").read_text().splitlines() == ["--test-only"] * 5
    kinds = [one.jobs[0] for one in found]
    assert kinds == [*JOBS]
    assert {one.at for one in found} == {float(MADE)}
    assert sum(len(one.jobs) for one in found) == len(PLAN.jobs)
    assert not run.root.exists(), "nothing is written"
    submitted = dict(sbatch_texts(PLAN, SITE, run))
    for number, name in enumerate(kinds, 1):
        options, wanted = (
            [line for line in text.splitlines() if line.startswith("#SBATCH")]
            for text in ((folder / f"script-{number}").read_text(), submitted[name])
        )
        assert options == [line for line in wanted if "--dependency" not in line]
        assert "#SBATCH --constraint=ib" in options
    assert "#SBATCH --array=0-3%4" in (folder / "script-2").read_text()
    assert LocalSite().backend().starts(PLAN.jobs, recipe("mrt_online"), run) == []


@pytest.mark.parametrize("at", [time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(MADE)), str(MADE)])
def test_a_start_is_found_in_the_words_of_each_version(at: str, folder: Path) -> None:
    """By the local clock, or in seconds since the epoch; some kinds of jobs may be refused."""
    words = f"sbatch: lua: no\nsbatch: Job 7 to start at {at} using 1 processors on n1\nsbatch:   Preempts: 3"
    refused = said(f"sbatch: error: {NO_NODES}", 1)
    sbatch(folder, f"if grep -q gres=gpu: script-$n; then {refused}; fi\n{said(words)}")
    assert {one.jobs[0]: one.at for one in asked(folder)} == {"prepare": MADE, INFERENCE: None, "report": MADE}
    many = [PLAN.jobs[0].model_copy(update={"resources": resources(cpus_per_rank=n)}) for n in range(1, 30)]
    assert len(asked(folder, jobs=many)) == MOST_ASKED


@pytest.mark.parametrize(
    ("answer", "shown", "questions"),
    [
        (said("sbatch: Job 1 to start at Unknown using 1 processors on nodes n1"), "Job 1 to start at Unknown", 5),
        ("exit 0", "nothing", 5),
        ("exit 3", "exit code 3", 5),
        (said("sbatch: error: Unable to contact slurm controller (connect failure)", 1), "Unable to contact slurm", 1),
        (said(f"sbatch: error: {NO_NODES}", 1), NO_NODES, 5),
        (said("sbatch: error: AssocMaxSubmitJobLimit", 1), "AssocMaxSubmitJobLimit", 5),
        (said("sbatch: unrecognized option --test-only", 1), "unrecognized option --test-only", 5),
        ("exec sleep 600", "sbatch did not answer", 1),
        ("", "sbatch was not found", 0),
    ],
)
def test_an_answer_without_a_time_is_shown(
    answer: str, shown: str, questions: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown once for all jobs, and stops no submission. Each kind may be accepted where another is refused; Slurm
    that cannot be reached is asked once.
    """
    if answer:
        sbatch(folder, answer)
    else:
        monkeypatch.setenv("PATH", str(folder))
    (one,) = asked(folder)
    assert not answer or len((folder / "calls").read_text().splitlines()) == questions
    assert (one.at, sorted(one.jobs)) == (None, sorted(job.name for job in PLAN.jobs))
    assert one.answer.startswith(shown)
    lines: list[str] = []
    refuse_untaken(PLAN.jobs, SITE, RunLayout(folder / "run"), lines.append)
    assert (one.is_taken is True) == (not lines) == (shown == "nothing" or "Unknown" in shown)
    assert all("whether Slurm takes prepare" in line and "is not known" in line for line in lines)


QOS = ("Invalid qos specification", "site profile cluster, {} jobs: qos: long")
FEATURE = ("Batch job submission failed: Invalid feature specification", "{} jobs: constraint: ib")
LONG = ("Requested time limit is invalid (missing or exceeds some limit)", "{} jobs: max_time_minutes: 600")
PLUGIN = ("lua: not here", "account: us; qos: long; constraint: ib")
UNKNOWN = ("unrecognized option --constrain=ib", "{} jobs: constrain: ib)")


@pytest.mark.parametrize(("words", "line"), [QOS, FEATURE, LONG, PLUGIN, UNKNOWN])
def test_a_refusal_names_the_line_of_the_profile_and_no_job_is_sent(words: str, line: str, folder: Path) -> None:
    options = {"constraint": "ib", "constrain": "ib"}
    site = SITE.model_copy(update={"qos": "long", "max_time_minutes": 600, "sbatch": options})
    sbatch(folder, said(f"sbatch: error: {words}", 1))
    found = asked(folder, site)
    assert {one.is_taken for one in found} == {False}
    for kind, one in zip(("cpu", "gpu"), found, strict=True):
        assert words in one.answer and line.format(kind) in one.answer
    refused = refusal(refuse_untaken, PLAN.jobs, site, RunLayout(folder / "run"), print)
    assert (str(refused.value), refused.where) == (found[0].answer, "sbatch --test-only")
    assert set((folder / "calls").read_text().split()) == {"--test-only"}


def test_plan_prints_the_estimates_of_what_is_not_done(tmp_path: Path, folder: Path) -> None:
    site, run = tmp_path / "site.yaml", run_of(tmp_path / "run", site=SITE)
    site.write_text("type: slurm\nname: here\ngpu_type: a100\n")
    with_site = ("plan", "quickstart", "--site", site, "--run")
    write_task(run, "prepare", 0, TaskRecord(TaskState.DONE))
    sbatch(folder, said(STARTS.replace(str(MADE), str(int(time.time()) + 3000))))
    shown = typed(*with_site, run.root).output
    assert f"{INFERENCE} could start" in shown and "(in 50 minutes)" in shown and "prepare could start" not in shown
    sbatch(folder, said("sbatch: error: invalid partition specified: cpu", 1))
    shown = typed(*with_site, run.root).output
    assert "invalid partition specified: cpu" in shown and f"submit will refuse {INFERENCE}" in shown
    assert "percent" in typed(*with_site, tmp_path / "a%b").output, "the queue is not asked, and why"
