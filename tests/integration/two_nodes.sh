# Two nodes on one machine: network namespaces, joined by a cable, of which each resolves its own name to 127.0.1.1.
# usage: unshare --user --net --mount --uts --map-root-user bash two_nodes.sh FOLDER COMMAND...
# The command runs on each, with the number of its node behind it. FOLDER gets the output, and how each has ended.
set -eu
folder=$1
shift
node() { # its number, that of the other one, and the command
  hostname "node$1"
  printf '127.0.0.1 localhost\n127.0.1.1 node%s\n10.9.1.%s node%s\n' "$1" "$2" "$2" > "$folder/hosts$1"
  mount --bind "$folder/hosts$1" /etc/hosts
  ip link set lo up
  ip address add "10.9.1.$1/24" dev "cable$1" && ip link set "cable$1" up
  number=$1 && shift 2
  code=0 && "$@" "$number" > "$folder/out$number" 2>&1 || code=$?
  echo "$code" > "$folder/code$number"
}
export -f node
export folder
ip link add cable1 type veth peer name cable2
unshare --net --uts --mount bash -euc 'until [ -e "$folder/plugged" ]; do sleep 0.1; done; node 2 1 "$@"' node "$@" &
until [ "$(readlink "/proc/$!/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
ip link set cable2 netns "$!" && touch "$folder/plugged"
node 1 2 "$@"
wait
