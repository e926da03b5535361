"""An id, a number or a name is not the job or the process: the same filesystem seen from another cluster, a controller
that counts again, a listing that is a minute old, a copy of a run directory.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from basics import INFERENCE, TRAINER
from canned_queue import CannedRun, submitted_run
from commands import refusal, typed
from families import holder_of
from slurm_texts import squeue_prints
from submitted import age

from mrt_hpc import RunLayout, UserError
from mrt_hpc.attempt import ledger
from mrt_hpc.attempt.ledger import LOCAL, LocalProcess, claim_run, local_process, submissions
from mrt_hpc.backends import queued_jobs
from mrt_hpc.backends.queued_jobs import cancel_run, live_jobs, look_at_queues
from mrt_hpc.backends.slurm import queue
from mrt_hpc.backends.slurm.queued_as import queue_differences
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.run.leases import BEATS_A_LIMIT, Heart
from mrt_hpc.view.run_look import RunLook

FOREIGN = tuple(f"{job_id}|RUNNING|1|None|n1|thesis-{job_id}|/home/me/thesis.sh|1795669200" for job_id in range(11, 14))
"""Jobs of the same user that have ids of the run's jobs."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    """A run whose five jobs were submitted an hour ago; scancel notes what it takes out of the queue."""
    run = submitted_run(tmp_path, monkeypatch)
    run.command("scontrol", "[ $1 = show ] && echo 'ClusterName = B' || exit 0")
    run.command("scancel", 'cd $(dirname $0); echo "$1" >> cancelled; sed -i "/(|$1[|_]/d" queue')
    return run


def cancelled(run: CannedRun) -> list[str]:
    noted = run.commands / "cancelled"
    return sorted(noted.read_text().split()) if noted.exists() else []


def amend(run: CannedRun, entries: str, **fields: object) -> None:
    """Change what is recorded of submissions."""
    for entry in run.layout.jobs.glob(entries):
        entry.write_text(json.dumps({**json.loads(entry.read_text()), **fields}))


def state(run: CannedRun) -> str:
    return RunLook.load_records(run.layout, run.plan, look_at_queues(run.layout, 3.0)).state.value


def own(run: CannedRun, *job_ids: str) -> list[str]:
    return [f"{line}|{run.marks(line)}" for line in (f"{job_id}|PENDING|N/A|Priority|" for job_id in job_ids)]


def test_a_controller_that_counts_again_gives_ids_to_jobs_that_are_not_the_run_s(run: CannedRun) -> None:
    run.prints(*FOREIGN, *own(run, "14"))
    assert set(live_jobs(run.layout)) == {"segment-000.evaluation"}
    assert state(run) == "queued", "nothing of it runs"
    for said in ("cancelled 1 job(s)", "nothing to cancel"):
        assert said in typed("cancel", run.layout.root).output
    assert cancelled(run) == ["14"]
    assert [line for line in FOREIGN if line.split("|")[5] not in (run.commands / "queue").read_text()] == []


def test_of_a_job_that_was_sent_twice_only_what_lives_is_cancelled(run: CannedRun) -> None:
    """Its later part has ended, and another job has its id."""
    run.submitted(inference="30")
    run.prints(*own(run, "12_0"), "30|RUNNING|1|None|n1|thesis|/a.sh|1")
    amend(run, "queued-000006.json", tasks=[1])
    live = live_jobs(run.layout)[INFERENCE]
    assert (live.job_id, live.job_ids) == ("12", {"12"})


def test_of_two_clusters_that_answer_the_one_that_has_the_run_s_job_counts(run: CannedRun) -> None:
    for lines in (("13|RUNNING|1|None|n1|thesis|/a.sh|1", *own(run, "13")), (*own(run, "13"), FOREIGN[2])):
        run.prints(*lines)
        assert live_jobs(run.layout)[TRAINER].tasks == {0: "13"}


