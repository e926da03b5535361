"""Each command declares what it does with a run, and one that writes refuses the run of another user."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from basics import ROOT
from commands import typed
from evaluated import evaluated_run
from families import holder_of
from other_users import ANOTHER, ROOT_ONLY, give_away

from mrt_hpc.cli.main import main
from mrt_hpc.cli.options import RunName, RunUse
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.ownership import folder_below, refuse_to_write
from mrt_hpc.run.layout import RunLayout

OF_RUNS = {"run", "runs", "run_before", "what", "models", "places"}
"""The names of parameters that take runs; ``--run`` of some commands is the place of a new one."""
WRITING = ("submit", "resume", "cancel", "clean --yes", "clean --yes --what logs", "regrade", "sync", "report")


def uses() -> Iterator[tuple[str, RunUse]]:
    """What each command does with the runs that it names."""
    for name, command in main.commands.items():
        below = list(command.commands.values()) if isinstance(command, click.Group) else [command]
        for parameter in (p for each in below for p in each.params):
            if isinstance(parameter.type, RunName):
                yield name, parameter.type.use


def test_each_parameter_that_takes_a_run_declares_its_use() -> None:
    for name, command in main.commands.items():
        for parameter in command.params:
            if parameter.name in OF_RUNS and isinstance(parameter, click.Argument):
                assert isinstance(parameter.type, RunName), (name, parameter.name)


def test_the_table_of_the_page_is_what_commands_declare() -> None:
    page = (ROOT / "docs/running.md").read_text()
    rows = re.findall(r"^\| (`[^|]*`) \| (looks|copies|writes) \|", page, re.MULTILINE)
    assert {(name, use) for names, use in rows for name in re.findall(r"`([\w-]+)`", names)} == {*uses()}


@pytest.fixture
def hostile(shared: Path) -> RunLayout:
    """A finished run, whose folders are links to those of the one who types the command."""
    layout = evaluated_run(shared / "run", 0, 1)
    precious = shared / "precious"
    for name in ("set_aside", "logs", "checkpoints"):
        (precious / name / "step000001").mkdir(parents=True)
        (precious / name / "thesis.log").write_text("years of work")
        shutil.rmtree(layout.root / name, ignore_errors=True)
        (layout.root / name).symlink_to(precious / name)
    return layout


def held(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@ROOT_ONLY
def test_a_command_that_writes_refuses_a_run_of_another_user(hostile: RunLayout) -> None:
    give_away(hostile.root)
    before = held(hostile.root.parent)
    for words in WRITING:
        command, *options = words.split()
        said = typed(command, hostile.root, *options, exits=2).output
        assert f"this run belongs to the user nobody ({ANOTHER})" in said, words
        assert "go-w" not in said, "its mode is not the cause"
        assert f"next:     mrt-hpc {'report' if words == 'report' else 'fork'} {hostile.root} --" in said, words
        assert held(hostile.root.parent) == before, words
    assert "this run belongs to" in typed("analyze", "scaling", hostile.root, exits=2).output


@pytest.mark.parametrize("kind", ["", "logs", "checkpoints"])
def test_clean_removes_nothing_that_a_link_leads_to(hostile: RunLayout, kind: str) -> None:
    """Also in a run of one's own: a checkpoint of another disk may be one of several runs."""
    precious = hostile.root.parent / "precious"
    before = held(precious)
    typed("clean", hostile.root, "--yes", *(("--what", kind) if kind else ()))
    assert held(precious) == before
    with pytest.raises(UserError, match="no folder of your own"), folder_below(hostile.root, hostile.set_aside):
        pass


@ROOT_ONLY
def test_no_process_ends_that_a_link_in_a_run_of_another_user_leads_to(hostile: RunLayout, shared: Path) -> None:
    give_away(hostile.root)
    mine = evaluated_run(shared / "mine", 0)
    with holder_of(mine.root) as holder:
        shutil.rmtree(hostile.jobs, ignore_errors=True)
        hostile.jobs.symlink_to(mine.jobs)
        typed("cancel", hostile.root, exits=2)
        assert holder.poll() is None


@ROOT_ONLY
def test_the_place_that_was_looked_at_is_the_one_that_is_used(shared: Path) -> None:
    """A path through a folder of another user may lead elsewhere at the next look."""
    mine, theirs = shared / "mine", shared / "theirs"
    mine.mkdir()
    theirs.mkdir()
    (theirs / "link").symlink_to(mine)
    assert refuse_to_write(mine) == mine
    os.chown(theirs, ANOTHER, ANOTHER)
    assert refuse_to_write(theirs / "link") == mine
