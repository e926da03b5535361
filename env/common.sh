# What the scripts of this folder share; to be sourced, from the root of the checkout.
VENV=${MRT_HPC_VENV:-.venv}
PYTHONS="3.11 3.12 3.13" # the locks are made for these

step() { echo "[mrt-hpc] $*" >&2; }
fail() { echo "[mrt-hpc] error: $*" >&2; exit 1; }

. env/system.sh

ensure_venv() {
  [ ! -x "$VENV/bin/python" ] || is_locked_for "$VENV/bin/python" ||
    fail "$VENV has Python $(python_version "$VENV/bin/python"), and the locks are made for $PYTHONS; remove it, or name another: MRT_HPC_VENV=DIR env/setup"
  has_locked_uv && return
  local python; python=$(find_python) || fail "no Python of the versions $PYTHONS was found; $WITHOUT_ROOT"
  [ -x "$VENV/bin/python" ] || { step "making $VENV with $python"; "$python" -m venv "$VENV"; }
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r env/uv.txt ||
    fail "uv could not be installed as env/uv.txt has it: its version and its checksums"
}

has_locked_uv() { [ -x "$VENV/bin/uv" ] && [[ "$("$VENV/bin/uv" --version)" == "uv $(sed -n 's/^uv==\([^ ]*\).*/\1/p' env/uv.txt)"* ]]; }

# A setting of pip, from its variables and all its files (`pip config get` reads only one of them); nothing where it is not set.
pip_setting() { # NAME
  "$VENV/bin/python" -m pip config list | "$VENV/bin/python" -c '
import ast, sys
found = dict(line.rstrip("\n").split("=", 1) for line in sys.stdin if "=" in line)
values = (ast.literal_eval(found.get(f"{place}.{sys.argv[1]}", "\"\"")) for place in (":env:", "install", "global"))
print(*next(filter(None, values), "").split())' "$1"
}

# uv does not read pip's configuration: the index of packages and the certificates of pip are handed to uv.
follow_pip() {
  local index cert
  index=$(pip_setting index-url) cert=$(pip_setting cert)
  [ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
  [ -z "$cert" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$cert}
}

# uv keeps all that it has unpacked in a cache, by default in the home directory, where quotas are small. Below the environment, its
# files are links to the same ones, and env/setup removes them at its end. A cache that the user has chosen stays where it is.
keep_cache_off_home() {
  [ "$("$VENV/bin/uv" cache dir)" = "${HOME:-}/.cache/uv" ] || return 0
  export UV_CACHE_DIR=$PWD/$VENV/uv-cache
  case $VENV in /*) UV_CACHE_DIR=$VENV/uv-cache ;; esac
  step "uv's cache is $UV_CACHE_DIR until the end; to keep one for other environments: UV_CACHE_DIR=DIR env/setup cuda"
}

# The entry of one package in a lock, with its checksums.
entry() { awk -v name="$1==" 'index($0, name) == 1 {found = 1} found {print} found && !/\\$/ {found = 0}' "$2"; } # PACKAGE LOCK

# The one place that uv takes the CPU build of torch from, for the environment's Python: a folder that pip is configured with, or
# PyTorch's own index. One option a line. No other package comes from there.
torch_source() {
  local links=() folder tag
  tag=$("$VENV/bin/python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  read -r -a links <<< "$(pip_setting find-links)"
  for folder in "${links[@]}"; do
    compgen -G "$folder/torch-*+cpu-$tag-*.whl" >/dev/null && { printf '%s\n' --no-index --find-links "$folder"; return; }
  done
  printf '%s\n' --default-index "$(grep -v '^#' env/index)"
}
