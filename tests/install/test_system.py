"""What env/setup needs of a system is looked for itself, and named as packages of that system: with recorded os-release
files, a Python that lacks parts, and programs that write down how they were called.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest
from install_support import REPOSITORY

TOOLS = ("bash", "cut", "dirname", "env", "grep", "head", "paste", "sort", "uname")
DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n'
UBUNTU = 'NAME="Ubuntu"\nVERSION_ID="22.04"\nID=ubuntu\nID_LIKE=debian\n'
MINT = "NAME='Linux Mint'\nID=linuxmint\nID_LIKE='ubuntu debian'\n"
ROCKY = 'NAME="Rocky Linux"\nVERSION="9.4 (Blue Onyx)"\nID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n'
RHEL = 'NAME="Red Hat Enterprise Linux"\nID="rhel"\nID_LIKE="fedora"\nVERSION_ID="9.4"\n'
FEDORA = 'NAME="Fedora Linux"\nID=fedora\nVERSION_ID=40\n'
SLES = 'NAME="SLES"\nVERSION="15-SP6"\nID="sles"\nID_LIKE="suse"\n'
TUMBLEWEED = 'NAME="openSUSE Tumbleweed"\nID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n'
ARCH = 'NAME="Arch Linux"\nID=arch\n'
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class System:
    """A make-believe system: its programs, and what it says it is."""

    root: Path

    @property
    def programs(self) -> Path:
        return self.root / "bin"

    @property
    def calls(self) -> Path:
        """What its package manager was asked for."""
        return self.root / "calls"

    @property
    def system_python(self) -> Path:
        return self.root / "usr" / "bin" / "python3"

    def program(self, name: str, script: str) -> None:
        file = self.programs / name
        file.write_text(f"#!{shutil.which('bash')}\n{script}\n")
        file.chmod(0o755)

    def user(self, number: int) -> None:
        self.program("id", f"echo {number}")

    def compiler(self) -> None:
        compiler = shutil.which("g++")
        assert compiler
        self.program("g++", f'PATH={os.environ["PATH"]} exec {compiler} "$@"')

    def python(self, *, lacks: tuple[str, ...] = ()) -> None:
        """This very Python in another place: with what is linked there, and no more."""
        self.system_python.parent.mkdir(parents=True)
        shutil.copy(Path(sys.executable).resolve(), self.system_python)
        library = self.root / "usr" / "lib" / f"python{THIS}"
        library.mkdir(parents=True)
        for part in Path(sysconfig.get_path("stdlib")).iterdir():
            if part.name not in lacks:
                (library / part.name).symlink_to(part)
        if "Python.h" not in lacks:
            headers = self.root / "usr" / "include" / f"python{THIS}"
            headers.parent.mkdir()
            headers.symlink_to(sysconfig.get_path("include"))

    def old_python(self) -> None:
        """As RHEL 9 and SLES 15 have it."""
        self.system_python.parent.mkdir(parents=True)
        self.system_python.write_text(f"#!{shutil.which('bash')}\necho 3.9\n")
        self.system_python.chmod(0o755)

    def setup(self, function: str = "need_system cpu", libnuma: str = "libc.so.6") -> subprocess.CompletedProcess[str]:
        where = f"OS_RELEASE={self.root}/os-release SYSTEM_PYTHON={self.system_python} LIBNUMA={libnuma}"
        script = f"set -euo pipefail; . env/common.sh; {where}; {function}"
        bash = shutil.which("bash")
        assert bash
        environment = {"PATH": str(self.programs), "HOME": str(self.root)}
        return subprocess.run(
            [bash, "-c", script],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def system(tmp_path: Path) -> System:
    """One without Python, compiler and package manager, used by an ordinary user."""
    system = System(tmp_path)
    system.programs.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (system.programs / tool).symlink_to(found)
    system.user(1000)
    (tmp_path / "os-release").write_text(ARCH)
    return system


def test_a_system_that_has_all_is_asked_for_nothing(system: System) -> None:
    system.python()
    system.compiler()
    done = system.setup()
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("release", "asked"),
    [
        (DEBIAN, "apt-get install -y --no-install-recommends g++ python3-dev python3-venv;"),
        (UBUNTU, "apt-get install -y --no-install-recommends g++ python3-dev python3-venv;"),
        (MINT, "apt-get install -y --no-install-recommends g++ python3-dev python3-venv;"),
        (ROCKY, "dnf install -y gcc-c++ python3-devel python3-libs;"),
        (FEDORA, "dnf install -y gcc-c++ python3-devel python3-libs;"),
        (SLES, f"zypper --non-interactive install gcc-c++ python{THIS.replace('.', '')}-base"),
        (TUMBLEWEED, f"zypper --non-interactive install gcc-c++ python{THIS.replace('.', '')}-base"),
    ],
)
def test_missing_parts_are_named_as_packages_of_the_system(system: System, release: str, asked: str) -> None:
    (system.root / "os-release").write_text(release)
    system.python(lacks=("Python.h", "ensurepip"))
    done = system.setup()
    assert done.returncode == 1
    assert asked in done.stderr
    assert "Python.h" in done.stderr
    assert "uv python install" in done.stderr
    assert "containers/cuda.def" in done.stderr


@pytest.mark.parametrize(
    ("release", "asked"),
    [
        (UBUNTU, "g++ libnuma1 python3.11 python3.11-dev python3.11-venv;"),
        (RHEL, "dnf install -y gcc-c++ numactl-libs python3.11 python3.11-devel python3.11-libs;"),
        (SLES, "zypper --non-interactive install gcc-c++ libnuma1 python311 python311-base python311-devel;"),
    ],
)
def test_beside_an_old_python_a_newer_one_is_asked_for(system: System, release: str, asked: str) -> None:
    (system.root / "os-release").write_text(release)
    system.old_python()
    assert asked in system.setup().stderr


def test_a_debian_without_python_is_asked_for_its_own(system: System) -> None:
    (system.root / "os-release").write_text(DEBIAN)
    assert "g++ libnuma1 python3 python3-dev python3-venv;" in system.setup().stderr


def test_an_unknown_system_is_told_what_is_missing_and_no_package(system: System) -> None:
    system.python(lacks=("Python.h",))
    done = system.setup()
    assert "lacks Python's headers (Python.h); a C++ compiler; ask its administrators" in done.stderr


def test_root_installs_what_is_missing(system: System) -> None:
    (system.root / "os-release").write_text(ROCKY)
    system.user(0)
    system.python()
    compiler = system.programs / "g++"
    system.program(
        "dnf", f'echo "$@" > {system.calls}; echo "#!{shutil.which("bash")}" > {compiler}; /bin/chmod +x {compiler}'
    )
    done = system.setup()
    assert done.returncode == 0, done.stderr
    assert system.calls.read_text() == "install -y gcc-c++\n"


def test_packages_that_do_not_bring_what_is_missing_end_the_setup(system: System) -> None:
    (system.root / "os-release").write_text(ROCKY)
    system.user(0)
    system.python()
    system.program("dnf", "true")
    done = system.setup()
    assert done.returncode == 1
    assert "lacks a C++ compiler even with gcc-c++" in done.stderr


@pytest.mark.parametrize(("release", "package"), [(DEBIAN, "libnuma1"), (ROCKY, "numactl-libs"), (SLES, "libnuma1")])
def test_libnuma_is_needed_for_the_cpu_environment_alone(system: System, release: str, package: str) -> None:
    (system.root / "os-release").write_text(release)
    system.python()
    system.compiler()
    done = system.setup(libnuma="libnone.so.1")
    assert "the system lacks the library libnuma; ask for: " in done.stderr
    assert f" {package};" in done.stderr
    assert system.setup("need_system cuda", libnuma="libnone.so.1").returncode == 0


def test_a_compiler_without_its_library_counts_as_missing(system: System) -> None:
    system.python()
    system.program("g++", "echo 'vector: No such file or directory' >&2; exit 1")
    assert "lacks a C++ compiler;" in system.setup().stderr


@pytest.mark.parametrize(
    ("machine", "glibc", "refused"),
    [
        ("x86_64", "2.28", True),
        ("x86_64", "2.30", True),
        ("x86_64", "2.31", False),
        ("x86_64", "2.39", False),
        ("aarch64", "2.31", True),
        ("aarch64", "2.34", False),
    ],
)
def test_a_c_library_without_wheels_is_refused(system: System, machine: str, glibc: str, refused: bool) -> None:
    on(system, machine)
    system.program("getconf", f"echo glibc {glibc}")
    done = system.setup("need_machine cuda")
    assert bool(done.returncode) is refused
    assert (f"is glibc {glibc}" in done.stderr) is refused
    assert ("containers/cuda.def" in done.stderr) is refused


def test_another_c_library_or_processor_is_refused(system: System) -> None:
    assert "no GNU C library" in system.setup("need_machine cpu").stderr  # no getconf, or one that knows no such name
    on(system, "aarch64")
    assert "this machine is aarch64" in system.setup("need_machine cpu").stderr
    on(system, "ppc64le")
    assert "this machine is ppc64le" in system.setup("need_machine cuda").stderr


def on(system: System, machine: str) -> None:
    """Let the machine have a processor of this kind."""
    (system.programs / "uname").unlink()
    system.program("uname", f"echo {machine}")


def test_an_environment_of_another_python_is_not_taken_for_one_of_ours(system: System) -> None:
    system.old_python()
    python = system.root / "old" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(system.system_python)
    assert "old has Python 3.9" in system.setup(f"VENV={system.root}/old; ensure_venv").stderr


@pytest.mark.parametrize(("wanted", "packages"), [("browser", "chromium chromium-driver"), ("sandbox", "bubblewrap")])
@pytest.mark.parametrize(
    ("release", "user", "installs"), [(DEBIAN, 0, True), (DEBIAN, 1000, False), (UBUNTU, 0, False)]
)
def test_what_some_tests_need_is_installed_on_debian_or_its_absence_told(
    system: System, release: str, user: int, installs: bool, wanted: str, packages: str
) -> None:
    """Ubuntu's package chromium is none, but a snap."""
    (system.root / "os-release").write_text(release)
    system.user(user)
    system.program("apt-get", f'echo "$@" >> {system.calls}')
    done = system.setup(f"want_{wanted}")
    assert done.returncode == 0, done.stderr
    called = system.calls.read_text() if system.calls.exists() else ""
    assert (f"install -y --no-install-recommends {packages}" in called) == installs
    assert ("will be skipped" in done.stderr) != installs


