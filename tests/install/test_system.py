"""What env/setup needs of a system is looked for itself, and named as packages of that system: with recorded os-release
files, a Python that lacks parts, and programs that write down how they were called.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest
from install_support import REPOSITORY
from tables import tables

TABLES = tables("system")

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


BASH = shutil.which("bash")


@dataclass(frozen=True)
class System:
    """A make-believe system: its programs, and what it says it is. It begins without Python, compiler and package
    manager, and is used by an ordinary user.
    """

    root: Path

    def __post_init__(self) -> None:
        self.programs.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.programs / tool).symlink_to(found)
        self.is_(ARCH, 1000)

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

    def program(self, name: str, script: str, folder: Path | None = None) -> None:
        file = (folder or self.programs) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_text(f"#!{BASH}\n{script}\n")
        file.chmod(0o755)

    def is_(self, release: str, user: int = 1000) -> None:
        (self.root / "os-release").write_text(release)
        self.program("id", f"echo {user}")

    def compiler(self) -> None:
        self.program("g++", f'PATH={os.environ["PATH"]} exec {shutil.which("g++")} "$@"')

    def python(self, *lacks: str) -> None:
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
        self.program("python3", "echo 3.9", self.system_python.parent)

    def setup(self, function: str = "need_system cpu", libnuma: str = "libc.so.6") -> subprocess.CompletedProcess[str]:
        where = f"OS_RELEASE={self.root}/os-release SYSTEM_PYTHON={self.system_python} LIBNUMA={libnuma}"
        script = f"set -euo pipefail; . env/common.sh; {where}; {function}"
        environment = {"PATH": str(self.programs), "HOME": str(self.root)}
        command = [str(BASH), "-c", script]
        return subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60, check=False
        )


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_a_system_that_has_all_is_asked_for_nothing(system: System) -> None:
    system.python()
    system.compiler()
    done = system.setup()
    assert (done.returncode, done.stderr) == (0, "")


APT = "apt-get install -y --no-install-recommends "
ZYPPER = "zypper --non-interactive install gcc-c++ "


@pytest.mark.parametrize("release", [DEBIAN, UBUNTU, MINT, ROCKY, FEDORA, SLES, TUMBLEWEED])
def test_missing_parts_are_named_as_packages_of_the_system(system: System, release: str) -> None:
    asked = {
        **dict.fromkeys((DEBIAN, UBUNTU, MINT), f"{APT}g++ python3-dev python3-venv;"),
        **dict.fromkeys((ROCKY, FEDORA), "dnf install -y gcc-c++ python3-devel python3-libs;"),
        **dict.fromkeys((SLES, TUMBLEWEED), f"{ZYPPER}python{THIS.replace('.', '')}-base"),
    }[release]
    system.is_(release)
    system.python("Python.h", "ensurepip")
    done = system.setup()
    assert done.returncode == 1
    for words in (asked, "Python.h", "uv python install", "containers/cuda.def"):
        assert words in done.stderr


@pytest.mark.parametrize(("release", "asked"), [
    (UBUNTU, "g++ libnuma1 python3.11 python3.11-dev python3.11-venv;"),
    (RHEL, "dnf install -y gcc-c++ numactl-libs python3.11 python3.11-devel python3.11-libs;"),
    (SLES, f"{ZYPPER}libnuma1 python311 python311-base python311-devel;"),
])  # fmt: skip
def test_beside_an_old_python_a_newer_one_is_asked_for(system: System, release: str, asked: str) -> None:
    system.is_(release)
    system.old_python()
    assert asked in system.setup().stderr


def test_a_debian_without_python_is_asked_for_its_own_and_an_unknown_system_for_no_package(system: System) -> None:
    system.is_(DEBIAN)
    assert "g++ libnuma1 python3 python3-dev python3-venv;" in system.setup().stderr
    system.is_(ARCH)
    system.python("Python.h")
    assert "Python's headers (Python.h); a C++ compiler; ask its administrators" in system.setup().stderr


@pytest.mark.parametrize("brings", [True, False])
def test_root_installs_what_is_missing_and_looks_again(system: System, brings: bool) -> None:
    system.is_(ROCKY, 0)
    system.python()
    compiler = system.programs / "g++"
    made = f'echo "#!{BASH}" > {compiler}; /bin/chmod +x {compiler}' if brings else "true"
    system.program("dnf", f'echo "$@" > {system.calls}; {made}')
    done = system.setup()
    assert system.calls.read_text() == "install -y gcc-c++\n"
    assert done.returncode == (0 if brings else 1), done.stderr
    assert ("lacks a C++ compiler even with gcc-c++" in done.stderr) is not brings


@pytest.mark.parametrize(("release", "package"), [(DEBIAN, "libnuma1"), (ROCKY, "numactl-libs"), (SLES, "libnuma1")])
def test_libnuma_is_needed_for_the_cpu_environment_alone(system: System, release: str, package: str) -> None:
    system.is_(release)
    system.python()
    system.compiler()
    assert f" {package};" in system.setup(libnuma="libnone.so.1").stderr
    assert system.setup("need_system cuda", libnuma="libnone.so.1").returncode == 0


def test_a_compiler_without_its_library_counts_as_missing(system: System) -> None:
    system.python()
    system.program("g++", "echo 'vector: No such file or directory' >&2; exit 1")
    assert "lacks a C++ compiler;" in system.setup().stderr


@pytest.mark.parametrize(("machine", "kind", "glibc", "refused"), TABLES["machines"])
def test_a_machine_without_wheels_is_refused(system: System, machine: str, kind: str, glibc: str, refused: str) -> None:
    system.program("uname", f"echo {machine}")
    if glibc:
        system.program("getconf", f"echo {glibc}")
    done = system.setup(f"need_machine {kind}")
    assert bool(done.returncode) is bool(refused)
    assert refused in done.stderr
    assert "containers/cuda.def" in done.stderr or not refused.startswith("is glibc")


def test_an_environment_of_another_python_is_not_taken_for_one_of_ours(system: System) -> None:
    system.old_python()
    system.program("python", "echo 3.9", system.root / "old" / "bin")
    assert "old has Python 3.9" in system.setup(f"VENV={system.root}/old; ensure_venv").stderr


def test_the_browser_of_tests_is_installed_on_debian_or_its_absence_told(system: System) -> None:
    """Ubuntu's package chromium is none, but a snap."""
    system.program("apt-get", f'echo "$@" >> {system.calls}')
    for release, user, installs in ((DEBIAN, 0, True), (DEBIAN, 1000, False), (UBUNTU, 0, False)):
        system.calls.unlink(missing_ok=True)
        system.is_(release, user)
        done = system.setup("want_browser")
        assert done.returncode == 0, done.stderr
        called = system.calls.read_text() if system.calls.exists() else ""
        assert ("install -y --no-install-recommends chromium chromium-driver" in called) == installs
        assert ("will be skipped" in done.stderr) != installs
    required = system.setup("MRT_HPC_TEST_BROWSER=required; want_browser")
    assert required.returncode != 0 and "forbids to skip them" in required.stderr


@pytest.mark.parametrize(("asked", "chosen", "used"), [
    ("{home}/.cache/uv", "", "{venv}/uv-cache"),
    ("/scratch/me/uv", "", ""),
    ("/scratch/me/uv", "/scratch/me/uv", "/scratch/me/uv"),
], ids=["the default", "uv.toml or XDG_CACHE_HOME", "UV_CACHE_DIR"])  # fmt: skip
def test_the_cache_of_uv_stays_out_of_the_home(system: System, asked: str, chosen: str, used: str) -> None:
    venv = system.root / "venv"
    system.program("uv", f"echo {asked.format(home=system.root)}", venv / "bin")
    done = system.setup(f"UV_CACHE_DIR={chosen}; VENV={venv}; keep_cache_off_home; echo $UV_CACHE_DIR")
    assert (done.returncode, done.stdout.strip()) == (0, used.format(venv=venv)), done.stderr
