#!/bin/bash
# Installs Apptainer on Debian or Ubuntu, as root.
# usage: containers/install_apptainer.sh [PREFIX]        (default prefix: /opt/apptainer)
#
# Where the distribution has the package, that is installed. Debian 12 has none: there the package of Debian's development
# branch is unpacked into PREFIX, beside the C library that it was built with, and nothing else of the system changes.
# Users who are to build images or mount SIF files need a range of subordinate ids; name them in APPTAINER_USERS.
set -euo pipefail

PREFIX=${1:-/opt/apptainer}
APPTAINER=$PREFIX/usr/bin/apptainer
HELPERS=(ca-certificates debootstrap fakeroot fuse-overlayfs fuse3 libseccomp2 libsqlite3-0 patchelf squashfs-tools squashfuse uidmap)
LIBRARIES=(ld-linux-x86-64 libc libm libpthread libdl libresolv librt libnss_dns libnss_files)

fail() { echo "install_apptainer: $*" >&2; exit 1; }

apt_install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }

# The mirror that this machine's own sources name most often.
debian_mirror() {
  apt-get indextargets --format '$(REPO_URI)' | grep '/debian/*$' | sort | uniq -c | sort -rn | awk 'NR == 1 {print $2}'
}

# Downloads packages of other Debian releases into the current folder, without touching the system's package lists.
download_from_other_releases() { # PACKAGE/RELEASE...
  local mirror lists=$PWD/apt
  mirror=$(debian_mirror)
  [ -n "$mirror" ] || fail "apt knows no Debian mirror"
  mkdir -p "$lists"/{state/lists/partial,cache/archives/partial}
  : > "$lists/state/status"
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$mirror" trixie "$mirror" sid > "$lists/sources.list"
  cat > "$lists/apt.conf" <<CONF
Dir::Etc::sourcelist "$lists/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State "$lists/state";
Dir::State::status "$lists/state/status";
Dir::Cache "$lists/cache";
APT::Sandbox::User "root";
CONF
  APT_CONFIG=$lists/apt.conf apt-get update -qq
  APT_CONFIG=$lists/apt.conf apt-get download -qq "$@"
}

# Apptainer finds its own files from where its programs lie: one looks under usr/, the other under usr/lib/.
link_configuration() {
  local folder
  for folder in etc var; do
    ln -sfn "../$folder" "$PREFIX/usr/$folder"
    ln -sfn "../../$folder" "$PREFIX/usr/lib/$folder"
  done
}

use_own_c_library() { # PROGRAM...
  local program
  for program in "$@"; do
    patchelf --set-interpreter "$PREFIX/glibc/ld-linux-x86-64.so.2" "$program"
    patchelf --force-rpath --set-rpath "$PREFIX/glibc:/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu" "$program"
  done
}

install_into_prefix() {
  [ "$(dpkg --print-architecture)" = amd64 ] || fail "only x86-64 is supported where the distribution has no package"
  local work; work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  cd "$work"
  download_from_other_releases apptainer/sid libc6/trixie
  mkdir -p "$PREFIX/glibc" libc
  dpkg -x apptainer_*.deb "$PREFIX"
  dpkg -x libc6_*.deb libc
  local name
  for name in "${LIBRARIES[@]}"; do cp -a libc/usr/lib/x86_64-linux-gnu/"$name".so.* "$PREFIX/glibc/"; done
  link_configuration
  use_own_c_library "$APPTAINER" "$PREFIX/usr/lib/x86_64-linux-gnu/apptainer/bin/starter"
}

# A free range of 65,536 ids for each user, after the last range that is taken.
grant_subordinate_ids() { # USER...
  local user file start
  for user in "$@"; do
    for file in /etc/subuid /etc/subgid; do
      touch "$file"
      grep -q "^$user:" "$file" && continue
      start=$(awk -F: 'BEGIN {last = 999999} $2 + $3 - 1 > last {last = $2 + $3 - 1} END {print last + 1}' "$file")
      echo "$user:$start:65536" >> "$file"
    done
  done
}

[ "$(id -u)" = 0 ] || fail "run as root"
command -v apt-get >/dev/null || fail "this is neither Debian nor Ubuntu; see https://apptainer.org/docs/admin/latest/installation.html"
if [ ! -x "$APPTAINER" ] && ! command -v apptainer >/dev/null; then
  apt-get update -qq
  if apt-cache show apptainer >/dev/null 2>&1; then
    apt_install apptainer "${HELPERS[@]}"
  else
    apt_install "${HELPERS[@]}"
    (install_into_prefix)
  fi
fi
# shellcheck disable=SC2086
grant_subordinate_ids root ${APPTAINER_USERS:-}
# Ordinary users mount SIF files through FUSE; some machines keep the device to root.
[ ! -e /dev/fuse ] || chmod a+rw /dev/fuse
[ -x "$APPTAINER" ] || APPTAINER=$(command -v apptainer)
"$APPTAINER" --version
echo "$APPTAINER"
