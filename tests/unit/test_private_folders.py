"""Folders in places that all users of a node share: only what is private is used, and nobody can stop a task."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.run.access import private_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANOTHER = 65534
"""The id of another user."""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in which every user may make files, like /tmp."""
    path = Path(tempfile.mkdtemp(prefix="shared-"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def given_away(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, ANOTHER, ANOTHER)


def linked(path: Path) -> None:
    path.with_name("elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.with_name("elsewhere"))


def link_to_nothing(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


def open_to_others(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def readable(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)


def a_file(path: Path) -> None:
    path.write_text("")


TAKEN = [pytest.param(given_away, marks=ROOT_ONLY), linked, link_to_nothing, open_to_others, readable, a_file]
"""What others, or the user earlier, may have left under the name."""


def assert_private(path: Path) -> None:
    found = path.lstat()
    assert path.is_dir()
    assert not path.is_symlink()
    assert (found.st_uid, found.st_mode & 0o777) == (os.geteuid(), 0o700)


def test_a_private_folder_is_made_and_found_again(shared: Path) -> None:
    path = private_folder(shared, "caches")
    assert_private(path)
    (path / "kept").write_text("")
    assert private_folder(shared, "caches") == path == shared / "caches"
    assert (path / "kept").exists()


@pytest.mark.parametrize("leave", TAKEN)
def test_what_is_not_private_is_not_used(
    shared: Path, leave: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    leave(shared / "caches")
    with caplog.at_level(logging.WARNING):
        path = private_folder(shared, "caches")
    assert_private(path)
    assert path.name.startswith("caches-")
    assert str(path) in caplog.text
    assert str(shared / "caches") in caplog.text
    assert private_folder(shared, "caches") == path, "the next task finds the same"
