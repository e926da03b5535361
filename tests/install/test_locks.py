"""Both locks install as they stand, from wheels, on each Python that they are made for and on the oldest system."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from install_support import REPOSITORY, UV, require_registry, shell

PYTHONS = shell(". env/common.sh; echo $PYTHONS").split()
OLDEST_GLIBC = shell(". env/common.sh; echo $OLDEST_GLIBC").strip()
OLDER_GLIBC = "2.28"
"""The next older one that uv knows a platform of."""
BUILT_HERE = {"deepspeed"}
"""Packages that have no wheels; pure Python, so that building them needs no compiler."""


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_lock_installs_as_it_stands(kind: str, python: str, tmp_path: Path) -> None:
    lock, overrides, stands_in = _with_torch_that_exists(kind, python, tmp_path)
    done = _dry_run(lock, overrides, python, OLDEST_GLIBC, tmp_path)
    assert done.returncode == 0, done.stderr
    installed = set(re.findall(r"^ \+ (\S+?)==", done.stderr, re.MULTILINE))
    named = set(re.findall(r"^([A-Za-z0-9._-]+)==", lock.read_text(), re.MULTILINE))
    only_on_others = {name for name in named - installed if f"\n{name}==" in _conditional(lock)}
    assert named - installed == only_on_others
    brought_by_stand_in = {name for name in installed if name.startswith(("cuda-", "nvidia-"))} if stands_in else set()
    assert installed - named <= brought_by_stand_in, "a package would be installed that the lock does not name"


def test_the_oldest_c_library_is_the_oldest_that_works(tmp_path: Path) -> None:
    lock, overrides, _ = _with_torch_that_exists("cuda", PYTHONS[0], tmp_path)
    done = _dry_run(lock, overrides, PYTHONS[0], OLDER_GLIBC, tmp_path)
    assert done.returncode != 0
    assert "no usable wheels" in done.stderr


def _conditional(lock: Path) -> str:
    """The lines of a lock that hold for some Pythons only."""
    return "\n" + "\n".join(line for line in lock.read_text().splitlines() if " ; " in line)


def _dry_run(lock: Path, overrides: Path, python: str, glibc: str, folder: Path) -> subprocess.CompletedProcess[str]:
    platform = f"x86_64-manylinux_{glibc.replace('.', '_')}"
    wheels_only = ["--only-binary", ":all:", *(word for name in sorted(BUILT_HERE) for word in ("--no-binary", name))]
    options = ["--python-version", python, "--python-platform", platform, "--override", str(overrides), *wheels_only]
    where = ["--target", str(folder / "nothing"), *_torch_source()]
    command = [str(UV), "pip", "install", "--dry-run", *where, *options, "-r", str(lock)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    require_registry(done)
    return done


def _with_torch_that_exists(kind: str, python: str, folder: Path) -> tuple[Path, Path, bool]:
    """The lock and its overrides. Where pip's configuration names a folder of CPU builds of torch and it holds none for
    this Python, the registry's build of the same version stands in for them: what the lock says of all other packages
    can be tested nevertheless.
    """
    lock, overrides = REPOSITORY / "env" / f"{kind}.lock", REPOSITORY / "env" / f"{kind}.overrides"
    source = _torch_source()
    if kind == "cuda" or source[0] != "--find-links" or _holds_torch(Path(source[1]), python):
        return lock, overrides, False
    for file in (lock, overrides):
        (folder / file.name).write_text(file.read_text().replace("+cpu", ""))
    return folder / lock.name, folder / overrides.name, True


def _holds_torch(folder: Path, python: str) -> bool:
    return any(folder.glob(f"torch-*+cpu-cp{python.replace('.', '')}-*.whl"))


@cache
def _torch_source() -> list[str]:
    return shell(f". env/common.sh; VENV={sys.prefix}; torch_source").split()
