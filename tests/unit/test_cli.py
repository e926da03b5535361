"""The commands as a user meets them: every wrong input is an error with what to type next, and leaves nothing behind;
and what is typed works when it is pasted.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from basics import QUICKSTART, ROOT
from commands import refusal, typed
from run_of import run_of

import mrt_hpc
from mrt_hpc.attempt.ledger import last_site
from mrt_hpc.errors import ExitCode
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOTHING = "~no-such-user"


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return run_of(tmp_path / "run")


# -- wrong input


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["submit", QUICKSTART, "--set", "training.lerning_rate=1"], ["learning_rate is the nearest"]),
        (["submit", QUICKSTART, "--set", "data={type: jsonl, path: no.jsonl}"], ["no.jsonl"]),
        (["submit", QUICKSTART, "--set", "model={type: hugging_face, path: no}"], ["/no"]),
        (["submit", QUICKSTART, "--site", "nowhere"], ["nowhere"]),
        (["submit", "recipes/none.yaml"], ["recipes/none.yaml"]),
        (["submit", QUICKSTART, "--set", "resources.trainer.gpus=99"], ["99 GPUs"]),
        (["submit", QUICKSTART, "--set", "data.problems=100000"], ["100000"]),
        (["plan", QUICKSTART, "--set", "schedule.iterations=100000000"], ["change the option --set schedule.iter"]),
        (
            ["plan", QUICKSTART, "--set", "schedule.iterations=1000000", "--set", "schedule.iterations_per_job=1"],
            ["schedule.iterations_per_job"],
        ),
        (["plan", f"{NOTHING}/mine.yaml"], [NOTHING]),
        (["plan", QUICKSTART, "--site", f"{NOTHING}/mine.yaml"], [NOTHING]),
        (["plan", QUICKSTART, "--set", f"data={{type: jsonl, path: {NOTHING}/x}}"], [NOTHING]),
        (["plan", QUICKSTART, "--sbatch"], ["--site"]),
    ],
)
def test_a_wrong_input_is_refused_and_leaves_nothing_behind(tmp_path: Path, words: list[str], facts: list[str]) -> None:
    refused = typed(*words, "--run", tmp_path / "run", exits=2)
    assert all(fact in refused.stderr for fact in facts)
    assert refused.stderr.splitlines()[-1].startswith("  next: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["plan", QUICKSTART, "--run", ""], "--run runs/NAME"),
        (["plan", QUICKSTART, "--run", f"{NOTHING}/x"], "write the path in full"),
        (["submit", QUICKSTART, "--site", "local", "--run", "/proc/x"], "--run"),
        *((["logs", "runs/quickstart", "-n", lines], "'-n'") for lines in ("-5", "0", "many")),
        (["status", "{run}", "--watch"], "--json"),
        (["status", "{run}/tasks"], ""),
        (["logs", "{run}", "evaluation"], ""),
        (["cancel", "{run}"], ""),
        (["explain", "{run}", "segment-000.traner"], "segment-000.trainer is the nearest"),
        (["explain", "{run}", "segment-000.inference[9]"], "0 to 0"),
        (["explain", "{run}", "segment-000.inference[x]"], "segment-000.inference is the nearest"),
        (["submit", QUICKSTART, "--set", "training.learning_rate=0.5", "--run", "{run}"], "--run DIR"),
    ],
)
def test_a_wrong_word_is_refused_with_what_to_type(run: RunLayout, words: list[str], fact: str) -> None:
    asked = typed(*(str(word).replace("{run}", str(run.root)) for word in words), exits=2)
    assert fact in asked.stderr


@pytest.mark.parametrize("make", ["pipe", "circle", "dangling", "file"])
@pytest.mark.parametrize("below", ["", "x"])
def test_a_place_that_is_no_directory_is_refused(tmp_path: Path, make: str, below: str) -> None:
    place = tmp_path / "place"
    makers: dict[str, Callable[[Path], None]] = {
        "pipe": os.mkfifo, "circle": lambda path: path.symlink_to(path), "dangling": lambda path: path.symlink_to("no"),
        "file": lambda path: path.touch(),
    }  # fmt: skip
    makers[make](place)
    for command in ("plan", "submit"):
        assert str(place) in typed(command, QUICKSTART, "--run", place / below, exits=2).stderr


def test_a_directory_that_is_no_run_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    typed("submit", QUICKSTART, "--run", tmp_path, exits=2)
    typed("status", tmp_path, exits=2)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    program = "import os; from mrt_hpc.cli.main import main; os.rmdir(os.getcwd()); main()"
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program, "plan", QUICKSTART], cwd=tmp_path / "gone", capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert done.stderr.splitlines()[-1].startswith("  next:")


@pytest.mark.parametrize("by", ["variable", "settings", "dangling"])
def test_a_lost_default_site_has_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    settings = tmp_path / "mrt-hpc" / "settings.yaml"
    settings.parent.mkdir()
    if by == "variable":
        monkeypatch.setenv("MRT_HPC_SITE", "gone")
    elif by == "settings":
        settings.write_text("site: gone\n")
    else:
        settings.symlink_to("gone")
    source = "MRT_HPC_SITE" if by == "variable" else str(settings)
    assert source in typed("plan", QUICKSTART, exits=2).stderr


def test_a_configuration_that_cannot_be_written_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "gone"))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert "--output FILE" in typed("init", "box", "--yes", exits=2).stderr


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem with room for next to nothing."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=False).returncode:
        pytest.skip("mounting a small filesystem needs root")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_on_a_full_disk_nothing_half_made_is_left(full_disk: Path) -> None:
    typed("submit", QUICKSTART, "--run", full_disk / "run", exits=ExitCode.RETRYABLE)
    assert list(full_disk.iterdir()) == []


# -- what a user is told to type

COMMAND = r"(?:mrt-hpc(?: [a-z-]+){1,2}|\brm(?: -r)?|\bmv|\bls|\bcp -r|\bchmod [^ {]+)"
PATH = r"(?:[\w.\[\]-]*\b(?:root|path|directory|parent)|[\w.]*layout\.\w+(?<!\.word))"
UNQUOTED = re.compile(rf"{COMMAND} \{{{PATH}\}}")


def test_paths_in_advice_are_words_of_a_shell(tmp_path: Path) -> None:
    files = Path(mrt_hpc.__file__).parent.rglob("*.py")
    assert [f"{file.name}: {m[0]}" for file in files for m in UNQUOTED.finditer(file.read_text())] == []
    layout = RunLayout(tmp_path / "a b")
    layout.jobs.mkdir(parents=True)
    (layout.jobs / "site.json").write_text("{")
    command = str(refusal(last_site, layout).advice).partition(",")[0]
    assert shlex.split(command) == ["rm", "-r", str(layout.jobs / "site.json")]


def test_a_terminal_that_lacks_a_character_ends_no_command(tmp_path: Path) -> None:
    (folder := tmp_path / "noch–da").mkdir()
    command = [sys.executable, "-m", "mrt_hpc.cli.main", "runs", str(folder)]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (asked.returncode, "noch\\u2013da" in asked.stdout) == (0, True), asked.stderr


# -- commands on a run of which nothing is done


def test_plan_obeys_overrides_and_expands_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = typed("plan", "mrt_online", "--set", "schedule.iterations_per_job=124", "--run", "~/x").output
    for fact in ("248 iterations in 2 segment(s)", "segment-001.trainer", "submit will refuse", str(tmp_path / "x")):
        assert fact in shown


def test_a_run_directory_is_private_and_holds_its_identity(run: RunLayout) -> None:
    assert run.root.stat().st_mode & 0o777 == 0o700
    assert (run.secrets / "server_key").stat().st_mode & 0o777 == 0o600
    assert json.loads(run.plan.read_text())["name"] == "quickstart"
    assert len(run.benchmark_data("held-out").read_text().splitlines()) == 500
    key = (run.secrets / "server_key").read_text()
    others = [p for p in run.root.rglob("*") if p.is_file() and p.parent != run.secrets]
    assert not [p for p in others if key in p.read_text(errors="replace")]


def test_logs_show_the_end_of_the_newest_log_of_a_role(run: RunLayout) -> None:
    (run.logs / "segment-000.trainer.00000.a.rank0.log").write_text("".join(f"line {i}\n" for i in range(100)))
    (run.logs / "prepare.00000.b.rank0.log").write_text("other\n")
    shown = typed("logs", run.root, "trainer", "-n", "2").output
    assert shown.endswith("line 98\nline 99\n")
    assert "line 97" not in shown


def test_cancel_of_a_run_on_another_machine_says_where(run: RunLayout) -> None:
    (run.jobs / "local-00001.json").write_text(json.dumps({"pid": 12, "started": "5", "host": "elsewhere"}))
    assert "'elsewhere'" in typed("cancel", run.root, exits=ExitCode.FATAL).stderr


def test_report_of_a_run_without_results_says_what_is_missing(run: RunLayout) -> None:
    shown = typed("report", run.root).output
    assert "missing: metrics of iterations" in shown
    assert f"report: {run.report}" in shown and f"page: {run.page}" in shown
    assert run.report.is_file() and run.page.is_file()
