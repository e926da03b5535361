"""A job that ends before any Python of the package has begun has a reason: the real job script, and what is said of it.

Slurm's commands are scripts here; the job script, the setup lines and the Python that cannot start are real.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from canned_queue import PREPARE, CannedRun, canned_run
from commands import typed

from mrt_hpc.attempt.early_end import settle
from mrt_hpc.attempt.ledger import record_site, remember_site
from mrt_hpc.backends.slurm.arrays import sbatch_texts
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.run.task_state import TaskState

SRUN = 'until [ "$1" = /bin/bash ]; do shift; done; exec "$@"'
ANOTHER_MACHINE = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00" + bytes(44)
"""The head of a program for aarch64."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    run = canned_run(tmp_path, monkeypatch)
    run.submitted(prepare="11")
    for name, script in (("squeue", "exit 0"), ("scontrol", "exit 0"), ("sleep", "exit 0"), ("srun", SRUN)):
        run.command(name, script)
    return run


def ends(run: CannedRun, **fields: object) -> str:
    """The job script of the first job runs here as Slurm would run it, with these fields of the profile; returns what
    explain then says.
    """
    site = SlurmSite(name="cluster", **fields)  # type: ignore[arg-type]
    record_site(run.layout, site)
    remember_site(run.layout, site)
    script = dict(sbatch_texts(run.plan, site, run.layout))[PREPARE]
    logs = run.layout.logs / PREPARE
    logs.mkdir()
    own = {**os.environ, "SLURM_JOB_ID": "11", "SLURMD_NODENAME": "node1"}
    with (logs / "11_0_log.out").open("w") as out, (logs / "11_0_log.err").open("w") as err:
        code = subprocess.run(["bash", "-c", script], env=own, stdout=out, stderr=err, check=False).returncode
    run.queue()
    run.accounts(f"11|FAILED|{code}:0|node1|90")
    return typed("explain", run.layout.root).output


def advice(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("  next:")).removeprefix("  next:     ")


def test_a_python_that_is_not_there(run: CannedRun) -> None:
    text = ends(run, python="/opt/nowhere/bin/python")
    for fact in ("before it began its work", "exit code 127", "not found", "python could not be started", "node1"):
        assert fact in text, text
    assert "/opt/nowhere/bin/python" in text, "the last line of its log"
    assert advice(text).startswith("correct python")
    assert "mrt-hpc doctor --site cluster" in advice(text)


def test_a_python_of_another_machine(run: CannedRun, tmp_path: Path) -> None:
    (other := tmp_path / "python").write_bytes(ANOTHER_MACHINE)
    other.chmod(0o755)
    text = ends(run, python=str(other))
    assert "exit code 126" in text and "another kind of machine" in text and "python could not be started" in text
    assert advice(text).startswith("correct python")


def test_a_setup_line_that_takes_srun_away_is_named_by_the_record_too(run: CannedRun) -> None:
    text = ends(run, setup=("module load nosuch/1.0", f"export PATH={bare(run)}"))
    for fact in ("exit code 127", "the setup line `module load nosuch/1.0` ended with", "srun could not be started"):
        assert fact in text, text
    assert advice(text).startswith("correct setup in the site profile")


def bare(run: CannedRun) -> Path:
    """A folder of commands without srun."""
    folder = run.commands.with_name("bare")
    folder.mkdir()
    for name in ("bash", "date", "hostname", "grep", "timeout", "sed", "tail", "id", "sleep", "squeue"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


def test_a_setup_line_that_ends_the_script(run: CannedRun) -> None:
    text = ends(run, setup=("set -e", 'test "a\\b" = \'"c"\'', "true"))
    assert "the setup line `test" in text and advice(text).startswith("correct setup in the site profile"), text


def test_a_setup_line_that_fails_keeps_no_job_from_its_work(run: CannedRun) -> None:
    run.command("srun", "exit 0")
    ends(run, setup=("false",))
    assert "srun" in run.calls
    log = (run.layout.logs / PREPARE / "11_0_log.err").read_text()
    assert "a setup line of the site profile ended with exit code 1: false" in log


def test_the_record_of_a_killed_attempt_has_its_exit_code_in_words_and_advice_about_the_cause(run: CannedRun) -> None:
    for code, words in ((132, "another kind of processor"), (134, "aborted"), (135, "bus error"), (139, "crashed")):
        record = settle(run.layout, PREPARE, 0, f"{code}.0", code, retries=0)
        assert record.state is TaskState.FAILED and words in record.message and f"exit code {code}" in record.message
        assert ("next:     correct python" in record.message) == (code == 132)
