"""What a submission does with what Slurm answers, what Slurm has queued, and when it says that jobs could start."""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
from basics import EVALUATION, INFERENCE, JOBS, QUICKSTART, TRAINER, executable, resources
from canned_queue import CannedRun, canned_run
from commands import commands_first, recipe, refusal, typed
from run_of import bare_run, run_of
from submitted import current_ids, latest_ids
from tables import tables

from mrt_hpc import ExitCode, RunLayout, StartEstimate
from mrt_hpc.attempt.ledger import current_submissions, record_submission, task_ids
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.queued_jobs import LiveJob
from mrt_hpc.backends.slurm import arrays, queue, queued_as, starts
from mrt_hpc.backends.slurm.arrays import array_of, sbatch_texts
from mrt_hpc.backends.slurm.commands import SlurmRefusedError
from mrt_hpc.backends.slurm.environment import ENDS_AT
from mrt_hpc.backends.slurm.parameters import sbatch_parameters
from mrt_hpc.backends.slurm.plain_paths import require_plain_path
from mrt_hpc.backends.slurm.queued_as import MOST_ASKED, differences, queue_differences, queued_fields
from mrt_hpc.backends.slurm.site import Container, MemoryRequest, Partitions, Requeue, SlurmSite
from mrt_hpc.backends.slurm.slurm_output import MARKS
from mrt_hpc.backends.slurm.starts import refuse_untaken, start_estimates
from mrt_hpc.plan.compile import build_plan, compile_plan
from mrt_hpc.plan.jobs import Job, Plan, Role, read_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.submit.submission import Listener, awaited_ids, dead_jobs, start

SITE = SlurmSite(name="x")
COUNT = "cd $(dirname $0); n=$(grep -c sbatch calls); "
LIMIT = "echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2; echo 'sbatch: error: Job violates policy' >&2; exit 1"
BUSY = "echo 'sbatch: error: Batch job submission failed: Resource temporarily unavailable' >&2; exit 1"
TIMED_OUT = "echo 'Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"


def submits(layout: RunLayout) -> list[str]:
    lines: list[str] = []
    listener = Listener(lines.append, lines.append, nullcontext)
    start(read_recipe_lock(layout.recipe_lock), read_plan(layout.plan), layout, SITE, listener)
    return lines


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    """Nothing of it is queued, and sbatch gives out ids from 1."""
    run = canned_run(tmp_path, monkeypatch, "resources.inference.tasks=2")
    run.command("scontrol", "exit 0")
    run.command("scancel", 'cd $(dirname $0); echo "$@" >> cancelled; sed -i "/(|$1|/d" queue')
    run.command("sbatch", f"{COUNT} echo $n")
    return run


def test_a_submission_that_stops_names_what_it_submitted(run: CannedRun) -> None:
    executable(run.commands / "sbatch", f"echo $1 >> {run.commands}/calls; echo 'Invalid account' >&2; exit 1")
    assert "Invalid account" in str(refusal(submits, run.layout).value)
    assert {*run.calls} >= {"--test-only"} and "--parsable" not in run.calls, "refused before a job is sent"
    run.command("sbatch", TIMED_OUT)
    refused = refusal(submits, run.layout)
    assert "may be queued all the same" in str(refused) and refused.exit_code is ExitCode.RETRYABLE
    (run.commands / "calls").unlink()
    run.command("sbatch", f"{COUNT} [ $n -le 2 ] || {{ {BUSY}; }}; echo $n")
    refused = refusal(submits, run.layout)
    assert refused.exit_code is ExitCode.RETRYABLE
    for words in ("unavailable", f"prepare as job 1, {INFERENCE} as job 2", f"left: {TRAINER}, {EVALUATION}, report"):
        assert words in str(refused)
    assert latest_ids(run.layout) == {"prepare": "1", INFERENCE: "2"}


def test_a_job_finds_its_call_also_where_nothing_can_be_told(run: CannedRun) -> None:
    run.command("sbatch", "echo Projekt; echo 71")

    def closed(line: str) -> None:
        raise BrokenPipeError(line)

    jobs = read_plan(run.layout.plan).jobs
    with pytest.raises(BrokenPipeError, match="Projekt"):
        arrays.submit_arrays(jobs, SITE, run.layout, known_ids={}, record=lambda *_: None, show=closed)
    assert (run.layout.logs / jobs[0].name / "71_submitted.pkl").exists()


