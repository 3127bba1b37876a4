#!/usr/bin/env bash
# The main job, on this machine alone: a control plane starts, a node joins it and comes up.
#
# Everything lives in a temporary directory and on free ports. With a terminal on stdin the demo
# stays until Ctrl-C; without one it ends by itself, with 0 once the node was shown connected and 1
# if that took more than 60 s after the build. Only processes started here are ended.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
bcd=$PWD/dist/bcd_${version}_linux_amd64
if [[ $(uname -m) == aarch64 ]]; then
  bcd=$PWD/dist/bcd_${version}_linux_arm64
  arch=arm64
fi
better_compute=$PWD/target/operator/better-compute

echo "building bcd (static) and better-compute; the first time takes some minutes"
tools/build.sh "${arch:-amd64}"

directory=$(mktemp -d "${TMPDIR:-/tmp}/bcd-demo.XXXXXX")
plane='' node=''
# shellcheck disable=SC2329  # called by the trap
clean_up() {
  local code=$?
  trap - EXIT INT TERM
  [[ -z $node ]] || kill "$node" 2>/dev/null || true
  [[ -z $node ]] || wait "$node" 2>/dev/null || true
  [[ -z $plane ]] || kill "$plane" 2>/dev/null || true
  [[ -z $plane ]] || wait "$plane" 2>/dev/null || true
  rm -rf "$directory"
  exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

deadline=$((SECONDS + 60))
fail() {
  echo "demo: $1" >&2
  for log in "$directory"/*.log; do
    [[ -s $log ]] || continue
    echo "--- ${log##*/}, the last lines:" >&2
    tail -n 20 "$log" >&2
  done
  exit 1
}
# await WHAT PROCESS COMMAND...: until the command succeeds, the process has died or the time is up.
await() {
  local what=$1 process=$2
  shift 2
  until "$@"; do
    kill -0 "$process" 2>/dev/null || fail "the process ended while waiting for $what"
    ((SECONDS < deadline)) || fail "$what took more than 60 s"
    sleep 0.1
  done
}
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }
[[ -t 1 ]] || say() { printf '\n$ %s\n' "$*"; }

dev=$directory/dev
mkdir "$dev"
say better-compute dev --dir "$dev"
"$better_compute" dev --dir "$dev" --gateway 127.0.0.1:0 --http 127.0.0.1:0 < /dev/null > "$directory/better-compute.log" 2>&1 &
plane=$!
await "the control plane" "$plane" test -s "$dev/dev.json"
echo "serving: $(tr -d ' \n' < "$dev/dev.json")"

# The control plane wrote a configuration for a node on this host; the demo's node keeps its state here.
mkdir "$directory/node"
cp "$dev/node/join-encryption.jwk" "$directory/node/"
{
  echo "data_dir = \"$directory/node/data\""
  echo "socket_path = \"$directory/node/bcd.sock\""
  grep -vE '^(data_dir|socket_path) *=' "$dev/node/config.toml"
} > "$directory/node/config.toml"
chmod 600 "$directory/node/config.toml"
config=$directory/node/config.toml

say better-compute tokens create --pool demo --site dev --dir "$dev"
token=$("$better_compute" tokens create --pool demo --site dev --dir "$dev" --json | sed -n 's/.*"token": *"\([^"]*\)".*/\1/p')
[[ -n $token ]] || fail "no join token was made"
echo "${token%%.*}.(secret)"

list() { "$better_compute" nodes list --dir "$dev"; }
shown=''
# Shows the list whenever the node's state has changed; true once it is the state asked for.
reached() {
  local now state
  now=$(list) || return 1
  state=$(grep -oE '\b(joining|adopting|connected|disconnected)\b' <<< "$now" | head -n 1 || true)
  if [[ -n $state && $state != "$shown" ]]; then
    shown=$state
    say better-compute nodes list --dir "$dev"
    echo "$now"
  fi
  [[ $state == "$1" ]]
}

say BCD_JOIN_TOKEN=... bcd join --config "$config"
BCD_JOIN_TOKEN=$token "$bcd" join --config "$config" < /dev/null 2>&1 || fail "bcd join failed"
await "the node to be listed" "$plane" reached joining

say bcd node --config "$config"
"$bcd" node --config "$config" < /dev/null > "$directory/bcd-node.log" 2>&1 &
node=$!
await "the node to be connected" "$node" reached connected

node_id=$(list | grep -oE 'node_[0-9a-z]{26}' | head -n 1)
say better-compute commands run "$node_id" node.facts --wait --dir "$dev"
timeout 60 "$better_compute" commands run "$node_id" node.facts --wait --dir "$dev" 2>&1 | cut -c 1-160 || fail "the command did not succeed"

cat <<NEXT

The node is connected, and did what it was asked. Try in another terminal:

  export BETTER_COMPUTE_DIR=$dev
  $better_compute nodes watch
  $better_compute commands run $node_id logs.collect --param unit=ssh.service --wait
  $better_compute events $node_id
  $better_compute tokens create --pool demo --site dev --ttl 10m
  $better_compute tokens list
  $bcd join --config $config      # answers "already joined as ..."
  tail -f $directory/bcd-node.log
NEXT
if [[ -t 0 ]]; then
  echo
  echo "Ctrl-C ends the demo and removes $directory."
  trap 'exit 0' INT
  wait "$node" || fail "bcd node ended"
fi
