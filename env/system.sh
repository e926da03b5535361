# What the system must have before an environment can be made: a Python with its headers, a C++ compiler, a recent C library,
# and for the CPU environment libnuma, without which vLLM's kernels for CPUs do not load.
# What is needed is looked for itself, not its package: packages have other names on each system, and modules and Pythons
# of one's own have none. To be sourced by common.sh.
OS_RELEASE=/etc/os-release
SYSTEM_PYTHON=/usr/bin/python3
LIBNUMA=libnuma.so.1
OLDEST_GLIBC=2.31 # llguidance, which vLLM needs, has wheels from there on; on older ones it wants a Rust compiler
OLDEST_GLIBC_ARM=2.34 # the same on aarch64, for tilelang
CONTAINER_INSTEAD="use an Apptainer image instead: containers/cuda.def, or containers/cpu.def for nodes without a GPU"
WITHOUT_ROOT="without root: \`python3 -m pip install --user uv && uv python install 3.12\`, then \
\`PYTHON=\$(uv python find 3.12) env/setup\` (that Python has headers and venv), and for a compiler \`module load gcc\`; or $CONTAINER_INSTEAD"

# A Python that the locks are made for, the system's before a user's own: other users must be able to run it.
find_python() {
  local python
  for python in ${PYTHON:-} "$SYSTEM_PYTHON" "$SYSTEM_PYTHON".1{3,2,1} python3 python3.1{3,2,1}; do
    command -v "$python" >/dev/null && is_locked_for "$python" && { command -v "$python"; return; }
  done
  return 1
}

is_locked_for() { # PYTHON
  local version; version=$(python_version "$1") && [[ " $PYTHONS " == *" $version "* ]]
}

python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; } # PYTHON

has_headers() { "$1" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; }
has_libnuma() { "$1" -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$LIBNUMA" 2>/dev/null; } # PYTHON
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# A compiler without its C++ half, or without the library's headers, is of no use. Its input is no pipe: with pipefail, the writer
# of a pipe that the compiler leaves before it has read all would count as a compiler that failed.
has_compiler() {
  local compiler
  for compiler in ${CXX:-} g++ c++ clang++; do
    command -v "$compiler" >/dev/null && "$compiler" -x c++ -fsyntax-only - 2>/dev/null <<< '#include <vector>' && return
  done
  return 1
}

# What is missing for an environment (cpu, cuda), a word a line: python, venv, headers, libnuma, compiler.
missing_parts() { # KIND
  local python
  if python=$(find_python); then
    has_venv "$python" || echo venv
    has_headers "$python" || echo headers
    [ "$1" != cpu ] || has_libnuma "$python" || echo libnuma
  else
    printf '%s\n' python venv headers
    [ "$1" != cpu ] || echo libnuma
  fi
  has_compiler || echo compiler
}

# apt, dnf or zypper, by what the system says it is or is like; nothing for others.
package_manager() {
  local ID="" ID_LIKE="" word
  # shellcheck disable=SC1090
  [ ! -r "$OS_RELEASE" ] || . "$OS_RELEASE"
  for word in $ID $ID_LIKE; do
    case $word in
      debian | ubuntu) echo apt; return ;;
      rhel | fedora | centos | rocky | almalinux) echo dnf; return ;;
      suse | sles | opensuse*) echo zypper; return ;;
    esac
  done
}

# The packages that bring missing parts for a Python such as 3.12, a name a line.
# The system's own Python has packages without a number in their names on all but SUSE.
package_names() { # MANAGER VERSION SYSTEM_VERSION PARTS...
  local manager=$1 name=python$2 part; [ "$2" != "$3" ] || name=python3
  [ "$manager" != zypper ] || name=python${2/./}
  shift 3
  for part in "$@"; do
    case $manager-$part in
      *-python) echo "$name" ;;
      apt-venv) echo "$name-venv" ;;
      apt-headers) echo "$name-dev" ;;
      apt-compiler) echo g++ ;;
      apt-libnuma | zypper-libnuma) echo libnuma1 ;;
      dnf-libnuma) echo numactl-libs ;;
      dnf-venv) echo "$name-libs" ;;
      zypper-venv) echo "$name-base" ;;
      *-headers) echo "$name-devel" ;;
      *-compiler) echo gcc-c++ ;;
    esac
  done
}

