"""Both locks install as they stand, from files with the checksums that they name, on each Python that they are made
for and on the oldest system.
"""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from install_support import REPOSITORY, UV, require_registry, shell

PYTHONS = shell(". env/common.sh; echo $PYTHONS").split()
OLDEST_GLIBC = shell(". env/common.sh; echo $OLDEST_GLIBC").strip()
OLDEST_GLIBC_ARM = shell(". env/common.sh; echo $OLDEST_GLIBC_ARM").strip()
OLDER_GLIBC = "2.28"  # the next older one that uv knows a platform of
X86, ARM = (
    f"{machine}-manylinux_{glibc}".replace(".", "_")
    for machine, glibc in (("x86_64", OLDEST_GLIBC), ("aarch64", OLDEST_GLIBC_ARM))
)
"""The oldest platforms, as uv names them."""
BUILT_HERE = {"deepspeed"}  # packages that have no wheels; pure Python, so that building them needs no compiler


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("kind", "platform"), [
    ("cpu", X86), ("cuda", X86), ("cuda", ARM)
], ids=["cpu", "cuda", "cuda on aarch64"])  # fmt: skip
def test_the_lock_installs_as_it_stands(kind: str, platform: str, python: str, tmp_path: Path) -> None:
    lock, overrides, source = _with_torch_that_exists(kind, python, tmp_path)
    stands_in = kind == "cpu" and not source
    done = _dry_run(lock, overrides, source, python, platform, tmp_path)
    assert done.returncode == 0, done.stderr
    installed = set(re.findall(r"^ \+ (\S+?)==", done.stderr, re.MULTILINE))
    named = set(re.findall(r"^([A-Za-z0-9._-]+)==", lock.read_text(), re.MULTILINE))
    assert named - installed == {name for name in named - installed if f"\n{name}==" in _conditional(lock)}
    brought_by_stand_in = {name for name in installed if name.startswith(("cuda-", "nvidia-"))} if stands_in else set()
    assert installed - named <= brought_by_stand_in, "a package would be installed that the lock does not name"


def test_the_oldest_c_library_is_the_oldest_that_works(tmp_path: Path) -> None:
    lock, overrides, source = _with_torch_that_exists("cuda", PYTHONS[0], tmp_path)
    done = _dry_run(lock, overrides, source, PYTHONS[0], f"x86_64-manylinux_{OLDER_GLIBC}".replace(".", "_"), tmp_path)
    assert done.returncode != 0
    assert "no usable wheels" in done.stderr


def _conditional(lock: Path) -> str:
    return "\n" + "\n".join(line for line in lock.read_text().splitlines() if " ; " in line)


def test_every_entry_has_the_checksums_of_its_files() -> None:
    for file in ("cpu.lock", "cuda.lock", "uv.txt"):
        entries = _entries((REPOSITORY / "env" / file).read_text())
        assert entries
        for entry in entries:
            assert re.match(r"[A-Za-z0-9._-]+==\S+", entry), "an exact version"
            assert re.search(r"--hash=sha256:[0-9a-f]{64}$", entry, re.MULTILINE), entry


def test_torch_has_a_checksum_for_each_python() -> None:
    """PyTorch's index has one file of a version for each of them, and the lock takes no other package from there."""
    (entry,) = [e for e in _entries((REPOSITORY / "env" / "cpu.lock").read_text()) if e.startswith("torch==")]
    assert entry.count("--hash") == len(PYTHONS)


def test_cudas_compiler_has_the_version_of_its_headers() -> None:
    """nvcc refuses headers of another minor version."""
    lock = (REPOSITORY / "env/cuda.lock").read_text()
    versions = dict(re.findall(r"^nvidia-(?:cuda-)?(\w+)==(\d+\.\d+)", lock, re.MULTILINE))
    assert len({versions[part] for part in ("nvcc", "crt", "nvrtc", "cccl", "nvvm", "runtime")}) == 1


