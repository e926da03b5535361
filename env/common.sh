# What the scripts of this folder share; to be sourced, from the root of the checkout.
VENV=${MRT_HPC_VENV:-.venv}
PYTHONS="3.11 3.12 3.13" # the locks are made for these

step() { echo "[mrt-hpc] $*" >&2; }
fail() { echo "[mrt-hpc] error: $*" >&2; exit 1; }

. env/system.sh

ensure_venv() {
  [ ! -x "$VENV/bin/python" ] || is_locked_for "$VENV/bin/python" ||
    fail "$VENV has Python $(python_version "$VENV/bin/python"), and the locks are made for $PYTHONS; remove it, or name another: MRT_HPC_VENV=DIR env/setup"
  [ -x "$VENV/bin/uv" ] && return
  local python; python=$(find_python) || fail "no Python of the versions $PYTHONS was found; $WITHOUT_ROOT"
  [ -x "$VENV/bin/python" ] || { step "making $VENV with $python"; "$python" -m venv "$VENV"; }
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check uv
}

# A setting of pip, from its variables and all its files (`pip config get` reads only one of them); nothing where it is not set.
pip_setting() { # NAME
  "$VENV/bin/python" -m pip config list | "$VENV/bin/python" -c '
import ast, sys
found = dict(line.rstrip("\n").split("=", 1) for line in sys.stdin if "=" in line)
values = (ast.literal_eval(found.get(f"{place}.{sys.argv[1]}", "\"\"")) for place in (":env:", "install", "global"))
print(*next(filter(None, values), "").split())' "$1"
}

# uv does not read pip's configuration: the index of packages and the certificates that pip is told are told to uv.
follow_pip() {
  local index cert
  index=$(pip_setting index-url) cert=$(pip_setting cert)
  [ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
  [ -z "$cert" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$cert}
}

# Where uv finds the CPU build of torch for the environment's Python: a folder that pip is configured with, or PyTorch's own index.
# One option a line.
torch_source() {
  local links=() folder tag
  tag=$("$VENV/bin/python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  read -r -a links <<< "$(pip_setting find-links)"
  for folder in "${links[@]}"; do
    compgen -G "$folder/torch-*+cpu-$tag-*.whl" >/dev/null && { printf '%s\n' --find-links "$folder"; return; }
  done
  printf '%s\n' --index "$(grep -v '^#' env/index)" --index-strategy unsafe-best-match
}