# What those packages are called here. Where no Python will do, 3.11 is asked for, which RHEL, SLES and Ubuntu offer beside an older
# one of their own; where there is none at all, Debian's and Ubuntu's own.
missing_packages() { # MANAGER PARTS...
  local python version=3.11 system manager=$1; shift
  system=$(python_version "$SYSTEM_PYTHON" 2>/dev/null || true)
  [ "$manager" != apt ] || system=${system:-$version}
  if python=$(find_python); then version=$(python_version "$python"); fi
  package_names "$manager" "$version" "$system" "$@" | sort -u | paste -sd ' '
}

install_command() { # MANAGER
  case $1 in
    apt) echo "apt-get install -y --no-install-recommends" ;;
    dnf) echo "dnf install -y" ;;
    zypper) echo "zypper --non-interactive install" ;;
  esac
}

# Where a library can come from without the system's packages.
without_package() { # PARTS...
  [[ " $* " != *" libnuma "* ]] ||
    echo "; a libnuma.so.1 of your own (conda has the package libnuma) also serves, with its folder in LD_LIBRARY_PATH here and in the site profile's environment"
}

describe() { # PARTS...
  local part words=() text
  for part in "$@"; do
    case $part in
      python) words+=("a Python of the versions $PYTHONS") ;;
      venv) words+=("Python's modules venv and ensurepip") ;;
      headers) words+=("Python's headers (Python.h)") ;;
      compiler) words+=("a C++ compiler") ;;
      libnuma) words+=("the library libnuma") ;;
    esac
  done
  printf -v text '; %s' "${words[@]}"
  echo "${text:2}"
}

# Looks for all that is needed; as root, installs what is missing, and otherwise names it.
need_system() { # KIND
  local parts manager packages
  mapfile -t parts < <(missing_parts "$1")
  [ ${#parts[@]} -gt 0 ] || return 0
  manager=$(package_manager)
  [ -n "$manager" ] || fail "the system lacks $(describe "${parts[@]}"); ask its administrators for them; $WITHOUT_ROOT$(without_package "${parts[@]}")"
  packages=$(missing_packages "$manager" "${parts[@]}")
  [ "$(id -u)" = 0 ] || fail "the system lacks $(describe "${parts[@]}"); ask for: $(install_command "$manager") $packages; $WITHOUT_ROOT$(without_package "${parts[@]}")"
  install_packages "$manager" "$packages"
  mapfile -t parts < <(missing_parts "$1")
  [ ${#parts[@]} = 0 ] || fail "the system lacks $(describe "${parts[@]}") even with $packages; $WITHOUT_ROOT$(without_package "${parts[@]}")"
}

install_packages() { # MANAGER PACKAGES
  step "installing $2"
  [ "$1" != apt ] || apt-get update -qq
  # shellcheck disable=SC2046,SC2086
  DEBIAN_FRONTEND=noninteractive $(install_command "$1") $2 >/dev/null || fail "the packages could not be installed: $(install_command "$1") $2; $WITHOUT_ROOT"
}

need_machine() { # KIND
  local oldest=$OLDEST_GLIBC
  case "$(uname -m) $1" in
    x86_64\ *) ;;
    aarch64\ cuda) oldest=$OLDEST_GLIBC_ARM ;;
    aarch64\ *) fail "this machine is aarch64, for which vLLM has no CPU build in the locks; env/setup cuda works here" ;;
    *) fail "this machine is $(uname -m), and the environments are locked for x86_64, and for aarch64 with CUDA" ;;
  esac
  local glibc; glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d ' ' -f 2 || true)
  [ -n "$glibc" ] || fail "this system has no GNU C library, which the locked packages are built for; $CONTAINER_INSTEAD"
  [ "$(printf '%s\n' "$oldest" "$glibc" | sort -V | head -n 1)" = "$oldest" ] ||
    fail "this system's C library is glibc $glibc, and needed packages have no builds for any before $oldest; $CONTAINER_INSTEAD"
}

# The browser of the tests of the report's page. As root on Debian it is installed; without it those tests are skipped, or fail
# where MRT_HPC_TEST_BROWSER is "required", as in CI.
want_browser() {
  local packages="chromium chromium-driver" needs="the tests of the report's page need chromium and chromedriver"
  if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then return; fi
  if [ "$(id -u)" = 0 ] && grep -qx 'ID=debian' "$OS_RELEASE"; then
    (install_packages apt "$packages") && return
  fi
  [ "${MRT_HPC_TEST_BROWSER:-}" != required ] || fail "$needs, and MRT_HPC_TEST_BROWSER=required forbids to skip them"
  step "$needs (Debian: $packages), and will be skipped"
}
