#!/usr/bin/env bash
# Writes constraints.txt and the hashed locks of tools/locks anew.
#
#     tools/lock.sh [requirement ...]      e.g. `tools/lock.sh torch==2.13.0` to hold something at a version
#     tools/lock.sh --hashes               only tools/locks, from the versions that constraints.txt has now
#
# constraints.txt: resolves pyproject.toml with all its extras in an empty environment and notes what came. torch brings
# its own exact pins of the CUDA libraries where it has any, so those are not listed. It has no hashes, because the build
# of torch is the user's choice (CPU, CUDA, ROCm), each with a hash of its own.
#
# tools/locks: what the image installs, with the hash of every file. torch-cuda12.txt and torch-cpu.txt name builds that
# PyPI does not have; where their index cannot be reached they hold the version without hashes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
python3 -m venv "$fresh/venv"
"$fresh/venv/bin/python" -m pip install --quiet --upgrade pip uv

if [ "${1:-}" != --hashes ]; then
  "$fresh/venv/bin/python" -m pip install --quiet "$@" torch
  "$fresh/venv/bin/python" -m pip install --quiet "$@" ".[test,docs,benchmark,ray,readers]"
  {
    echo "# Exact versions of all that ./run.sh, ./test.sh and the image install. Written by tools/lock.sh; do not edit."
    "$fresh/venv/bin/python" -m pip freeze --all --exclude darkroom-worker --exclude pip --exclude uv |
      grep -vP '^(nvidia-(?!ml-py)|cuda|triton)' | sed -E 's/ @ .*torch-([0-9.]+).*/==\1/; s/\+[a-z0-9.]+$//'
  } >constraints.txt
fi

compile() { # compile REQUIREMENTS_FILE OUTPUT [option ...]: for the image's Python and platforms
  "$fresh/venv/bin/uv" pip compile --quiet --generate-hashes --universal --python-version 3.12 --no-annotate --no-header \
    --system-certs --constraint constraints.txt "$1" --output-file "$2" "${@:3}"
}

write() { # write NAME FILE [remark]
  { echo "# Written by tools/lock.sh${3:-}; do not edit."; cat "$2"; } >"tools/locks/$1.txt"
}

lock_torch() { # lock_torch NAME INDEX: a build of PyTorch that PyPI does not have
  local index=https://download.pytorch.org/whl/$2
  if compile "$fresh/torch.in" "$fresh/$1.txt" --default-index "$index" --emit-index-url; then
    write "$1" "$fresh/$1.txt"
  else
    { echo "--index-url $index"; grep '^torch==' constraints.txt; } >"$fresh/$1.txt"
    write "$1" "$fresh/$1.txt" ", which could not reach the index: exact version, no hashes"
  fi
}

mkdir -p tools/locks
echo "setuptools" >"$fresh/build.in"
echo "torch" >"$fresh/torch.in"
compile "$fresh/build.in" "$fresh/build.txt"
write build "$fresh/build.txt"
compile "$fresh/torch.in" "$fresh/torch.txt"
write torch-cuda13 "$fresh/torch.txt"
lock_torch torch-cuda12 cu126
lock_torch torch-cpu cpu
# PyTorch and what only its CUDA builds need are named by its own locks; a line that goes on is indented.
compile pyproject.toml "$fresh/image.txt" --extra redis --extra nats --extra postgres --extra meshes
awk '/^[^ ]/ { theirs = /^(torch|triton|cuda-[a-z-]+|nvidia-[a-z0-9-]+)==/ && !/^nvidia-ml-py==/ } !theirs' \
  "$fresh/image.txt" >"$fresh/image-own.txt"
write image "$fresh/image-own.txt"
