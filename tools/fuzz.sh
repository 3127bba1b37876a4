#!/usr/bin/env bash
# Fuzzes with libFuzzer, one target after the other, each for FUZZ_SECONDS (default 60).
#
#   FUZZ_SECONDS=600 tools/fuzz.sh [TARGET]...     all targets of fuzz/ when none is named
#
# It needs a nightly compiler and cargo-fuzz. `cargo test --test fuzz` runs the same targets without
# either, briefly, and belongs to `make test`. What it learns stays in fuzz/corpus, which is not
# committed; an input that breaks a promise is kept in fuzz/artifacts: add it to fuzz/seeds with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${FUZZ_SECONDS:-60}
[[ $seconds =~ ^[0-9]+$ && $seconds -gt 0 ]] || { echo "fuzz: FUZZ_SECONDS is no number of seconds: $seconds" >&2; exit 2; }
missing=()
cargo +nightly --version >/dev/null 2>&1 || missing+=("a nightly compiler (rustup toolchain install nightly)")
cargo fuzz --version >/dev/null 2>&1 || missing+=("cargo-fuzz (cargo install --locked cargo-fuzz)")
if [[ ${#missing[@]} -gt 0 ]]; then
  printf 'fuzz: this needs %s\n' "${missing[@]}" >&2
  echo "fuzz: nothing was run; the same targets run briefly without it: cargo test --test fuzz" >&2
  exit 2
fi

mapfile -t known < <(sed -n 's|^path = "fuzz_targets/\(.*\)\.rs"|\1|p' fuzz/Cargo.toml)
[[ $# -gt 0 ]] || set -- "${known[@]}"
for target in "$@"; do
  [[ " ${known[*]} " == *" $target "* ]] || { echo "fuzz: there is no target $target; there are: ${known[*]}" >&2; exit 2; }
done

passed=0 failed=0
for target in "$@"; do
  mkdir -p "fuzz/corpus/$target"
  echo "== $target, $seconds s"
  # The second folder is only read. Inputs are small, so time and memory are judged sharply.
  if cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- -max_total_time="$seconds" \
    -max_len=16384 -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=64 -print_final_stats=1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
  fi
done
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
