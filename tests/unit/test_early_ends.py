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

from mrt_hpc.attempt.early_end import CANNOT_START, EarlyEnd, ScriptNotes, exit_code_text, settle
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


def ends(run: CannedRun, site: SlurmSite, **environment: str) -> str:
    """The job script of the first job runs here as Slurm would run it; returns what explain then says."""
    record_site(run.layout, site)
    remember_site(run.layout, site)
    script = dict(sbatch_texts(run.plan, site, run.layout))[PREPARE]
    logs = run.layout.logs / PREPARE
    logs.mkdir()
    own = {**os.environ, "SLURM_JOB_ID": "11", "SLURMD_NODENAME": "node1", **environment}
    with (logs / "11_0_log.out").open("w") as out, (logs / "11_0_log.err").open("w") as err:
        code = subprocess.run(["bash", "-c", script], env=own, stdout=out, stderr=err, check=False).returncode
    run.queue()
    run.accounts(f"11|FAILED|{code}:0|node1|90")
    return typed("explain", run.layout.root).output


def profile(**fields: object) -> SlurmSite:
    return SlurmSite(name="cluster", **fields)  # type: ignore[arg-type]


def advice(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("  next:")).removeprefix("  next:     ")


def test_a_python_of_another_machine(run: CannedRun, tmp_path: Path) -> None:
    (other := tmp_path / "python").write_bytes(ANOTHER_MACHINE)
    other.chmod(0o755)
    text = ends(run, profile(python=str(other)))
    assert "exit code 126" in text and "another kind of machine" in text and "python could not be started" in text
    assert advice(text).startswith("correct python")


def test_a_setup_line_that_takes_srun_away_is_named_by_the_record_too(run: CannedRun) -> None:
    text = ends(run, profile(setup=("module load nosuch/1.0", f"export PATH={bare(run)}")))
    for fact in ("exit code 127", "the setup line `module load nosuch/1.0` ended with", "srun could not be started"):
        assert fact in text, text
    assert advice(text).startswith("correct setup in the site profile")


def bare(run: CannedRun) -> Path:
    """A folder of commands without srun."""
    folder = run.commands.with_name("bare")
    folder.mkdir()
    for name in ("bash", "date", "hostname", "grep", "timeout", "sed", "tail", "id"):
        (folder / name).symlink_to(str(shutil.which(name)))
    (folder / "sleep").symlink_to(run.commands / "sleep")
    (folder / "squeue").symlink_to(run.commands / "squeue")
    return folder


def test_a_setup_line_that_ends_the_script(run: CannedRun) -> None:
    text = ends(run, profile(setup=("set -e", 'test "a\\b" = \'"c"\'', "true")))
    assert "the setup line `test" in text and advice(text).startswith("correct setup in the site profile"), text


def test_the_record_of_a_killed_attempt_has_its_exit_code_in_words(run: CannedRun) -> None:
    for code, words in ((132, "another kind of processor"), (134, "aborted"), (135, "bus error"), (139, "crashed")):
        record = settle(run.layout, PREPARE, 0, f"{code}.0", code, retries=0)
        assert record.state is TaskState.FAILED and words in record.message and f"exit code {code}" in record.message
    assert "signal" not in exit_code_text(2)


@pytest.mark.parametrize("code", [*CANNOT_START, 181])
def test_an_early_end_is_never_answered_by_the_same_command_alone(run: CannedRun, code: int) -> None:
    assert EarlyEnd(ScriptNotes(), code).next(run.layout).startswith(("correct ", "mv "))
