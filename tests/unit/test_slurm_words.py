"""What Slurm's commands say while they wait and when they refuse is passed on; the commands are scripts here."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from slurm_texts import squeue_prints
from submitted import latest_ids

from mrt_hpc.backends.slurm import commands as slurm_commands
from mrt_hpc.backends.slurm.commands import run_slurm
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.submit.create import create_or_open
from mrt_hpc.submit.submission import Listener, start

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
WORDS = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
RETRYING = f"#!/bin/sh\necho '{WORDS}' >&2\nsleep 3\necho 7\n"
DEAF = f"#!/bin/sh\necho '{WORDS}' >&2\nexec sleep 60\n"
ROOM_FOR_TWO = """#!/bin/sh
cd "$(dirname "$0")"
echo x >> calls
if [ $(wc -l < calls) -gt 2 ]; then
  echo '{words}' >&2; echo 'sbatch: error: Batch job submission failed: Resource temporarily unavailable' >&2; exit 1
fi
echo $(wc -l < calls)
"""


COUNTS = """#!/bin/sh
cd "$(dirname "$0")"
for script; do :; done
echo x >> calls
cp "$script" script-$(wc -l < calls)
echo $(wc -l < calls)
"""
LEAVES = """#!/bin/sh
echo scancel "$@" >> {asked}
sed -i "/(|$1|/d" "$(dirname "$0")/queue"
"""
QUEUE = """#!/bin/sh
case "$*" in *--me*) head -n 1 "$(dirname "$0")/queue" ;; *) cat "$(dirname "$0")/queue" ;; esac
"""
SUBMIT = """
from contextlib import nullcontext
from pathlib import Path
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.submit.submission import Listener, start
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.layout import RunLayout
layout = RunLayout(Path("{run}"))
listener = Listener(print, print, nullcontext)
start(read_recipe_lock(layout.recipe_lock), read_plan(layout.plan), layout, SlurmSite(name="x"), listener)
"""


def submitted(run: Path) -> str:
    """What a submission of a run that is there prints; a process holds the run as long as it lives."""
    code = [sys.executable, "-c", SUBMIT.format(run=run)]
    done = subprocess.run(code, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a script in the place of one of Slurm's commands."""
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_user_who_waits_for_slurm_is_told_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm_commands, "QUIET_S", 1.0)
    command(tmp_path, "sbatch", RETRYING, monkeypatch)
    assert run_slurm(["sbatch"]) == "7\n"
    assert capsys.readouterr().err == f"waiting for sbatch: {WORDS}\n", "once, however long it takes"


def test_a_command_that_does_not_answer_is_ended_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(tmp_path, "sbatch", DEAF, monkeypatch)
    with pytest.raises(UserError, match="did not answer within") as refused:
        run_slurm(["sbatch"], timeout_s=1.0)
    assert WORDS in str(refused.value)


def test_a_submission_that_stops_half_way_names_what_it_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(tmp_path, "squeue", f"#!/bin/sh\necho '{squeue_prints()}'\n", monkeypatch)
    command(tmp_path, "sbatch", ROOM_FOR_TWO.format(words=WORDS), monkeypatch)
    recipe, site = load_recipe(QUICKSTART), SlurmSite(name="x")
    plan = compile_plan(recipe, site)
    layout = create_or_open(tmp_path / "run", recipe, plan)
    with pytest.raises(UserError) as refused:
        start(recipe, plan, layout, site, Listener(print, print, nullcontext))
    message = str(refused.value)
    assert refused.value.exit_code is ExitCode.RETRYABLE
    assert WORDS in message
    assert "submitted before it, and queued: prepare as job 1, segment-000.inference as job 2" in message
    assert "left: segment-000.trainer, segment-000.evaluation, report" in message
    assert "that submits the jobs that are left" in message
    assert latest_ids(layout) == {"prepare": "1", "segment-000.inference": "2"}


def test_a_submission_names_to_slurm_the_parts_of_an_array_that_others_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One evaluation task is lost: it is sent again, and the report, which waits for all of them, after it."""
    command(tmp_path, "squeue", QUEUE, monkeypatch)
    command(tmp_path, "sbatch", COUNTS, monkeypatch)
    for name in ("sacct", "scontrol", "scancel"):
        command(tmp_path, name, f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/asked\n', monkeypatch)
    recipe, site = load_recipe(QUICKSTART, ("resources.inference.tasks=2",)), SlurmSite(name="x")
    plan = compile_plan(recipe, site)
    layout = create_or_open(tmp_path / "run", recipe, plan)
    (tmp_path / "queue").write_text(squeue_prints())
    assert "5 job(s) submitted" in submitted(layout.root)
    write_task(layout, "prepare", 0, TaskRecord(TaskState.DONE))
    alive = ["2_0|RUNNING", "2_1|RUNNING", "3|RUNNING", "4_0|RUNNING", "5|PENDING"]
    (tmp_path / "queue").write_text(squeue_prints(*(f"{task}|N/A|None|n1" for task in alive)))
    command(tmp_path, "scancel", LEAVES.format(asked=tmp_path / "asked"), monkeypatch)
    again = submitted(layout.root)
    assert "2 job(s) submitted, 3 queued before, 1 done" in again
    assert "of which task(s) 1 had been lost" in again
    assert "scancel 5\n" in (tmp_path / "asked").read_text()
    lost, report = ((tmp_path / f"script-{number}").read_text() for number in (6, 7))
    assert "#SBATCH --array=1%1\n" in lost
    assert "#SBATCH --dependency=afterany:3,afterany:4_0:6\n" in report