def test_accounting_may_be_away(run: CannedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "ACCOUNTING_S", 0.5)
    record_submission(run.layout, "prepare", "12", "x")
    run.queue("12|RUNNING|N/A|None|n1")
    run.command("sacct", "exec sleep 60")
    began = time.monotonic()
    assert len([line for line in submits(run.layout) if line.startswith("submitted ")]) == 4, "one runs"
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("refusals", [1, 9])
def test_room_below_a_limit_is_waited_for(run: CannedRun, monkeypatch: pytest.MonkeyPatch, refusals: int) -> None:
    monkeypatch.setattr(arrays, "ROOM_S", 1.0)
    monkeypatch.setattr(arrays, "OFFER_EVERY_S", 0.2)
    run.command("sbatch", f"{COUNT} [ $n -gt {refusals} ] || {{ {LIMIT}; }}; echo $n")
    if refusals == 1:
        assert len([line for line in submits(run.layout) if "AssocMaxSubmitJobLimit" in line]) == 1
    else:
        assert refusal(submits, run.layout).exit_code is ExitCode.RETRYABLE


def test_what_a_site_says_to_those_who_submit_is_shown_once(run: CannedRun) -> None:
    run.command("sbatch", f"{COUNT} echo 'sbatch: You have used 99 %' >&2; echo banner; echo $n")
    lines = submits(run.layout)
    assert [sum(word in line for line in lines) for word in ("99 %", "banner")] == [1, 1]


def test_the_ledger_holds_nothing_that_is_no_id(run: CannedRun) -> None:
    for job_id in ("Submitted batch job 4", "", "a/b", "1_2", "71;box", "1\n2", "x" * 200):
        refusal(record_submission, run.layout, "prepare", job_id, "x")
    assert list(run.layout.jobs.iterdir()) == []


@pytest.fixture(scope="module")
def plan() -> Plan:
    changes = ("schedule.iterations=4", "schedule.iterations_per_job=2")
    return build_plan(load_recipe(QUICKSTART, changes), max_array_size=None)


def test_each_task_goes_by_its_latest_submission(plan: Plan, tmp_path: Path) -> None:
    layout = bare_run(tmp_path)
    for slurm_id, tasks in (("10", None), ("12", None), ("15", (1, 2)), ("16", (2,))):
        record_submission(layout, INFERENCE, slurm_id, "here", tasks)
    array = plan.job(INFERENCE).model_copy(update={"tasks": 4})
    assert task_ids(array, current_submissions(layout)[INFERENCE]) == ["12_0", "15_1", "16_2", "12_3"]
    assert (current_ids(layout), array_of((1, 3), None)) == (["12", "15", "16"], "1,3%2")
    assert awaited_ids(LiveJob("12", True, {0: "12_0", 1: "12_1"}), partly=False) == ("12",)
    assert awaited_ids(LiveJob("12", True, {0: "12_0", 2: "12_2"}), partly=True) == ("12_0", "12_2")
    assert awaited_ids(LiveJob("15", True, {0: "12_0", 1: "15_1"}), partly=False) == ("12_0", "15_1")


def test_what_waits_for_a_job_that_has_failed_is_sent_again_all_the_way_down(plan: Plan) -> None:
    """Slurm cancels them one after the other, and lets the report go that waits for any end."""
    names = tuple(job.name for job in plan.jobs)
    left = (EVALUATION, *(f"segment-001.{role}" for role in ("inference", "trainer", "evaluation")), "report")
    for queued, at_work, done, again in (
        (names, (), (), ()),
        (names[3:], (INFERENCE, TRAINER), ("prepare",), ()),
        (left, (INFERENCE,), ("prepare",), left),
        (("report",), (), ("prepare", INFERENCE), ("report",)),
        (("report",), (EVALUATION,), ("prepare", INFERENCE, TRAINER), ("report",)),  # a job that runs is left alone
    ):
        live = {name: LiveJob(str(number), name in at_work) for number, name in enumerate((*queued, *at_work))}
        jobs = [job for job in plan.jobs if job.name not in done]
        assert set(dead_jobs(jobs, live, done)) == {*again}, (queued, at_work)


