"""What a user can see of a filesystem: type, free space and inodes, quota, and whether the operations that a run relies
on work there.
"""

import errno
import fcntl
import mmap
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired

from mrt_hpc.inference.server_main import LONGEST_SOCKET_FOLDER
from mrt_hpc.run.access import CACHES
from mrt_hpc.run.atomic import sync_directory, sync_file
from mrt_hpc.run.process import run_program

SHARED_TYPES = frozenset({
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "panfs", "pvfs2", "orangefs", "cifs", "smb3", "afs",
    "wekafs", "ocfs2", "gfs2", "quobyte", "daos",
})  # fmt: skip
"""Types in /proc/self/mountinfo that several machines share; those of FUSE have a prefix."""
QUOTA_S = 10.0
MOUNTS = Path("/proc/self/mountinfo")
"""The names in it may be of any bytes."""
KIB = 1024
GIB = 1024**3
_OCTAL = re.compile(r"\\(\d{3})")
_COUNT = re.compile(r"(\d{1,18})\*?")


@dataclass(frozen=True)
class Quota:
    """What a user has and may have; None for no limit."""

    used_bytes: int
    limit_bytes: int | None
    used_files: int
    limit_files: int | None
    command: str

    @property
    def free_bytes(self) -> int | None:
        return None if self.limit_bytes is None else max(0, self.limit_bytes - self.used_bytes)

    @property
    def free_files(self) -> int | None:
        return None if self.limit_files is None else max(0, self.limit_files - self.used_files)


@dataclass(frozen=True)
class Filesystem:
    path: Path
    mount_point: str
    type: str
    free_bytes: int
    free_files: int | None
    """Inodes; None where the filesystem does not count them."""
    quota: Quota | None
    """None where no quota command answers."""

    @property
    def is_shared(self) -> bool:
        """Whether several machines share its type."""
        return self.type.removeprefix("fuse.") in SHARED_TYPES or self.type.startswith("fuse.")

    @property
    def writable_bytes(self) -> int:
        left = self.quota.free_bytes if self.quota else None
        return self.free_bytes if left is None else min(left, self.free_bytes)

    @property
    def writable_files(self) -> int | None:
        """Files that this user may write; None where no limit is known."""
        known = [self.free_files, None if self.quota is None else self.quota.free_files]
        return min((count for count in known if count is not None), default=None)

    def facts_text(self) -> str:
        files = "" if self.free_files is None else f", {self.free_files:,} inodes"
        said = f"{self.type} at {self.mount_point}, {gigabytes(self.free_bytes)} free{files}"
        if self.quota is None:
            return f"{said}; no quota is known"
        left, count = self.quota.free_bytes, self.quota.free_files
        space = "no limit of space" if left is None else f"{gigabytes(left)} of space"
        return f"{said}; quota leaves {space}{'' if count is None else f' and {count:,} files'} ({self.quota.command})"


def gigabytes(count: float) -> str:
    return f"{count / GIB:,.1f} GiB" if count >= 0.1 * GIB else f"{count / 1024**2:,.1f} MiB"


def existing_ancestor(path: Path) -> Path:
    """The path itself, or the nearest folder above it that exists."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def filesystem(path: Path) -> Filesystem:
    """The filesystem of a path, or of the nearest folder above it that exists. An OSError where it does not answer."""
    place = existing_ancestor(path)
    mount_point, kind, source = mount_of(place.resolve(), os.fsdecode(MOUNTS.read_bytes()))
    counts = os.statvfs(place)
    files = counts.f_favail if counts.f_files else None
    return Filesystem(place, mount_point, kind, counts.f_bavail * counts.f_frsize, files, quota(place, kind, source))


def mount_of(place: Path, mountinfo: str) -> tuple[str, str, str]:
    """Mount point, type and source of a path's filesystem, by /proc/self/mountinfo."""
    mount = ("/", "unknown", "")
    for line in mountinfo.strip("\n").split("\n"):
        before, _, after = line.partition(" - ")
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), before.split(" ")[4])
        if place.is_relative_to(point) and len(point) >= len(mount[0]):
            kind, source = after.split(" ")[:2]
            mount = (point, kind, source)
    return mount


