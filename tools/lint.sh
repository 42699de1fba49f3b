#!/usr/bin/env bash
# `./dev lint`: formatting, layers, Python, and clang-tidy on what changed (or on everything with --all).
set -uo pipefail
cd "$(dirname "$0")/.."
failures=0
check() { # name, command...
  local name=$1 start=$SECONDS
  shift
  if "$@"; then printf 'lint: %-14s ok (%d s)\n' "$name" $((SECONDS - start)) >&2
  else printf 'lint: %-14s FAILED\n' "$name" >&2; failures=$((failures + 1)); fi
}

sources() { git ls-files -co --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh'; }

formatted() { sources | xargs -r clang-format --dry-run --Werror; }
layers() { python tools/check_layers.py; }
python_style() { ruff format -q --check . && ruff check -q .; }
shell_syntax() { bash -n dev && bash -n .ci/run && bash -n tools/lint.sh && bash -n tests/bare.sh; }
tidy() { python tools/tidy.py "$@"; }

check clang-format formatted
check layers layers
check ruff python_style
check shell shell_syntax
check clang-tidy tidy "$@"
printf '%d passed, %d failed\n' $((5 - failures)) $failures
[ $failures -eq 0 ]
