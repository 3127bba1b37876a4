#!/usr/bin/env bash
# Fuzzes with libFuzzer: each target for FUZZ_SECONDS (default 60), so many at a time as there are processors.
#
#   FUZZ_SECONDS=600 tools/fuzz.sh [TARGET]...     all targets of fuzz/ when none is named
#
# What each says is in fuzz/logs; the end of it is shown when it has failed.
# The compiler is the one that builds everything else: what libFuzzer asks of it is marked unstable, and
# RUSTC_BOOTSTRAP opens that, as it does in tools/static.sh. AddressSanitizer watches where that compiler
# brings its runtime (rustup's does, Debian's does not). cargo-fuzz is built once, into target/tools.
# `cargo test --test fuzz` runs the same targets without libFuzzer, briefly, and belongs to `make test`.
# What is learnt stays in fuzz/corpus, which is not committed; an input that breaks a promise is kept in
# fuzz/artifacts: add it to fuzz/seeds with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${FUZZ_SECONDS:-60} jobs=$(nproc)
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "fuzz: FUZZ_SECONDS is no number of seconds: $seconds" >&2; exit 2; }
mapfile -t known < <(sed -n 's|^path = "fuzz_targets/\(.*\)\.rs"|\1|p' fuzz/Cargo.toml)
[[ $# -gt 0 ]] || set -- "${known[@]}"
for target in "$@"; do
  [[ " ${known[*]} " == *" $target "* ]] || { echo "fuzz: there is no target $target; there are: ${known[*]}" >&2; exit 2; }
done

export PATH=$PWD/target/tools/bin:$PATH
cargo fuzz --version >/dev/null 2>&1 || cargo install --quiet --locked --root target/tools cargo-fuzz@0.13.2
export RUSTC_BOOTSTRAP=1
host=$(rustc -vV | sed -n 's/^host: //p')
sanitizer=none
for runtime in "$(rustc --print sysroot)/lib/rustlib/$host/lib"/librustc*_rt.asan.a; do
  [[ ! -e $runtime ]] || sanitizer=address
done

mkdir -p fuzz/logs
echo "== ${#} targets, $seconds s each, $jobs at a time, sanitizer: $sanitizer"
for target in "$@"; do
  cargo fuzz build --sanitizer "$sanitizer" --target "$host" "$target"
done

# The second folder is only read. Inputs are small, so time and memory are judged sharply.
fuzz() {
  local target=$1
  mkdir -p "fuzz/corpus/$target"
  if cargo fuzz run --sanitizer "$sanitizer" --target "$host" "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
    -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=64 -print_final_stats=1 \
    > "fuzz/logs/$target.log" 2>&1; then
    echo "$target passed: $(sed -n 's/^stat::number_of_executed_units: *//p' "fuzz/logs/$target.log") inputs"
  else
    echo "$target FAILED"
    tail -n 60 "fuzz/logs/$target.log"
    return 1
  fi
}

# Each in a process group of its own, so that nothing of it outlives this script.
set -m
end() {
  local group
  for group in $(jobs -p); do
    kill -- "-$group" 2> /dev/null || true
  done
}
trap end EXIT
failed=0 running=0
for target in "$@"; do
  if [[ $running -eq $jobs ]]; then
    wait -n || failed=$((failed + 1))
    running=$((running - 1))
  fi
  fuzz "$target" &
  running=$((running + 1))
done
for ((; running > 0; running--)); do
  wait -n || failed=$((failed + 1))
done
echo "$(($# - failed)) passed, $failed failed"
[[ $failed -eq 0 ]]
