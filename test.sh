#!/usr/bin/env bash
# Format, lint, types and tests. A fresh machine needs nothing but Python 3.11 or newer.
#
#     ./test.sh [pytest arguments]            e.g. `./test.sh tests/engine -k sampler`, `./test.sh -m slow`
#     ./test.sh quick [pytest arguments]      in less than two minutes: no types, and the tests that tests/quick.py chooses
#     ./test.sh costs                         measures anew which files are too costly for that (tests/costly_files.txt)
#
# Without arguments three processes share the tests, so that one computes while another waits for what it started. What
# two of them print is shown when all have ended. A few tests that fail are run once more, alone, to name those that pass
# then; they stay red.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

tools/install.sh test
# Several processes share the cores while tests run, so torch must not start a thread per core in each of them.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} MKL_NUM_THREADS=${MKL_NUM_THREADS:-1}
# Tests start more than a hundred processes: without compiled files each would compile the whole project, about 1 s anew.
unset PYTHONDONTWRITEBYTECODE

echo "ruff format --check"
.venv/bin/ruff format --check --quiet .
echo "ruff check"
.venv/bin/ruff check --quiet .

outputs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$outputs"' EXIT
fast_tests() { .venv/bin/python -m pytest -m "not slow and not gpu" "$@"; }

shared_tests() {
  mkdir "$outputs/claims"
  fast_tests -p tools.shared_tests "--claims=$outputs/claims" --processes 3 -o cache_dir="$outputs/cache" \
    -o console_output_style=classic "$@" || tests=$?
  if [ "$tests" = 1 ]; then # 1: tests failed; more: pytest itself did
    .venv/bin/python -m tools.run_again "$outputs"/cache* || true
  fi
}

tests=0 types=0
if [ "${1:-}" = quick ]; then
  shift
  if [ $# -gt 0 ]; then
    fast_tests -p tests.quick "$@" || tests=$?
  else
    shared_tests -p tests.quick --timeout 30
  fi
  exit "$tests"
elif [ "${1:-}" = costs ]; then
  shared_tests -p tests.quick "--costs=$outputs/costs"
  .venv/bin/python -m tests.quick "$outputs"/costs*
  exit "$tests"
fi

# Tests wait a good part of their time, so types are checked beside them; what mypy has to say comes last.
echo "mypy --strict, beside pytest"
.venv/bin/python -m mypy >"$outputs/mypy" 2>&1 &
mypy=$!
if [ $# -gt 0 ]; then
  fast_tests "$@" || tests=$?
else
  shared_tests
fi
wait "$mypy" || types=$?
echo "mypy: $(cat "$outputs/mypy")"
exit $((tests ? tests : types))
