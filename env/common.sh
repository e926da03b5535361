# What the scripts of this folder share; to be sourced, from the root of the checkout.
VENV=${MRT_HPC_VENV:-.venv}
PYTHONS="3.11 3.12 3.13" # the locks are made for these
OLDEST_GLIBC=2.31 # llguidance, which vLLM needs, has wheels from there on; on older ones it wants a Rust compiler

step() { echo "[mrt-hpc] $*" >&2; }
fail() { echo "[mrt-hpc] error: $*" >&2; exit 1; }

# System packages: installed as root on Debian and Ubuntu, named otherwise.
need_system() { # PACKAGE...
  local missing=()
  for package in "$@"; do dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    step "installing ${missing[*]}"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  else
    fail "the system lacks ${missing[*]}; ask for: apt-get install ${missing[*]}"
  fi
}

# A Python of at least 3.11 with venv, the system's before a user's own: other users must be able to run it.
find_python() {
  local python
  for python in ${PYTHON:-} /usr/bin/python3 /usr/bin/python3.1{3,2,1} python3; do
    command -v "$python" >/dev/null || continue
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' && { command -v "$python"; return; }
  done
  fail "no Python 3.11 or newer found; install one, or name it: PYTHON=/path/to/python3.11 env/setup"
}

ensure_venv() {
  [ -x "$VENV/bin/uv" ] && return
  local python; python=$(find_python)
  [ -x "$VENV/bin/python" ] || { step "making $VENV with $python"; "$python" -m venv "$VENV"; }
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check uv
}

# Where uv finds the CPU build of torch for the environment's Python: a folder that pip is configured with, or PyTorch's own index.
# One option a line.
torch_source() {
  local links=() folder tag
  tag=$("$VENV/bin/python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  read -r -a links <<< "$("$VENV/bin/python" -m pip config get global.find-links 2>/dev/null || true) ${PIP_FIND_LINKS:-}"
  for folder in "${links[@]}"; do
    compgen -G "$folder/torch-*+cpu-$tag-*.whl" >/dev/null && { printf '%s\n' --find-links "$folder"; return; }
  done
  printf '%s\n' --index "$(grep -v '^#' env/index)" --index-strategy unsafe-best-match
}
