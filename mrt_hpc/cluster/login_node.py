"""The facts of this machine that matter to a site profile: Python, modules, Apptainer, the filesystems on which runs
may lie, and whether a Slurm cluster is used from it.
"""

import os
import re
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired

from mrt_hpc.attempt.python_look import missing_packages
from mrt_hpc.cluster.filesystems import Filesystem, filesystem
from mrt_hpc.run.process import run_program

CONTAINER_COMMANDS = ("apptainer", "singularity")
BUILDCFG_S = 10.0
"""Apptainer's time to print its configuration."""
PLACES = ("SCRATCH", "WORK", "WORKDIR", "PROJECT", "PROJECTS", "DATA", "PWD", "HOME")
"""Sites name the user's shared folders by these; the home directory comes last."""
MODULES = ("LMOD_CMD", "MODULESHOME", "MODULEPATH")
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders of one machine alone."""


@dataclass(frozen=True)
class LoginNode:
    python: str
    """The Python that runs this command."""
    missing_packages: tuple[str, ...] = ()
    """Packages of the stack that this Python lacks."""
    modules: str = ""
    """How environment modules were found, as in ``LMOD_CMD=/opt/lmod/lmod``."""
    python_module: str | None = None
    """The loaded module that this Python belongs to."""
    container_command: str | None = None
    """The path of Apptainer, or of Singularity."""
    kernel_mounts_images: bool | None = None
    """Whether the kernel mounts its images, and not a process of the task."""
    filesystems: tuple[Filesystem, ...] = ()
    """Filesystems of the user's folders, each once."""

    @property
    def place_for_runs(self) -> Filesystem | None:
        """A shared one, not the home directory, with the most space."""
        ranked = sorted(self.filesystems, key=lambda f: (f.is_shared, f.path != Path.home(), f.writable_bytes))
        return ranked[-1] if ranked else None


def look_at_login_node() -> LoginNode:
    loaded = tuple(filter(None, os.environ.get("LOADEDMODULES", "").split(":")))
    container = next(filter(None, map(shutil.which, CONTAINER_COMMANDS)), None)
    return LoginNode(
        python=sys.executable,
        missing_packages=missing_packages(),
        modules=next((f"{name}={os.environ[name]}" for name in MODULES if os.environ.get(name)), ""),
        python_module=module_of(sys.base_prefix, loaded),
        container_command=container,
        kernel_mounts_images=None if container is None else mounts_by_kernel(container),
        filesystems=tuple(_filesystems()),
    )


def mounts_by_kernel(container: str) -> bool | None:
    """Whether the kernel mounts images, by Apptainer's or Singularity's words on its installation: with a setuid
    starter, unless the configuration asks for squashfuse. Since 1.3 Apptainer leaves that open by default. None where
    unknown.
    """
    try:
        printed = run_program([container, "buildcfg"], BUILDCFG_S)
    except (OSError, TimeoutExpired):
        return None
    built = dict(line.split("=", 1) for line in printed.stdout.splitlines() if "=" in line)
    kind = "SINGULARITY" if "SINGULARITY_SUID_INSTALL" in built else "APPTAINER"
    if f"{kind}_SUID_INSTALL" not in built:
        return None
    starter = Path(built.get("LIBEXECDIR", "")) / kind.lower() / "bin" / "starter-suid"
    if built[f"{kind}_SUID_INSTALL"] != "1" or not starter.is_file():
        return False  # the package with the setuid starter is another one
    return True if kind == "SINGULARITY" else _squashfs_by_kernel(Path(built.get("APPTAINER_CONF_FILE", "")))


def _squashfs_by_kernel(configuration: Path) -> bool | None:
    """Whether Apptainer with a setuid starter has the kernel mount images."""
    try:
        text = configuration.read_text(errors="replace")
    except OSError:
        return None
    allowed = re.search(r"^\s*allow setuid-mount squashfs\s*=\s*(\w+)", text, re.MULTILINE)
    return {"yes": True, "no": False}.get(allowed[1]) if allowed else None


def module_of(prefix: str, loaded: tuple[str, ...]) -> str | None:
    """The loaded module, as ``python/3.12.1``, whose version and name stand in a Python's folder."""
    parts = Path(prefix.lower()).parts

    def has_both(module: str) -> bool:
        name, _, version = module.lower().partition("/")
        return bool(version) and all(any(word in part for part in parts) for word in (version, name))

    return next(filter(has_both, loaded), None)


def _filesystems() -> list[Filesystem]:
    """Filesystems of all places, the first on each mount point; one that does not answer is left out."""
    filesystems: dict[str, Filesystem] = {}
    for path in (Path(os.environ[name]) for name in PLACES if os.environ.get(name)):
        is_temporary = any(path.is_relative_to(folder) for folder in TEMPORARY)
        if path.is_dir() and os.access(path, os.W_OK) and not is_temporary:
            with suppress(OSError):
                seen = filesystem(path)
                filesystems.setdefault(seen.mount_point, seen)
    return list(filesystems.values())
