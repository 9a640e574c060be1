#!/usr/bin/env bash
# Makes .venv in the repository and installs the project into it, editable, at the versions of constraints.txt.
#
#     tools/install.sh [extra]      e.g. `tools/install.sh test`
#
# Does nothing when pyproject.toml, constraints.txt, the place and the Python are those of the last time. pip reads the
# user's own settings (pip.conf, PIP_* variables); PYTHON names another interpreter than the first fit one on the PATH.
# Triton, which tests need, is the one that PyTorch's own build names; with a build that names none, the one of CUDA 13.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extra=${1:-}
venv=.venv

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "Darkroom needs Python 3.11 or newer, and found none on the PATH (set PYTHON to name one)." >&2
  return 1
}

triton_pin() { # the Triton that the CUDA build of this PyTorch brings
  grep -o '^triton==[0-9.]*' tools/locks/torch-cuda13.txt
}

stamp_text() { # what an installation depends on, besides its extra
  cat pyproject.toml constraints.txt
  triton_pin
  pwd
  "$venv/bin/python" --version
}

is_current() {
  [ -f "$1" ] && "$venv/bin/python" -c '' 2>/dev/null && [ "$(cat "$1")" = "$(stamp_text | sha256sum)" ]
}

if is_current "$venv/installed${extra:+-$extra}"; then
  exit 0
fi

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  python=$(find_python)
  echo "Making $venv with $("$python" --version)"
  if ! "$python" -m venv --clear "$venv"; then
    echo "Could not make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 1
  fi
  # The pip that Python 3.11 brings looks at every file of every version of a package: four times the work of pip 26.
  "$venv/bin/python" -m pip install --quiet --quiet --disable-pip-version-check --upgrade pip ||
    echo "  pip could not be brought up to date: the installation takes longer."
fi
rm -f "$venv"/installed*

# pip compiles every file of every package, of which tests import few: Python compiles those at their first import.
compile=--compile
if [ "$extra" = test ]; then compile=--no-compile; fi

constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
cp constraints.txt "$constraints"

pip_install() {
  "$venv/bin/python" -m pip install --quiet --quiet --disable-pip-version-check "$compile" \
    --constraint "$constraints" "$@"
}

# PyTorch goes first and alone, so that the build which the user's pip settings prefer (one without CUDA, say) is in
# place before anything else can ask for it.
if ! "$venv/bin/python" -m pip show --quiet torch 2>/dev/null; then
  echo "Installing PyTorch (once; the largest download)"
  if [ -z "${PIP_INDEX_URL:-}${PIP_EXTRA_INDEX_URL:-}${PIP_FIND_LINKS:-}" ] && ! command -v nvidia-smi >/dev/null; then
    echo "  No NVIDIA driver here: the README tells how to get the much smaller build for CPUs only."
  fi
fi
pip_install torch
if ! "$venv/bin/python" -m pip show torch | grep '^Requires:.*triton' >/dev/null; then triton_pin >>"$constraints"; fi
# The distribution had this name once: left in place, both would own the command.
if "$venv/bin/python" -m pip show --quiet darkroom 2>/dev/null; then
  "$venv/bin/python" -m pip uninstall --quiet --yes darkroom
fi
echo "Installing Darkroom${extra:+ with what its $extra extra needs}"
pip_install --editable ".${extra:+[$extra]}"

stamp_text | sha256sum >"$venv/installed"
[ -z "$extra" ] || cp "$venv/installed" "$venv/installed-$extra"
