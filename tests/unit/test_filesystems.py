"""What is read of mounts and quotas, and what a filesystem is tried for."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrt_hpc.launch.filesystems import (
    OPERATIONS,
    Filesystem,
    Quota,
    existing_ancestor,
    filesystem,
    mount_of,
    parse_quota,
    try_operations,
)

MOUNTS = """\
22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 22 0:40 / /home rw,relatime shared:2 - nfs4 filer:/export/home rw,vers=4.2
41 22 0:41 / /scratch rw,relatime shared:3 - lustre 10.0.0.1@o2ib:/scratch rw
42 41 0:42 / /scratch/with\\040space rw - tmpfs tmpfs rw
"""
QUOTA = """\
Disk quotas for user me (uid 1000):
Filesystem blocks quota limit grace files quota limit grace
filer:/export/home 9000000* 8000000 10000000 1700000000 42 0 0 0
"""
LUSTRE = """\
/scratch/a/very/long/name/of/a/folder
                 1000000       0 5000000       -   90000  100000  110000       -
"""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/usr/bin", ("/", "ext4", "/dev/vda1")),
        ("/home/me", ("/home", "nfs4", "filer:/export/home")),
        ("/homework", ("/", "ext4", "/dev/vda1")),
        ("/scratch/me/runs", ("/scratch", "lustre", "10.0.0.1@o2ib:/scratch")),
        ("/scratch/with space/x", ("/scratch/with space", "tmpfs", "tmpfs")),
    ],
)
def test_the_mount_of_a_path(path: str, found: tuple[str, str, str]) -> None:
    assert mount_of(Path(path), MOUNTS) == found


def test_quotas_are_read() -> None:
    home = parse_quota(QUOTA, "filer:/export/home", "quota")
    assert home == Quota(9000000 * 1024, 8000000 * 1024, 42, None, "quota")
    assert (home.free_bytes, home.free_files) == (0, None)
    scratch = parse_quota(LUSTRE, "/scratch/a/very/long/name/of/a/folder", "lfs quota")
    assert scratch is not None
    assert (scratch.free_bytes, scratch.free_files) == (4000000 * 1024, 10000)
    assert parse_quota("", "/scratch", "lfs quota") is None
    assert parse_quota("/scratch none", "/scratch", "lfs quota") is None


def test_the_quota_bounds_what_may_be_written() -> None:
    quota = Quota(0, 10, 0, None, "quota")
    limited = Filesystem(Path("/x"), "/x", "nfs4", 100, 50, quota)
    assert (limited.writable_bytes, limited.writable_files, limited.is_shared) == (10, 50, True)
    free = Filesystem(Path("/x"), "/x", "ext4", 100, None, None)
    assert (free.writable_bytes, free.writable_files, free.is_shared) == (100, None, False)


def test_a_working_filesystem_passes_and_keeps_nothing(tmp_path: Path) -> None:
    trials = try_operations(tmp_path)
    assert [trial.problem for trial in trials] == [""] * len(OPERATIONS)
    assert list(tmp_path.iterdir()) == []
    assert existing_ancestor(tmp_path / "a" / "b") == tmp_path
    assert filesystem(tmp_path / "a" / "b").free_bytes > 0
