#!/usr/bin/env bash
# Writes constraints.txt and the hashed locks of misc/locks anew.
#
#     misc/lock.sh [requirement ...]      e.g. `misc/lock.sh torch==2.13.0` to hold something at a version
#     misc/lock.sh --hashes               only misc/locks, from the versions that constraints.txt has now
#
# constraints.txt: resolves pyproject.toml with all its extras in an empty environment and notes what came. torch brings
# its own exact pins of the CUDA libraries where it has any, so those are not listed. It has no hashes, because the build
# of torch is the user's choice (CPU, CUDA, ROCm), each with a hash of its own.
#
# misc/locks: what the image installs, with the hash of every file, for pip's --require-hashes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
python3 -m venv "$fresh/venv"
"$fresh/venv/bin/python" -m pip install --quiet --upgrade pip uv

if [ "${1:-}" != --hashes ]; then
  "$fresh/venv/bin/python" -m pip install --quiet "$@" torch
  "$fresh/venv/bin/python" -m pip install --quiet "$@" ".[test,benchmark]"
  {
    echo "# Exact versions of all that ./run.sh, ./test.sh and the image install. Written by misc/lock.sh; do not edit."
    "$fresh/venv/bin/python" -m pip freeze --all --exclude darkroom --exclude pip --exclude uv |
      grep -vP '^(nvidia-(?!ml-py)|cuda|triton)' | sed -E 's/ @ .*torch-([0-9.]+).*/==\1/; s/\+[a-z0-9.]+$//'
  } >constraints.txt
fi

lock() { # lock NAME REQUIREMENTS_FILE: the image's Python and platforms
  "$fresh/venv/bin/uv" pip compile --quiet --generate-hashes --universal --python-version 3.12 --no-annotate --no-header \
    --system-certs --constraint constraints.txt "$2" --output-file "$fresh/$1.txt"
  { echo "# Written by misc/lock.sh; do not edit."; cat "$fresh/$1.txt"; } >"misc/locks/$1.txt"
}
mkdir -p misc/locks
echo "setuptools" >"$fresh/build.in"
echo "torch" >"$fresh/torch.in"
lock build "$fresh/build.in"
lock torch "$fresh/torch.in"
lock image pyproject.toml
