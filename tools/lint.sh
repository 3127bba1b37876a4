#!/usr/bin/env bash
# Everything that is checked without running the program; each check runs, also after one failed.
#
# The last line is `N passed, N failed`. Exits non-zero when anything failed.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/counts.sh
. tools/counts.sh
mkdir -p target

check() {
  local name=$1
  shift
  if "$@" > target/lint.log 2>&1; then
    echo "ok      $name"
    passed=$((passed + 1))
  else
    echo "FAILED  $name"
    cat target/lint.log
    failed=$((failed + 1))
  fi
}

counted() {
  local name=$1
  shift
  local before=$failed
  "$@" > target/lint.log 2>&1 || true
  count_check target/lint.log
  if [[ $failed -eq $before ]]; then
    echo "ok      $name"
  else
    echo "FAILED  $name"
    cat target/lint.log
  fi
}

mapfile -t scripts < <(git ls-files -- '*.sh' .ci/run 2>/dev/null | sort)
[[ ${#scripts[@]} -gt 0 ]] || scripts=(tools/*.sh .ci/run)

check "rustfmt" cargo fmt --all --check
check "rustfmt, fuzz" cargo fmt --manifest-path fuzz/Cargo.toml --check
# The profile of the tests: what C there is, is compiled once for both.
lints=(cargo clippy --locked --quiet --profile operator --workspace)
# Tests, and what else needs the operator's feature, are held by the run that has it.
ships=("${lints[@]}" --exclude better-compute-parts --lib --bins)
check "clippy, bcd as it ships" "${ships[@]}" --tests -- -D warnings
check "clippy, control-plane" "${lints[@]}" --all-targets --features control-plane -- -D warnings
check "clippy, fakehw" "${ships[@]}" --features fakehw -- -D warnings
check "shellcheck" shellcheck -x "${scripts[@]}"
check "python sources compile" python3 -m compileall -q tests benches
counted "dependencies" python3 tests/deps/check_deps.py
counted "floors" python3 tests/deps/check_floors.py
counted "docs" python3 tests/deps/check_docs.py

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
