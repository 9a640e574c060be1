#!/usr/bin/env bash
# Writes constraints.txt anew: resolves pyproject.toml with all its extras in an empty environment and notes what came.
#
#     misc/lock.sh [requirement ...]      e.g. `misc/lock.sh torch==2.13.0` to hold something at a version
#
# torch brings its own exact pins of the CUDA libraries where it has any, so those are not listed here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT

python3 -m venv "$fresh/venv"
"$fresh/venv/bin/python" -m pip install --quiet --upgrade pip
"$fresh/venv/bin/python" -m pip install --quiet "$@" torch
"$fresh/venv/bin/python" -m pip install --quiet "$@" ".[test,benchmark]"
{
  echo "# Exact versions of all that ./run.sh, ./test.sh and the image install. Written by misc/lock.sh; do not edit."
  "$fresh/venv/bin/python" -m pip freeze --all --exclude darkroom --exclude pip |
    grep -vP '^(nvidia-(?!ml-py)|cuda|triton)' | sed -E 's/ @ .*torch-([0-9.]+).*/==\1/; s/\+[a-z0-9.]+$//'
} >constraints.txt
