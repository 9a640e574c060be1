#!/usr/bin/env bash
# Format, lint, types and tests. A fresh machine needs nothing but Python 3.11 or newer.
#
#     ./test.sh [pytest arguments]      e.g. `./test.sh tests/engine -k sampler`, `./test.sh -m slow`
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

misc/install.sh test
# Several processes share the cores while tests run, so torch must not start a thread per core in each of them.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} MKL_NUM_THREADS=${MKL_NUM_THREADS:-1}

echo "ruff format --check"
.venv/bin/ruff format --check --quiet .
echo "ruff check"
.venv/bin/ruff check --quiet .
# Tests wait a good part of their time, so types are checked beside them; what mypy has to say comes last.
echo "mypy --strict, beside pytest"
said=$(mktemp)
.venv/bin/python -m mypy >"$said" 2>&1 &
mypy=$!
trap 'kill "$mypy" 2>/dev/null || true; rm -f "$said"' EXIT

tests=0 types=0
.venv/bin/python -m pytest -m "not slow and not gpu" "$@" || tests=$?
wait "$mypy" || types=$?
echo "mypy: $(cat "$said")"
exit $((tests ? tests : types))
