# shellcheck shell=bash
# Adds up the results that test programs print, into $passed and $failed.
passed=0
failed=0

# `test result: ok. 12 passed; 0 failed; ...`, one line a test program.
count_cargo() {
  local p f
  while read -r p f; do
    passed=$((passed + p)) failed=$((failed + f))
  done < <(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p' "$1")
}

# `== 12 passed, 1 failed, 1 error in 3.2s ==`, the last line; an error counts as a failure.
count_pytest() {
  local last n word
  last=$(grep -E '(passed|failed|errors?|no tests ran).* in [0-9.]+s' "$1" | tail -n 1 || true)
  while read -r n word; do
    case $word in
      passed) passed=$((passed + n)) ;;
      failed | error | errors) failed=$((failed + n)) ;;
    esac
  done < <(grep -oE '[0-9]+ (passed|failed|errors?)' <<< "$last" || true)
}

# `12 passed, 1 failed`, the last line of the checks in this repository.
count_check() {
  local p f
  read -r p f < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$1" | tail -n 1) || true
  passed=$((passed + ${p:-0})) failed=$((failed + ${f:-1}))
}
