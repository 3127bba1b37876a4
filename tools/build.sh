#!/usr/bin/env bash
# Builds what the demo, the tests and the benches run: the static bcd and better-compute.
#
#   tools/build.sh [--programs|--tests] [amd64|arm64]...     amd64 when no architecture is named
#
# --programs builds what the labs run: every program and example of the workspace. --tests compiles the Rust tests too,
# in the same go, so that better-compute and the tests share every dependency, and target/fakehw/bcd, which notes a
# reboot instead of doing it. The static builds run beside cargo's: their last step, the linker's whole-program
# optimisation, keeps one core busy and leaves the other idle.
set -euo pipefail
cd "$(dirname "$0")/.."

what=(--bin better-compute)
fakehw=0
case ${1:-} in
  --programs)
    what=(--workspace --bins --examples)
    shift
    ;;
  --tests)
    what=(--workspace --bins --tests --lib --examples)
    fakehw=1
    shift
    ;;
esac
[[ $# -gt 0 ]] || set -- amd64

tools/static.sh "$@" &
static=$!
trap 'kill "$static" 2>/dev/null || true' EXIT
operator=0
if [[ $fakehw -eq 1 ]]; then
  cargo build --locked --quiet --profile operator --features control-plane,fakehw --bin bcd || operator=$?
  [[ $operator -ne 0 ]] || install -D target/operator/bcd target/fakehw/bcd
fi
cargo build --locked --quiet --profile operator --features control-plane "${what[@]}" || operator=$?
trap - EXIT
wait "$static" || { echo "build: the static build failed" >&2; exit 1; }
[[ $operator -eq 0 ]] || { echo "build: better-compute did not build" >&2; exit 1; }