def quota(place: Path, kind: str, source: str) -> Quota | None:
    """The quota by ``lfs quota`` on Lustre and ``quota`` elsewhere; None where neither answers."""
    lustre = ["lfs", "quota", "-q", "-u", str(os.geteuid()), str(place)]
    command = lustre if kind == "lustre" else ["quota", "--no-wrap", "--raw-grace", "--filesystem", str(place)]
    if shutil.which(command[0]) is None:
        return None
    try:
        done = run_program(command, QUOTA_S)
    except (OSError, TimeoutExpired):
        return None
    return parse_quota(done.stdout, str(place) if kind == "lustre" else source, " ".join(command))


def parse_quota(text: str, name: str, command: str) -> Quota | None:
    """The numbers after a filesystem's name: KiB, soft limit, hard limit and grace, then the same for files. None
    without the name, or with numbers in another form: Lustre sets uncertain ones in brackets.
    """
    if name not in (words := text.split()):
        return None
    after = words[words.index(name) + 1 :][:7]  # a long name stands on a line of its own
    columns = [match[1] for word in after[:3] + after[4:] if (match := _COUNT.fullmatch(word))]
    if len(columns) < 6:
        return None
    used, *space, used_files, soft, hard = map(int, columns)
    # the lower of the set limits; 0 stands for none
    limit_bytes, limit_files = (
        min(filter(None, each), default=None) for each in ([n * KIB for n in space], [soft, hard])
    )
    return Quota(used * KIB, limit_bytes, used_files, limit_files, command)


@dataclass(frozen=True)
class Trial:
    """One operation, tried on a filesystem."""

    name: str
    what_for: str
    """What a run needs it for."""
    problem: str = ""
    """Empty where it works."""


def try_operations(place: Path, operations: "Sequence[Operation]") -> list[Trial]:
    """Try operations in a folder, and remove all that they make. An OSError where ``place`` takes no folder."""
    with trial_folder(place) as folder:
        folders = ((*operation, folder / operation[0].replace(" ", "-")) for operation in operations)
        return [Trial(name, what_for, _problem(action, own)) for name, what_for, action, own in folders]


def scratch_problems(temporary: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Faults, by operation, in the folder for temporary files and where the environment puts compiled code; empty text
    where an operation works.
    """
    sockets = temporary if len(str(temporary)) <= LONGEST_SOCKET_FOLDER else Path("/tmp")
    problems = _problems(temporary, SCRATCH) | _problems(sockets, SOCKETS)
    for name in CACHES:
        if (named := variables.get(name)) and not Path(named).is_relative_to(temporary):
            there = _problems(existing_ancestor(Path(named)), COMPILED)
            problems |= {f"{name}, {operation}": problem for operation, problem in there.items()}
    return problems


def _problems(place: Path, operations: "Sequence[Operation]") -> dict[str, str]:
    try:
        trials = try_operations(place, operations)
    except OSError as error:  # no folder can be made there
        return {name: f"{place}: {error.strerror or error}" for name, _, _ in operations}
    needed = "{0}: {1.problem}; it is needed so that {1.what_for}"
    return {trial.name: trial.problem and needed.format(place, trial) for trial in trials}


@contextmanager
def trial_folder(place: Path) -> Iterator[Path]:
    """A folder in ``place``, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=".mrt-hpc-doctor-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _problem(action: Callable[[Path], None], folder: Path) -> str:
    try:
        folder.mkdir()
        action(folder)
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror or error}"
    return ""