def test_accounting_of_another_job_says_nothing(run: CannedRun) -> None:
    name = run.marks("13").partition("|")[0]
    run.queue()
    for row, said in (
        (f"13|FAILED|1:0|n1|5|{int(time.time())}|thesis", False),
        (f"13|FAILED|1:0|n1|5|900|{name}", False),  # of years ago
        (f"13|FAILED|1:0|n1|5|{int(time.time())}|{name}", True),
    ):
        run.command("sacct", f"echo '{row}'")
        assert ("the queue says: failed" in typed("explain", run.layout.root, TRAINER).output) == said, row
    run.prints(*own(run, "13"))
    run.command("sacct", f"echo '13|CANCELLED|0:0|n1|5|{int(time.time())}|thesis'")
    assert set(live_jobs(run.layout)) == {TRAINER}


def test_jobs_on_another_cluster_are_not_asked_about_here(run: CannedRun) -> None:
    amend(run, "queued-*.json", cluster="A")
    run.prints(*FOREIGN)
    for command, exits in (("status", 0), ("explain", 0), ("cancel", 2), ("submit", 2)):
        shown = " ".join(typed(command, run.layout.root, exits=exits).output.split())
        assert "submitted on cluster A" in shown and "this is cluster B" in shown, (command, shown)
    assert cancelled(run) == []
    amend(run, "queued-*.json", cluster="B")
    run.prints(*own(run, "14"))
    assert set(live_jobs(run.layout)) == {"segment-000.evaluation"}


def test_after_a_cancel_on_its_cluster_a_run_can_go_on_at_another(run: CannedRun) -> None:
    """Also where nothing was queued there any more: then it does not say that the user has stopped it."""
    amend(run, "queued-*.json", cluster="B")
    run.queue()
    assert "nothing to cancel" in typed("cancel", run.layout.root).output
    assert "mrt-hpc cancel" not in typed("explain", run.layout.root).output
    run.command("scontrol", "echo 'ClusterName = C'")
    assert live_jobs(run.layout) == {}
    run.submitted(trainer="30", cluster="B")
    assert "submitted on cluster B" in str(refusal(live_jobs, run.layout))


