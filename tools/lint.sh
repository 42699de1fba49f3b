#!/usr/bin/env bash
# `./dev lint`: formatting, layers, Python, words, and clang-tidy on changed files.
# --all runs clang-tidy on every file; --fast leaves out clang-tidy and the report of the CUDA kernels.
set -uo pipefail
cd "$(dirname "$0")/.."
steps=0 failures=0
check() { # name, command...
  local name=$1 start=$SECONDS
  shift
  steps=$((steps + 1))
  if "$@"; then printf 'lint: %-14s ok (%d s)\n' "$name" $((SECONDS - start)) >&2
  else printf 'lint: %-14s FAILED\n' "$name" >&2; failures=$((failures + 1)); fi
}

sources() { git ls-files -co --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh'; }

formatted() { sources | xargs -r clang-format --dry-run --Werror; }
layers() { python tools/check_layers.py; }
python_style() { ruff format -q --check . && ruff check -q .; }
shell_syntax() { bash -n dev && bash -n .ci/run && bash -n tools/lint.sh && bash -n tests/bare.sh; }
words() { python tools/check_words.py --all; }
kernels() { python tools/check_kernels.py; }
tidy() { python tools/tidy.py "$@"; }

check clang-format formatted
check layers layers
check ruff python_style
check shell shell_syntax
check words words
if [[ " $* " != *" --fast "* ]]; then
  check kernels kernels
  check clang-tidy tidy "$@"
fi
printf '%d passed, %d failed\n' $((steps - failures)) $failures
[ $failures -eq 0 ]