def test_a_run_directory_that_others_may_write_to_or_a_listing_would_cut_is_refused(tmp_path: Path) -> None:
    for mark in MARKS:
        refusal(require_plain_path, RunLayout(tmp_path / f"a{mark}b"))
    for mark in ",:":
        layout = RunLayout(tmp_path / f"alpha=2{mark}beta=3")
        assert require_plain_path(layout) == layout
        refused = refusal(require_plain_path, layout, Container(image="/i.sif"))  # Apptainer reads two paths there
        assert "comma" in refused.what and "--run" in str(refused.advice)
    layout = run_of(tmp_path / "run")
    assert run_of(tmp_path / "run") == layout
    layout.root.chmod(0o772)
    assert "chmod go-w" in str(refusal(run_of, tmp_path / "run").advice)
    layout.root.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(layout.root, 4321, -1)
        assert "belongs to the user 4321" in str(refusal(run_of, tmp_path / "run"))


BOX = SlurmSite(name="box", partitions=Partitions(cpu="cpu,long"))
SHOWN = tables("slurm_submission")["shown"]
"""What Slurm 22.05 prints; the fields stand on the same lines in 20.11 to 25.05."""
TIME, MEMORY, REQUEUE = "TimeLimit=01:00:00", "MinMemoryNode=8G", "Requeue=1 Restarts=0"


def job(name: str = "prepare", minutes: int = 60) -> Job:
    asked = resources(ranks_per_node=2, cpus_per_rank=2, memory_gib_per_node=8, time_limit_minutes=minutes)
    return Job(name=name, role=Role.PREPARE, tasks=1, resources=asked)


def test_a_difference_from_the_plan_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for says, instead, site, differs in (
        (TIME, TIME, {}, []),
        (TIME, "TimeLimit=00:20:00", {}, ["time limit"]),
        ("Partition=cpu", "Partition=preempt", {}, ["partition"]),
        (MEMORY, "MinMemoryNode=100M", {}, ["memory"]),
        (MEMORY, "MinMemoryNode=0", {}, []),
        (MEMORY, "MinMemoryCPU=1000M", {}, ["memory of a CPU"]),
        (MEMORY, "MinMemoryNode=1G", {"memory_request": MemoryRequest.NONE}, []),
        (MEMORY, "MinMemoryCPU=4G", {"memory_request": MemoryRequest.MEM_PER_CPU}, []),
        (REQUEUE, "Requeue=0 Restarts=0", {}, ["requeue"]),
        (REQUEUE, "Requeue=expedite Restarts=0", {}, []),
        (REQUEUE, "Requeue=0 Restarts=0", {"requeue": Requeue.FORBIDDEN}, []),
        (SHOWN, "Welcome!\nslurm_load_jobs: nothing to see\n", {}, []),
    ):
        monkeypatch.setattr(queued_as, "run_slurm", Mock(return_value=SHOWN.replace(says, instead)))
        assert [one.field for one in differences(job(), BOX.model_copy(update=site), queued_fields("45"))] == differs


def test_jobs_of_one_kind_are_asked_about_once_and_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Mock(return_value=SHOWN.replace("01:00:00", "00:20:00"))
    monkeypatch.setattr(queued_as, "run_slurm", ask)
    jobs = [job(name) for name in "abcde"]
    (told,) = queue_differences(jobs, {one.name: str(40 + n) for n, one in enumerate(jobs)}, BOX, Path("/r"))
    assert [call.args[0] for call in ask.mock_calls] == [["scontrol", "show", "job", "40"]]
    for word in ("job 40", "2 other", "00:20:00", "60 minutes", "max_time_minutes: 20", "cancel /r"):
        assert word in told
    monkeypatch.setattr(queued_as, "run_slurm", Mock(side_effect=SlurmRefusedError(["scontrol"], "Access denied")))
    assert len(queue_differences([job("a"), job("b", 5)], {"a": "1", "b": "2"}, BOX, Path("/r"))) == 1


