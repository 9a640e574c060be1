#!/usr/bin/env bash
# Format, lint, types and tests. A fresh machine needs nothing but Python 3.11 or newer.
#
#     ./test.sh [pytest arguments]      e.g. `./test.sh tests/engine -k sampler`, `./test.sh -m slow`
#
# Without arguments three processes share the tests, so that one computes while another waits for what it started. Two of
# them are shown when they have ended. A few tests that fail are run once more, alone, to name those that pass then: they stay red.
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

said=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$said"' EXIT
fast_tests() { .venv/bin/python -m pytest -m "not slow and not gpu" "$@"; }

# Tests wait a good part of their time, so types are checked beside them; what mypy has to say comes last.
echo "mypy --strict, beside pytest"
.venv/bin/python -m mypy >"$said/mypy" 2>&1 &
mypy=$!

tests=0 types=0
if [ $# -gt 0 ]; then
  fast_tests "$@" || tests=$?
else
  mkdir "$said/claims"
  share() { fast_tests -p tools.shared_tests "--claims=$said/claims" -o cache_dir="$said/cache-$1" -o console_output_style=classic; }
  share 1 >"$said/first" 2>&1 &
  first=$!
  # The first compiles what it imports (mypy has the other core); the others need not do the same at the same time.
  while [ -z "$(ls "$said/claims")" ] && kill -0 "$first" 2>/dev/null; do sleep 0.2; done
  share 2 >"$said/second" 2>&1 &
  second=$!
  worst() { if [ "$1" -gt "$tests" ]; then tests=$1; fi; }
  share 3 || worst $?
  wait "$second" || worst $?
  cat "$said/second"
  wait "$first" || worst $?
  cat "$said/first"
  if [ "$tests" = 1 ]; then # 1: tests failed; more: pytest itself did
    .venv/bin/python -m tools.run_again "$said"/cache-* || true
  fi
fi
wait "$mypy" || types=$?
echo "mypy: $(cat "$said/mypy")"
exit $((tests ? tests : types))
