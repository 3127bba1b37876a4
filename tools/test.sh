#!/usr/bin/env bash
# All tests: builds, then the Rust tests and the labs under tests/ with the static binaries.
#
# The last line is `N passed, N failed`, over all. Exits non-zero when anything failed.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/counts.sh
. tools/counts.sh

mkdir -p target
venv=target/venv
(make "$venv/ready" target/mitmproxy/ready target/moto/ready > target/venv.log 2>&1 || { cat target/venv.log >&2; exit 1; }) &
python=$!
# The kernels that the guests boot; the labs say what is wrong when one is not there.
{
  tools/kernel.sh amd64 cloud
  tools/kernel.sh amd64 generic
  tools/kernel.sh arm64 cloud
  tools/root.sh arm64
  tools/debian.sh target/kernel/amd64-cloud
  tools/sshd.sh
} > /dev/null 2>&1 &
tools/build.sh --programs amd64
wait "$python" || { echo "test: no Python environment" >&2; exit 1; }
rm -f target/venv.log

# Behind the labs, whose peers' patience is measured in seconds.
behind=(nice -n 10)

units() {
  local -a run=("${behind[@]}" cargo test --locked --quiet --no-fail-fast --workspace --profile operator --features control-plane)
  local status=0
  "${run[@]}" --bins --tests --lib --examples || status=1
  # Documentation's examples are tests too; they need a run of their own.
  "${run[@]}" --doc || status=1
  return "$status"
}

# The labs mostly wait, for time-outs and for each other's processes. What they do not need, the arm64 program, the
# Rust tests and bcd with development hardware, is built meanwhile; those that do need it are late, beside the Rust tests.
status=0
"${behind[@]}" tools/build.sh --tests arm64 > target/rest.log 2>&1 &
rest=$!
# The labs' Rust ends were built above; without these variables a lab builds its own.
export GRPC_PROBE=$PWD/target/operator/examples/grpc_probe PROTO_ROUNDTRIP=$PWD/target/operator/proto-roundtrip
# Whole machines wait for links and leases, a minute and more: they are beside everything else.
"$venv/bin/python" -m pytest tests/qemu -n 4 > target/machines.log 2>&1 &
machines=$!
"$venv/bin/python" -m pytest tests --ignore tests/qemu -m "not late" -n 8 2>&1 | tee target/pytest.log || status=1
wait "$rest" || { status=1; cat target/rest.log; }
units > target/cargo-test.log 2>&1 &
units=$!
"$venv/bin/python" -m pytest tests --ignore tests/qemu -m late -n 8 2>&1 | tee target/late.log || status=1
wait "$units" || status=1
cat target/cargo-test.log
wait "$machines" || status=1
cat target/machines.log

count_cargo target/cargo-test.log
count_pytest target/pytest.log
count_pytest target/late.log
count_pytest target/machines.log
# A run that died before it could count is one failure.
[[ $status -eq 0 || $failed -gt 0 ]] || failed=1
[[ $passed -gt 0 ]] || failed=$((failed + 1))
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