def test_the_entry_of_a_package_is_read_whole(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text("a==1 \\\n    --hash=sha256:a1 \\\n    --hash=sha256:a2\na-b==2 \\\n    --hash=sha256:b\n")
    assert shell(f". env/common.sh; entry a {lock}") == "a==1 \\\n    --hash=sha256:a1 \\\n    --hash=sha256:a2\n"


@pytest.mark.parametrize("package", ["hjson", "deepspeed"])
def test_a_file_with_another_checksum_is_not_installed(package: str, tmp_path: Path) -> None:
    """For deepspeed, which is built, that of what it is built with."""
    wrong = re.sub(r"sha256:\w{8}", "sha256:00000000", shell(f". env/common.sh; entry {package} env/cpu.lock"))
    built = re.sub(r"sha256:\w{8}", "sha256:00000000", shell(". env/common.sh; entry setuptools env/cpu.lock"))
    entry = shell(f". env/common.sh; entry {package} env/cpu.lock") if package in BUILT_HERE else wrong
    (tmp_path / "wrong.lock").write_text(entry)
    (tmp_path / "built.lock").write_text(built)
    options = ["--no-deps", "--require-hashes", "--build-constraints", str(tmp_path / "built.lock"), "--no-cache"]
    done = _uv_install(*options, "--target", str(tmp_path / "t"), "-r", str(tmp_path / "wrong.lock"))
    assert done.returncode != 0
    assert "Hash mismatch" in done.stderr


def test_setup_installs_only_what_has_a_checksum() -> None:
    setup, common = ((REPOSITORY / "env" / name).read_text() for name in ("setup", "common.sh"))
    for line in (setup + common).splitlines():
        if re.search(r"pip install|\blocked=", line):
            assert "${locked[@]}" in line or "--require-hashes" in line or "--editable" in line, line
    assert "unsafe" not in setup + common


def _entries(text: str) -> list[str]:
    return re.findall(r"^[^\s#].*(?:\n .*)*", text, re.MULTILINE)


def _dry_run(
    lock: Path, overrides: Path, source: list[str], python: str, platform: str, folder: Path
) -> subprocess.CompletedProcess[str]:
    wheels_only = ["--only-binary", ":all:", *(word for name in sorted(BUILT_HERE) for word in ("--no-binary", name))]
    options = ["--python-version", python, "--python-platform", platform, "--override", str(overrides), *wheels_only]
    return _uv_install("--dry-run", "--target", str(folder / "nothing"), *source, *options, "-r", str(lock))


def _uv_install(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(UV), "pip", "install", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    require_registry(done)
    return done


def _with_torch_that_exists(kind: str, python: str, folder: Path) -> tuple[Path, Path, list[str]]:
    """The lock, its overrides and where torch is. Unless pip's configuration names a folder that holds a CPU build of
    torch for this Python, the registry's build of the same version stands in for it: what the lock says of all other
    packages can be tested nevertheless.
    """
    lock, overrides = REPOSITORY / "env" / f"{kind}.lock", REPOSITORY / "env" / f"{kind}.overrides"
    if kind == "cuda":
        return lock, overrides, []
    source = _torch_source()
    if "--find-links" in source and _holds_torch(Path(source[-1]), python):
        return lock, overrides, source[-2:]
    text = lock.read_text()
    (entry,) = [entry for entry in _entries(text) if entry.startswith("torch==")]
    (folder / lock.name).write_text(text.replace(entry, entry.partition("+cpu")[0]))
    (folder / overrides.name).write_text(overrides.read_text().replace("+cpu", ""))
    return folder / lock.name, folder / overrides.name, []


def _holds_torch(folder: Path, python: str) -> bool:
    return any(folder.glob(f"torch-*+cpu-cp{python.replace('.', '')}-*.whl"))


@cache
def _torch_source() -> list[str]:
    return shell(f". env/common.sh; VENV={sys.prefix}; torch_source").split()