@pytest.mark.parametrize("wanted", ["browser", "sandbox"])
def test_where_it_is_required_its_absence_ends_the_setup(system: System, wanted: str) -> None:
    (system.root / "os-release").write_text(UBUNTU)
    done = system.setup(f"MRT_HPC_TEST_{wanted.upper()}=required; want_{wanted}")
    assert done.returncode != 0
    assert "forbids to skip them" in done.stderr


@pytest.mark.parametrize(
    ("asked", "chosen", "used"),
    [
        ("{home}/.cache/uv", "", "{venv}/uv-cache"),
        ("/scratch/me/uv", "", ""),
        ("/scratch/me/uv", "/scratch/me/uv", "/scratch/me/uv"),
    ],
    ids=["the default", "uv.toml or XDG_CACHE_HOME", "UV_CACHE_DIR"],
)
def test_the_cache_of_uv_stays_out_of_the_home(system: System, asked: str, chosen: str, used: str) -> None:
    venv = system.root / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "uv").write_text(f"#!{shutil.which('bash')}\necho {asked.format(home=system.root)}\n")
    (venv / "bin" / "uv").chmod(0o755)
    done = system.setup(f"UV_CACHE_DIR={chosen}; VENV={venv}; keep_cache_off_home; echo $UV_CACHE_DIR")
    assert (done.returncode, done.stdout.strip()) == (0, used.format(venv=venv)), done.stderr
