"""The commands as a user meets them: a wrong input is an error with what to type next, and leaves nothing behind."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from basics import QUICKSTART
from commands import in_a_process, python, typed
from run_of import run_of
from tables import tables

from mrt_hpc.errors import ExitCode
from mrt_hpc.run.layout import RunLayout

TABLES = tables("cli")


def words_of(line: str) -> list[str]:
    return [word.replace("RECIPE", str(QUICKSTART)) for word in shlex.split(line)]


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return run_of(tmp_path / "run")


@pytest.mark.parametrize(("words", "fact"), TABLES["wrong_inputs"])
def test_a_wrong_input_is_refused_and_leaves_nothing_behind(tmp_path: Path, words: str, fact: str) -> None:
    refused = typed(*words_of(words), "--run", tmp_path / "run", exits=2).stderr
    assert (fact in refused, refused.splitlines()[-1][:8]) == (True, "  next: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("words", "fact"), TABLES["wrong_words"])
def test_a_wrong_word_is_refused_with_what_to_type(run: RunLayout, words: str, fact: str) -> None:
    assert fact in typed(*words_of(words.replace("RUN", str(run.root))), exits=2).stderr


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.touch, lambda path: path.symlink_to(path), lambda path: path.symlink_to("no")],
    ids=["pipe", "file", "circle", "dangling"],
)
@pytest.mark.parametrize("below", ["", "x"])
def test_a_place_that_is_no_directory_is_refused(tmp_path: Path, make: Callable[[Path], None], below: str) -> None:
    make(place := tmp_path / "place")
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
    told = python("-c", program, "plan", QUICKSTART, cwd=tmp_path / "gone", exits=2).stderr
    assert "Traceback" not in told and told.splitlines()[-1].startswith("  next:")


def test_a_configuration_that_cannot_be_written_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "gone"))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert "--output FILE" in typed("init", "box", "--yes", exits=2).stderr


def test_on_a_full_disk_nothing_half_made_is_left(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=False).returncode:
        pytest.skip("mounting a small filesystem needs root")
    try:
        typed("submit", QUICKSTART, "--run", tmp_path / "run", exits=ExitCode.RETRYABLE)
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_terminal_that_lacks_a_character_ends_no_command(tmp_path: Path) -> None:
    (folder := tmp_path / "noch–da").mkdir()
    assert "noch\\u2013da" in in_a_process("runs", folder, PYTHONIOENCODING="latin-1")


def test_plan_obeys_overrides_and_expands_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    changes = ("--set", "schedule.iterations_per_job=10", "--set", "resources.trainer.memory_gib=0.5")
    shown = typed("plan", "quickstart", *changes, "--run", "~/x").output
    for fact in ("20 iterations in 2 segment(s)", "segment-001.trainer", "submit will refuse", str(tmp_path / "x")):
        assert fact in shown


def test_a_run_directory_is_private_and_its_key_stands_nowhere_else(run: RunLayout) -> None:
    assert run.root.stat().st_mode & 0o777 == 0o700
    key = (run.secrets / "server_key").read_text()
    others = [p for p in run.root.rglob("*") if p.is_file() and p.parent != run.secrets]
    assert not [p for p in others if key in p.read_text(errors="replace")]


def test_the_log_of_a_role_is_not_hidden_by_that_of_its_server(run: RunLayout) -> None:
    for number, what in enumerate(("rank0", "server")):
        log = run.logs / f"segment-000.inference.00000.a.{what}.log"
        log.write_text("".join(f"line {i}\n" for i in range(100)) + f"of the {what}\n")
        os.utime(log, (1000.0 + number, 1000.0 + number))
    (run.logs / "prepare.00000.b.rank0.log").write_text("other\n")
    shown = typed("logs", run.root, "inference", "-n", "2").output
    assert (shown.endswith("line 99\nof the rank0\n"), "line 98" in shown) == (True, False)
    assert typed("logs", run.root, "inference", "--server").output.endswith("of the server\n")
    log.with_name("segment-000.inference.00000.a.rank0.log").unlink()
    assert "inference --server" in typed("logs", run.root, "inference", exits=2).stderr


@pytest.mark.parametrize(("words", "facts"), TABLES["judged"])
def test_an_answer_is_judged_with_the_reason(words: tuple[str, ...], facts: tuple[str, ...]) -> None:
    printed = typed("judge", *words).output
    assert [fact for fact in facts if fact not in printed] == [], printed


def test_code_that_ends_python_is_no_success_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrt_hpc.cli.fields.print_fields", lambda *_, **__: sys.exit(0))
    assert "code that it called ended Python" in typed("fields", exits=2).stderr


def test_an_answer_is_judged_as_a_run_judges_it(run: RunLayout) -> None:
    printed = typed("judge", r"Wait, \boxed{3}", "3", "--recipe", run.root).output
    assert "right" in printed and "does not end its thought with </think>" in printed