def test_a_new_job_that_no_listing_has_is_neither_gone_nor_doubled(
    run: CannedRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(queued_jobs, "ASK_AGAIN_S", 0.1)
    run.queue()
    age(run.layout, 10.0)
    assert state(run) == "queued"
    assert "(11, 12, 13, 14, 15)" in " ".join(typed("status", run.layout.root).output.split())
    monkeypatch.setattr(ledger, "LISTED_WITHIN_S", 13.0)
    age(run.layout, 10.0)  # a machine may be slow
    assert live_jobs(run.layout) == {}, "by then each listing is newer"
    assert "5 job(s) of the run" in capsys.readouterr().err
    age(run.layout, -1.0)  # by the clock of another login node
    listing = own(run, "13")
    run.command("squeue", "cd $(dirname $0); n=$(grep -c squeue calls); [ $n -lt 9 ] || cp later queue; cat queue")
    run.command("sacct", "exit 0")
    (run.commands / "calls").unlink()
    (run.commands / "later").write_text(squeue_prints(*listing, *own(run, "11", "12", "14", "15")))
    assert len(live_jobs(run.layout)) == 5


def test_what_only_accounting_knows_is_queued_while_it_is_new(run: CannedRun) -> None:
    rows = [f"{job_id}|PENDING|0:0||0" for job_id in ("11", "12_[0-3]", "13", "14", "15")]
    run.queue()
    run.accounts(*rows)
    assert live_jobs(run.layout) == {}, "a row that nothing has ended"
    age(run.layout, 10.0)
    run.accounts(*rows)
    assert live_jobs(run.layout)[INFERENCE].tasks == {n: f"12_{n}" for n in range(4)}


def test_a_cancel_believes_neither_listing_alone(run: CannedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """squeue serves an empty listing; then one that still has what accounting calls cancelled."""
    monkeypatch.setattr(queue, "GONE_S", 2.0)
    row, name = "13|{}|0:0||0|1795669200|{}", run.marks("13").partition("|")[0]
    rows = run.commands / "rows"
    for listing, scancel, refused in (
        ((), f"echo '{row.format('CANCELLED', name)}' > {rows}", False),
        ((), "exit 0", True),  # nothing has happened
        ((), "echo Invalid job id specified >&2; exit 1", False),  # accounting never learns of its end
        (own(run, "13"), f"echo '{row.format('CANCELLED', name)}' > {rows}", False),
    ):
        run.prints(*listing)
        run.command("sacct", f"cat {rows}")
        rows.write_text(f"{row.format('PENDING', name)}\n")
        run.command("scancel", scancel)
        if refused:
            assert "13" in str(refusal(queue.cancel, ["13"]).value)
        else:
            assert queue.cancel(["13"]) == ["13"]


def test_a_run_that_an_earlier_version_has_submitted_is_judged_by_name_and_script(run: CannedRun) -> None:
    earlier = {"job": TRAINER, "job_id": "13", "time": time.time() - 9000, "site": "cluster"}
    (run.layout.jobs / "queued-000003.json").write_text(json.dumps(earlier))
    run.prints(*own(run, "13"))
    assert set(live_jobs(run.layout)) == {TRAINER}
    assert [sent.cluster for sent in submissions(run.layout)] == [None] * 5


def test_a_site_that_rewrites_both_marks_is_named_at_once(run: CannedRun) -> None:
    (trainer,) = (job for job in run.plan.jobs if job.name == TRAINER)
    name, script, _ = run.marks("13").split("|")
    for array, shown_name, shown_script, is_known in (
        ("", name, script, True),
        ("ArrayJobId=13 ArrayTaskId=0-3%4 ", name, "/var/spool/wrapped/submission.sh", True),
        ("", "rewritten", script, True),
        ("", "rewritten", "/var/spool/wrapped/submission.sh", False),
    ):
        run.command("scontrol", f"echo 'JobId=13 {array}JobName={shown_name}'; echo '   Command={shown_script}'")
        said = queue_differences([trainer], {TRAINER: "13"}, SlurmSite(name="x"), run.layout.root)
        assert ["name and script" in sentence for sentence in said] == [True] * (not is_known), said


def test_a_copy_of_a_run_directory_has_none_of_its_jobs(run: CannedRun, tmp_path: Path) -> None:
    run.prints(*own(run, "13", "14"))
    shutil.copytree(run.layout.root, tmp_path / "copy")
    assert live_jobs(RunLayout(tmp_path / "copy")) == {}
    typed("cancel", tmp_path / "copy")
    assert cancelled(run) == []


# -- processes of this machine


@pytest.fixture
def holder(run: CannedRun) -> Iterator[subprocess.Popen[str]]:
    with holder_of(run.layout.root) as process:
        yield process


def test_the_process_of_a_run_is_not_that_of_its_copy_nor_of_a_link(
    run: CannedRun, holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    shutil.copytree(run.layout.root, tmp_path / "copy")
    shutil.copytree(run.layout.root, tmp_path / "linked", ignore=shutil.ignore_patterns("jobs"))
    (tmp_path / "linked" / "jobs").symlink_to(run.layout.jobs)
    for name in ("copy", "linked"):
        assert local_process(RunLayout(tmp_path / name)) is None
        typed("cancel", tmp_path / name)
    assert holder.poll() is None
    assert (found := local_process(run.layout)) is not None and found.pid == holder.pid
    run.layout.root.rename(tmp_path / "moved")
    assert local_process(RunLayout(tmp_path / "moved")) is not None, "the directory is the same"
    (tmp_path / "moved").rename(run.layout.root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as another user")
def test_a_process_of_another_user_is_not_stopped(run: CannedRun) -> None:
    with subprocess.Popen(["sleep", "600"], user=4321) as process:
        run.claim(process.pid)
        assert f"process {process.pid} of user 4321" in str(refusal(lambda: list(cancel_run(run.layout))).value)
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)


@pytest.mark.usefixtures("holder")
def test_machines_of_one_name_are_told_apart_by_boot_and_namespace(run: CannedRun) -> None:
    """The number and the start of a process say nothing on another machine that has the same host name."""
    found = local_process(run.layout)
    assert found is not None and not replace(found, pid_space="another boot").is_here
    claim = run.layout.jobs / f"local-{found.generation:05d}.json"
    other = LocalProcess(1, "1", found.host, 7, held=True, pid_space="another boot")
    claim.with_name("local-00007.json").write_text(json.dumps(asdict(other)))
    beating, refused = Heart(run.layout.heart(LOCAL, 7), other.name, 0.02 * BEATS_A_LIMIT), pytest.raises(UserError)
    with beating, refused, claim_run(run.layout, 10.0):
        pytest.fail("two run the plan")
