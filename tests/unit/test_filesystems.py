"""What is read of mounts and quotas, and what a filesystem is tried for."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tables import tables

import mrt_hpc
from mrt_hpc.cluster import filesystems
from mrt_hpc.cluster.filesystems import OPERATIONS, SCRATCH, SOCKETS, Filesystem, Quota, parse_quota, scratch_problems

TABLES = tables("filesystems")
MOUNTS, QUOTA, LUSTRE = (TABLES[name] for name in ("mounts", "quota", "lustre"))


def test_the_mount_of_a_path() -> None:
    for path, found in (
        ("/usr/bin", ("/", "ext4", "/dev/vda1")), ("/homework", ("/", "ext4", "/dev/vda1")),
        ("/home/me", ("/home", "nfs4", "filer:/export/home")),
        ("/scratch/with space/x", ("/scratch/with space", "tmpfs", "tmpfs")),
    ):  # fmt: skip
        assert filesystems.mount_of(Path(path), MOUNTS) == found


def test_mounts_with_names_in_any_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = b"43 22 0:43 / /\xe9t\xe9\xe2\x80\xa8a rw - fuse.sshfs me@h:/ rw\n"
    (tmp_path / "mountinfo").write_bytes(MOUNTS.encode() + line)
    monkeypatch.setattr(filesystems, "MOUNTS", tmp_path / "mountinfo")
    assert filesystems.filesystem(Path("/usr")).type == "ext4"


def test_quotas_are_read_and_bound_what_may_be_written() -> None:
    home = parse_quota(QUOTA, "filer:/export/home", "quota")
    assert home == Quota(9000000 * 1024, 8000000 * 1024, 42, None, "quota")
    assert (home.free_bytes, home.free_files) == (0, None)
    scratch = parse_quota(LUSTRE, "/scratch/a/very/long/name/of/a/folder", "lfs quota")
    assert scratch is not None
    assert (scratch.free_bytes, scratch.free_files) == (4000000 * 1024, 10000)
    assert parse_quota("", "/scratch", "lfs quota") is None
    for not_known in (
        "none", "[1048576] 0 [2097152] - [10] 0 [100] -", "1.5G 0k 2T - 10 0 100 -",
        "10485* 0 2097152 6d 23h 10 0 100 -",
    ):  # fmt: skip
        assert parse_quota(f"/scratch {not_known}", "/scratch", "lfs quota") is None
    limited = Filesystem(Path("/x"), "/x", "nfs4", 100, 50, Quota(0, 10, 0, None, "quota"))
    assert (limited.writable_bytes, limited.writable_files, limited.is_shared) == (10, 50, True)
    free = Filesystem(Path("/x"), "/x", "ext4", 100, None, None)
    assert (free.writable_bytes, free.writable_files, free.is_shared) == (100, None, False)


def test_what_works_passes_and_nothing_is_kept(tmp_path: Path) -> None:
    assert {trial.problem for trial in filesystems.try_operations(tmp_path, OPERATIONS)} == {""}
    elsewhere = {"TRITON_CACHE_DIR": str(tmp_path.parent / "triton"), "CUDA_CACHE_PATH": str(tmp_path / "cuda")}
    problems = scratch_problems(tmp_path, elsewhere)
    assert set(problems.values()) == {""}
    assert [name for name in problems if "TRITON" in name or "CUDA" in name] == ["TRITON_CACHE_DIR, executable pages"]
    assert list(tmp_path.iterdir()) == []
    assert filesystems.existing_ancestor(tmp_path / "a" / "b") == tmp_path
    assert filesystems.filesystem(tmp_path / "a" / "b").free_bytes > 0


TRY = """
import json, sys
from pathlib import Path
from mrt_hpc.cluster.filesystems import scratch_problems
print(json.dumps([name for name, problem in scratch_problems(Path(sys.argv[1]), {}).items() if problem]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a filesystem")
def test_a_folder_that_is_mounted_noexec_is_noticed(tmp_path: Path) -> None:
    script = f"mount -t tmpfs -o noexec none {tmp_path} && exec {sys.executable} -c '{TRY}' {tmp_path}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    assert json.loads(done.stdout) == ["executable pages"]


# -- what runs do on a node, and whether doctor tries it

TRIED = {"run": OPERATIONS, "node": (*SCRATCH, *SOCKETS)}
COPIES = {("os.link", "run/weights.py")}  # what is copied where it cannot be linked
USES: dict[str, tuple[str, dict[str, str]]] = TABLES["uses"]
ANYWHERE = {".rename": "rename of folders", ".replace": "rename", ".chmod": "owner and mode"}
"""The same for what is tried in both places."""
NEEDS_NOTHING: dict[str, str] = TABLES["needs_nothing"]
PATHS = {"rename", "hardlink_to", "symlink_to", "chmod", "mkfifo"}
COMMANDS_OF_A_PERSON = ("cli/", "images.py", "cluster/", "datasets/", "hub.py")


def uses() -> set[tuple[str, str]]:
    package, found = Path(mrt_hpc.__file__).parent, set()
    for file in package.rglob("*.py"):
        module = str(file.relative_to(package))
        if not module.startswith(COMMANDS_OF_A_PERSON):
            found |= {(call, module) for node in ast.walk(ast.parse(file.read_text())) if (call := _call(node))}
    return found


def _call(node: ast.AST) -> str:
    match node:
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in {*NEEDS_NOTHING, "mmap"}:
            return "" if name in NEEDS_NOTHING.get(module, "").split() else f"{module}.{name}"
        case ast.Call(func=ast.Attribute(attr="replace"), args=[_], keywords=[]):
            return ".replace"
        case ast.Call(func=ast.Attribute(attr=name)) if name in PATHS:
            return f".{name}"
    return ""


def test_doctor_tries_whatever_a_run_needs_of_a_node() -> None:
    """A new way to use the system has a trial in `filesystems`, or is listed as one that needs none."""
    listed = {(call, module) for call, (_, modules) in USES.items() for module in modules}
    assert {(call, module) for call, module in uses() if call not in ANYWHERE} == listed | COPIES
    needed = {(name, place) for name in ANYWHERE.values() for place in TRIED}
    needed |= {(name, place) for name, modules in USES.values() for place in modules.values()}
    assert needed <= {(name, place) for place, operations in TRIED.items() for name, _, _ in operations}