def _rename(folder: Path) -> None:
    new, old = folder / "from" / "file", folder / "to" / "file"  # what is damaged moves to another folder
    for each in (new, old):
        each.parent.mkdir()
        each.write_text(each.parent.name)
    new.replace(old)
    if old.read_text() != "from" or new.exists():
        raise OSError("a rename did not replace the file of the same name")


def _rename_folder(folder: Path) -> None:
    new, old = folder / "new", folder / "old"
    for each in (new, old):
        each.mkdir()
        (each / "content").touch()
    with _expect_refusal(OSError, "a folder replaced another one that is not empty"):
        new.rename(old)


@contextmanager
def _expect_refusal(error: type[OSError], otherwise: str) -> Iterator[None]:
    """Raise an error in these words unless the system refuses the block."""
    try:
        yield
    except error:
        return
    raise OSError(otherwise)


def _link(folder: Path) -> None:
    first, second = folder / "one", folder / "other"
    first.touch()
    os.link(first, second)
    with _expect_refusal(FileExistsError, "a second hard link replaced the first"):
        os.link(first, second)


def _create(folder: Path) -> None:
    (folder / "lease").touch(exist_ok=False)
    with _expect_refusal(FileExistsError, "a file that exists was created a second time"):
        (folder / "lease").touch(exist_ok=False)


def _sync(folder: Path) -> None:
    (folder / "content").write_text("content")
    sync_file(folder / "content")
    sync_directory(folder)


def _owner(folder: Path) -> None:
    folder.chmod(0o700)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(f"a new folder has owner {status.st_uid} and mode {status.st_mode & 0o777:o} after chmod 700")


def _lock(folder: Path) -> None:
    with (folder / "lock").open("w") as first, (folder / "lock").open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with _expect_refusal(BlockingIOError, "a file that is locked was locked a second time"):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _symlink(folder: Path) -> None:
    (folder / "content").write_text("content")
    (folder / "link").symlink_to(folder / "content")
    if (folder / "link").read_text() != "content":
        raise OSError("a symbolic link does not lead to its file")


def _map(folder: Path) -> None:
    (folder / "library").write_bytes(b"\0" * mmap.PAGESIZE)
    try:
        with (folder / "library").open("rb") as file:
            mmap.mmap(file.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
    except PermissionError:
        raise PermissionError(errno.EPERM, "no code can be mapped from there (mounted noexec)") from None


def _listen(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(folder / "socket"))
        listener.listen()
        client.connect(str(folder / "socket"))


def _connect(_: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        socket.create_connection(listener.getsockname(), timeout=10).close()


Operation = tuple[str, str, "Callable[[Path], None]"]
"""Name, purpose and action; the action raises OSError where the operation does not work."""
RENAME = ("rename", "results appear whole or not at all", _rename)
RENAME_FOLDERS = ("rename of folders", "of two tasks that commit the same group only the first wins", _rename_folder)
OWNER = ("owner and mode", "no other user may write what tasks execute", _owner)
EXECUTE = ("executable pages", "what vLLM, Triton and torch compile can be loaded", _map)
OPERATIONS: tuple[Operation, ...] = (
    RENAME,
    RENAME_FOLDERS,
    ("hard link", "of two tasks that write the same file only the first wins", _link),
    ("exclusive create", "leases say who samples what", _create),
    ("fsync", "results survive a power failure", _sync),
    OWNER,
)
"""What a run does in its directory."""
SCRATCH: tuple[Operation, ...] = (
    RENAME,
    RENAME_FOLDERS,
    OWNER,
    ("lock", "two processes take turns on GPUs, and a node's files are removed with their task", _lock),
    ("symbolic link", "the code of a model is found for each of its versions", _symlink),
    EXECUTE,
)
"""What tasks do in their node's folder for temporary files."""
SOCKETS: tuple[Operation, ...] = (
    ("socket", "tasks reach their servers", _listen),
    ("loopback address", "ranks of one node exchange gradients", _connect),
)
COMPILED: tuple[Operation, ...] = (EXECUTE,)
"""What tasks do in the folders of compiled code."""
