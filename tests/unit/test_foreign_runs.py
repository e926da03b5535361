"""What commands do with the runs and the model directories of other users."""

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from basics import ROOT
from commands import typed
from evaluated import evaluated_run
from families import holder_of
from other_users import ANOTHER, ROOT_ONLY, give_away
from run_of import bare_run

from mrt_hpc import RunLayout, UserError
from mrt_hpc.cli.main import main
from mrt_hpc.cli.options import RunName, RunUse
from mrt_hpc.recipe.ownership import folder_below, refuse_to_write
from mrt_hpc.run.access import CLOSED_TO_OTHERS, open_to_group
from mrt_hpc.run.manifest import MANIFEST, commit_whole, write_manifest
from mrt_hpc.run.weights import take_over

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


# -- what a run takes of a model directory of another user


SECRET = "for the first user alone"
NEEDED = ("config.json", "model.safetensors", "tokenizer.model", "merges.txt", "chat_template.jinja")


@pytest.fixture
def secret(shared: Path) -> Path:
    path = shared / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture
def model(shared: Path) -> Path:
    folder = shared / "model"
    folder.mkdir()
    for name in (*NEEDED, "README.md", "pytorch_model.bin", "custom.py", ".hidden.json"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def taken(shared: Path) -> Path:
    folder = shared / "taken"
    folder.mkdir()
    return folder


def linked(link: Path, target: object) -> None:
    """A link of another user."""
    link.symlink_to(str(target))
    os.lchown(link, ANOTHER, ANOTHER)


def test_of_a_model_the_files_that_are_needed_are_taken(model: Path, taken: Path) -> None:
    take_over(model, taken)
    assert {path.name for path in taken.iterdir()} == {*NEEDED}
    assert (taken / "config.json").samefile(model / "config.json"), "what is this user's own takes no room"


@ROOT_ONLY
@pytest.mark.parametrize("target", ["secret", "../../blobs/../secret", "../secret"])
def test_a_link_of_another_user_leads_nowhere(model: Path, taken: Path, secret: Path, target: str) -> None:
    linked(model / "notes.txt", secret if target == "secret" else target)
    with pytest.raises(UserError, match="leads out of the model"):
        take_over(model, taken)
    assert all(SECRET not in path.read_text() for path in taken.iterdir())


def test_a_link_of_ones_own_is_followed(model: Path, taken: Path, shared: Path) -> None:
    (shared / "tokenizer.json").write_text("mine")
    (model / "tokenizer.json").symlink_to("../tokenizer.json")
    take_over(model, taken)
    assert (taken / "tokenizer.json").read_text() == "mine"


@ROOT_ONLY
def test_links_of_the_hubs_cache_lead_to_its_blobs_alone(shared: Path, taken: Path, secret: Path) -> None:
    folder = shared / "models--o--n" / "snapshots" / ("0" * 40)
    blobs = folder.parents[1] / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "digest").write_text("{}")
    os.chown(blobs / "digest", ANOTHER, ANOTHER)
    linked(folder / "config.json", "../../blobs/digest")
    take_over(folder, taken)
    assert (taken / "config.json").read_text() == "{}"
    assert (taken / "config.json").stat().st_nlink == 1, "the other user could write to it afterwards"
    linked(blobs / "inner", secret)
    linked(folder / "a.json", "../../blobs/inner")
    with pytest.raises((UserError, OSError)):
        take_over(folder, taken)
    (folder / "a.json").unlink()
    blobs.rename(shared / "aside")
    linked(blobs, shared)
    linked(folder / "b.json", "../../blobs/secret")
    with pytest.raises((UserError, OSError)):
        take_over(folder, taken)
    assert all(SECRET not in path.read_text() for path in taken.iterdir())


@ROOT_ONLY
def test_no_file_is_shared_that_another_user_can_write_to(model: Path, taken: Path) -> None:
    os.chown(model / "config.json", ANOTHER, ANOTHER)
    (model / "merges.txt").chmod(0o666)
    take_over(model, taken)
    shared_files = {path.name for path in taken.iterdir() if path.samefile(model / path.name)}
    assert shared_files == {*NEEDED} - {"config.json", "merges.txt"}


def test_the_mode_of_an_original_never_changes(model: Path, shared: Path) -> None:
    """A run that the group reads has a copy of what only this user may read."""
    run = bare_run(shared / "run").root
    open_to_group(run)
    (model / "tokenizer.model").chmod(0o600)
    before = os.umask(CLOSED_TO_OTHERS)
    try:
        commit_whole(run / "weights" / "v000000", lambda folder: take_over(model, folder))
    finally:
        os.umask(before)
    taken = run / "weights" / "v000000" / "tokenizer.model"
    assert stat.S_IMODE((model / "tokenizer.model").stat().st_mode) == 0o600
    assert stat.S_IMODE(taken.stat().st_mode) == 0o640


def test_of_a_weights_version_only_what_its_manifest_names_is_taken(model: Path, taken: Path) -> None:
    write_manifest(model)
    (model / "extra.json").write_text("{}")
    take_over(model, taken)
    assert not (taken / "extra.json").exists() and (taken / MANIFEST).exists()
