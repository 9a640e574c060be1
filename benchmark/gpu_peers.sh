#!/usr/bin/env bash
# Make the folders .peer and .whl, with which benchmark/gpu.py measures ComfyUI and diffusers on a machine that reaches
# no package index. Git ignores both; nothing of them belongs into a commit.
#
#     benchmark/gpu_peers.sh COMFYUI [REVISION]
#
# COMFYUI is a checkout of ComfyUI or a bare git directory of it. .peer/comfyui gets what sampling needs, without
# tokenizers of language models, web pages, tests and examples; .peer/site the packages of its own that it imports, of
# comfy-kitchen the parts in Python and Triton (its compiled kernels take 225 MB). .whl gets wheels for Python 3.12 on
# x86-64. On the other machine:
#
#     python3 -m pip install -q --no-index --no-deps --no-compile --target /tmp/site .whl/*.whl
#     PYTHONPATH=/tmp/site python3 benchmark/gpu.py --out results --minutes 8 --peers .peer
#
# The sizes are printed at the end. LIMIT_MIB (64) is what the files of the checkout and both folders may take together;
# where that is too much the script says which folders of the checkout a call does not need.
set -euo pipefail
comfyui=$(realpath "${1:?a checkout or git directory of ComfyUI}") revision=${2:-HEAD}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3} limit_mib=${LIMIT_MIB:-64}

# --- ComfyUI: tracked files alone, one by one: a mirror may lack the blobs of others, which `git archive` would want ---
git_of() { git --git-dir="$([ -e "$comfyui/.git" ] && echo "$comfyui/.git" || echo "$comfyui")" "$@"; }
rm -rf .peer .whl
mkdir -p .peer/comfyui .peer/site .whl
git_of ls-tree -r "$revision" -- comfy comfy_api comfy_execution comfy_config utils app \
    folder_paths.py comfyui_version.py node_helpers.py latent_preview.py LICENSE |
  while read -r _ _ id path; do
    case $path in
      *.py | LICENSE | *sd1_tokenizer/* | *.json | *.txt | *.yaml) ;;
      *) continue ;;
    esac
    case $path in
      comfy/text_encoders/*_tokenizer/*) continue ;;
    esac
    mkdir -p ".peer/comfyui/$(dirname "$path")"
    git_of cat-file blob "$id" >".peer/comfyui/$path"
  done
[ -f .peer/comfyui/comfy/sd.py ] || { echo "no ComfyUI at $comfyui ($revision)" >&2; exit 1; }
wanted() { git_of show "$revision:requirements.txt" | grep -i "^$1==" || echo "$1"; }

# --- wheels ------------------------------------------------------------------------------------------------------------
platforms=()
for name in manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_24_x86_64 manylinux_2_17_x86_64 \
  manylinux2014_x86_64 manylinux_2_12_x86_64 manylinux2010_x86_64 manylinux1_x86_64; do
  platforms+=(--platform "$name")
done
download() {
  "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    "${platforms[@]}" -d "$@"
}
# simpleeval and mutagen are the engine's own, for nodes of texts and audio.
download .whl diffusers torchsde trampoline importlib-metadata simpleeval mutagen
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
cp .whl/torchsde* .whl/trampoline* "$unpacked"
for package in comfy-aimdo comfy-kitchen; do
  if git_of show "$revision:requirements.txt" | grep -qi "^$package"; then
    download "$unpacked" "$(wanted "$package")"
  fi
done
"$python" - "$unpacked" .peer/site <<'PYTHON'
import pathlib, sys, zipfile

MOST_BYTES = 16 << 20  # of a file: compiled kernels for every card are larger
for wheel in pathlib.Path(sys.argv[1]).glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(sys.argv[2], [item for item in archive.infolist() if item.file_size < MOST_BYTES])
PYTHON

# --- sizes -------------------------------------------------------------------------------------------------------------
"$python" - "$limit_mib" <<'PYTHON'
import os, subprocess, sys

MIB = 1 << 20
names = subprocess.check_output(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], text=True)
sizes = {"files": sum(os.path.getsize(name) for name in set(names.split("\0")) if os.path.isfile(name))}
for folder in (".peer", ".whl"):
    sizes[folder] = sum(os.path.getsize(os.path.join(at, name)) for at, _, found in os.walk(folder) for name in found)
total = sum(sizes.values()) / MIB
print(", ".join(f"{name} {size / MIB:.1f} MiB" for name, size in sizes.items()) + f": {total:.1f} of {sys.argv[1]} MiB")
if total > float(sys.argv[1]):
    print("too much; a call needs neither recorded cases nor the demo's models:\n"
          "  git sparse-checkout set --no-cone '/*' '!/tests/parity/cases/' '!/engine/weights/checkpoints/'\n"
          "and git sparse-checkout disable brings them back")
    sys.exit(1)
PYTHON
