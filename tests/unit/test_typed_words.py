"""What a user is told to type works when it is pasted, whatever characters a path holds; and a path that cannot be used
is an error with words.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

import mrt_hpc
from mrt_hpc.attempt.ledger import last_site
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from collections.abc import Callable

QUICKSTART = str(Path(__file__).parents[2] / "recipes" / "quickstart.yaml")
COMMAND = r"(?:mrt-hpc(?: [a-z-]+){1,2}|\brm(?: -r)?|\bmv|\bls|\bcp -r|\bchmod [^ {]+)"
PATH = r"(?:[\w.\[\]-]*\b(?:root|path|directory|parent)|[\w.]*layout\.\w+(?<!\.word))"
UNQUOTED = re.compile(rf"{COMMAND} \{{{PATH}\}}")


def test_paths_in_advice_are_words_of_a_shell() -> None:
    found = [
        f"{file.name}: {match[0]}"
        for file in Path(mrt_hpc.__file__).parent.rglob("*.py")
        for match in UNQUOTED.finditer(file.read_text())
    ]
    assert found == []


def test_a_damaged_record_is_named_so_that_its_removal_can_be_typed(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "a b")
    layout.jobs.mkdir(parents=True)
    (layout.jobs / "site.json").write_text("{")
    with pytest.raises(UserError) as damaged:
        last_site(layout)
    command = str(damaged.value.advice).partition(",")[0]
    assert shlex.split(command) == ["rm", "-r", str(layout.jobs / "site.json")]


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, lambda path: path.symlink_to(path), lambda path: path.symlink_to("gone"), lambda path: path.touch()],
    ids=["pipe", "circle", "dangling", "file"],
)
@pytest.mark.parametrize("below", ["", "x"])
def test_a_run_directory_that_is_none_is_refused(tmp_path: Path, make: Callable[[Path], None], below: str) -> None:
    place = tmp_path / "place"
    make(place)
    asked = typed("plan", QUICKSTART, "--run", str(place / below))
    assert (asked.exit_code, str(place) in asked.output) == (2, True), asked.output


def test_a_place_that_cannot_be_is_no_defect_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed("submit", QUICKSTART, "--site", "local", "--run", "/proc/x").exit_code == 2
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "gone"))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    asked = typed("init", "box", "--yes")
    assert (asked.exit_code, "--output FILE" in asked.output) == (2, True), asked.output


@pytest.mark.parametrize("by", ["variable", "settings"])
def test_a_default_site_that_is_not_there_is_named_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    settings = tmp_path / "mrt-hpc" / "settings.yaml"
    settings.parent.mkdir()
    if by == "variable":
        monkeypatch.setenv("MRT_HPC_SITE", "gone")
    else:
        settings.write_text("site: gone\n")
    asked = typed("plan", QUICKSTART)
    source = "MRT_HPC_SITE" if by == "variable" else str(settings)
    assert (asked.exit_code, f"where:    {source}" in asked.output) == (2, True), asked.output


def test_settings_behind_a_link_that_leads_nowhere_are_no_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "mrt-hpc").mkdir()
    (tmp_path / "mrt-hpc" / "settings.yaml").symlink_to("gone")
    assert "the settings cannot be read" in typed("plan", QUICKSTART).output


@pytest.mark.parametrize(
    "line",
    [
        "scratch: ~/scratch", "scratch: scratch/me", "gpu_type: 'a100:2'", "gpu_type: a b", "gpu_type: ''",
        "partitions: {cpu: ''}", "partitions: {gpu: gpu --wrap=x}", "sbatch: {clusters: other}",
    ],
)  # fmt: skip
def test_a_profile_holds_what_sbatch_and_shells_can_use(tmp_path: Path, line: str) -> None:
    profile = tmp_path / "box.yaml"
    profile.write_text(f"type: slurm\nname: box\n{line}\n")
    asked = typed("plan", QUICKSTART, "--site", str(profile))
    assert (asked.exit_code, f"{profile}, line 3" in asked.output) == (2, True), asked.output


def typed(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def test_a_terminal_that_lacks_a_character_ends_no_command(tmp_path: Path) -> None:
    (folder := tmp_path / "noch–da").mkdir()
    command = [sys.executable, "-m", "mrt_hpc.cli.main", "runs", str(folder)]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (asked.returncode, "noch\\u2013da" in asked.stdout) == (0, True), asked.stderr
