"""What a run takes of a model directory of another user."""

import os
import stat
from pathlib import Path

import pytest
from other_users import ANOTHER, ROOT_ONLY
from run_of import bare_run

from mrt_hpc.errors import UserError
from mrt_hpc.run.access import CLOSED_TO_OTHERS, open_to_group
from mrt_hpc.run.manifest import MANIFEST, commit_whole, write_manifest
from mrt_hpc.run.weights import take_over

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
