"""Paths are given as the user names them: other machines may lack the path that the kernel has for a folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from basics import QUICKSTART, ROOT

from mrt_hpc.recipe.find import absolute, here, is_same_place
from mrt_hpc.recipe.lock import differences


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """The name that users have for a folder, as an automounter gives it."""
    (tmp_path / "export" / "vol7").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "export" / "vol7")
    return tmp_path / "home"


def test_job_scripts_have_the_path_of_the_shell(link: Path) -> None:
    command = f"cd {link} && exec {sys.executable} -m mrt_hpc plan {QUICKSTART} --site example --sbatch"
    words, environment = ["bash", "-c", command], {**os.environ, "PYTHONPATH": str(ROOT)}
    printed = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    assert f"{link}/runs/quickstart/logs" in printed and f"{link.resolve()}/" not in printed


def test_a_shell_that_is_elsewhere_decides_nothing(link: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(link)
    for named, found in ((link, link), (tmp_path, link.resolve()), (tmp_path / "gone", link.resolve())):
        monkeypatch.setenv("PWD", str(named))
        assert (here(), absolute(Path("runs/a"))) == (found, found / "runs/a")
    monkeypatch.delenv("PWD")
    assert (here(), absolute(Path("/x"))) == (link.resolve(), Path("/x"))


def test_two_names_of_one_file_are_no_change_of_a_recipe(link: Path) -> None:
    (link / "data.jsonl").write_text("")
    one, other = (str(folder / "data.jsonl") for folder in (link, link.resolve()))
    assert is_same_place(one, other) and not is_same_place(one, f"{other}x") and not is_same_place("/a", 1)
    assert [*differences({"data": {"path": one}}, {"data": {"path": other}})] == []
    assert [*differences({"data": {"path": one}}, {"data": {"path": str(link)}})] != []
