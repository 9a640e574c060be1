#!/bin/sh
# Install Darkroom, its node packs and its models from this folder, without a network:
#
#     sh install.sh TARGET [PYTHON]
#
# TARGET/venv has the program, TARGET/base the packs and models. PYTHON is the interpreter, python3 by default.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${1:?usage: install.sh TARGET [PYTHON]}
python=${2:-python3}

expected=$(cat "$here/python.txt")
found=$("$python" -c 'import platform, sys; print(f"{sys.version_info[0]}.{sys.version_info[1]} {sys.platform} {platform.machine()}")')
if [ "$found" != "$expected" ]; then
    echo "install.sh: $python is of another kind; got $found, expected $expected" >&2
    exit 2
fi

mkdir -p "$target/base"
target=$(cd "$target" && pwd)
"$python" -m venv "$target/venv"
# Without the machine's own settings of pip, which may name other wheels of the same versions.
PIP_CONFIG_FILE=/dev/null "$target/venv/bin/python" -m pip --isolated install --quiet --disable-pip-version-check --no-index --find-links "$here/program" \
    --no-deps --require-hashes --requirement "$here/requirements.txt"
for name in models.toml models.lock.toml packs.toml packs.lock.toml; do
    if [ -f "$here/$name" ]; then cp "$here/$name" "$target/base/$name"; fi
done
if [ -d "$here/models" ]; then cp -R "$here/models" "$target/base/"; fi
if [ -f "$here/packs.toml" ]; then
    "$target/venv/bin/darkroom" nodes sync --locked --offline "$here" --base-directory "$target/base"
fi
echo "start it with: BASE_DIRECTORY=$target/base $target/venv/bin/darkroom serve"