def test_the_end_of_a_task_comes_from_slurm(tmp_path: Path) -> None:
    for variables, answer, ends_at in tables("slurm_submission")["ends"]:
        executable(tmp_path / "squeue", answer)
        setup = sbatch_parameters(job(), BOX, RunLayout(tmp_path / "run"), waited_for=False)["setup"]
        script = "\n".join([*setup, f'echo "${ENDS_AT} $(date +%s) $id"'])
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "9", **variables}
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
        end, now, task = done.stdout.split()
        assert end == ends_at or (ends_at == "by the plan" and abs(int(end) - int(now) - 3600) <= 2)
        assert task == ("7_3" if "SLURM_ARRAY_JOB_ID" in variables else "9")


def test_who_may_start_a_job_again_and_whose_environment_tasks_have() -> None:
    options = {Requeue.ALLOWED: ("requeue", True), Requeue.EXPEDITE: ("requeue", "expedite")}
    for requeue, option in {**options, Requeue.FORBIDDEN: ("no-requeue", True)}.items():
        site = BOX.model_copy(update={"requeue": requeue})
        parameters = sbatch_parameters(job(), site, RunLayout(Path("/run")), waited_for=False)
        assert option in parameters["additional_parameters"].items() and "--export=ALL" in parameters["srun_args"]


# -- the queue's estimates of when jobs could start, in words of several versions of sbatch, which is a script here


TRIED = SlurmSite(name="cluster", gpu_type="a100", account="us", python="/shared/python", sbatch={"constraint": "ib"})
PLAN = compile_plan(recipe("mrt_online"), TRIED)
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


def asked(folder: Path, site: SlurmSite = TRIED, jobs: Sequence[Job] = PLAN.jobs) -> list[StartEstimate]:
    return start_estimates(jobs, site, RunLayout(folder / "run"))


def test_each_kind_of_job_is_asked_about_once(folder: Path) -> None:
    sbatch(folder, said(STARTS))
    found, run = asked(folder), RunLayout(folder / "run")
    assert (folder / "calls").read_text().splitlines() == ["--test-only"] * 5
    kinds = [one.jobs[0] for one in found]
    assert (kinds, {one.at for one in found}) == ([*JOBS], {float(MADE)})
    assert sum(len(one.jobs) for one in found) == len(PLAN.jobs)
    assert not run.root.exists(), "nothing is written"
    submitted = dict(sbatch_texts(PLAN, TRIED, run))
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


@pytest.mark.parametrize(("answer", "shown", "questions"), [
    (said("sbatch: Job 1 to start at Unknown using 1 processors on nodes n1"), "Job 1 to start at Unknown", 5),
    ("exit 0", "nothing", 5),
    ("exit 3", "exit code 3", 5),
    (said("sbatch: error: Unable to contact slurm controller (connect failure)", 1), "Unable to contact slurm", 1),
    (said(f"sbatch: error: {NO_NODES}", 1), NO_NODES, 5),
    (said("sbatch: error: AssocMaxSubmitJobLimit", 1), "AssocMaxSubmitJobLimit", 5),
    (said("sbatch: unrecognized option --test-only", 1), "unrecognized option --test-only", 5),
    ("exec sleep 600", "sbatch did not answer", 1),
    ("", "sbatch was not found", 0),
])  # fmt: skip
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
    refuse_untaken(PLAN.jobs, TRIED, RunLayout(folder / "run"), lines.append)
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
    site = TRIED.model_copy(update={"qos": "long", "max_time_minutes": 600, "sbatch": options})
    sbatch(folder, said(f"sbatch: error: {words}", 1))
    found = asked(folder, site)
    assert {one.is_taken for one in found} == {False}
    for kind, one in zip(("cpu", "gpu"), found, strict=True):
        assert words in one.answer and line.format(kind) in one.answer
    refused = refusal(refuse_untaken, PLAN.jobs, site, RunLayout(folder / "run"), print)
    assert (str(refused.value), refused.where) == (found[0].answer, "sbatch --test-only")
    assert set((folder / "calls").read_text().split()) == {"--test-only"}


def test_plan_prints_the_estimates_of_what_is_not_done(tmp_path: Path, folder: Path) -> None:
    site, run = tmp_path / "site.yaml", run_of(tmp_path / "run", site=TRIED)
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
