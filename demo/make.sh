#!/usr/bin/env bash
# The demo model from the npm packages to figures:   demo/make.sh BUILD      (a folder, from the repository's root)
# Run again it goes on where it stopped. PYTHON (.venv/bin/python), DEVICE (cpu), THINGS (109), SLICES of scenes (70, of
# 512 each), DECODER_SECONDS and DIFFUSION_SECONDS choose how much is done.
set -euo pipefail
build=${1:?usage: demo/make.sh BUILD}
device=${DEVICE:-cpu} things=${THINGS:-109}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

"$python" -m demo.fetch "$build"
"$python" -m demo.train_vae "$build" --device "$device" --seconds 1 --whole-from 0
"$python" -m demo.encode "$build" --device "$device" --things "$things" --slices "${SLICES:-70}"
"$python" -m demo.train_vae "$build" --device "$device" --decoder-only --start "$build/vae.pt" --name decoder.pt \
  --whole-from 0 --batch 8 --rate 1.5e-4 --seconds "${DECODER_SECONDS:-3900}"

# On a processor two processes of one thread each are quicker than one of two.
train=("$python" -m demo.train_diffusion "$build" --device "$device" --compile --seconds "${DIFFUSION_SECONDS:-9000}")
if [ "$device" = cpu ]; then
  "${train[@]}" --processes 2 --rank 1 &
  "${train[@]}" --processes 2 --rank 0
  wait $!
else
  "${train[@]}" --batch 512
fi

"$python" -m demo.export "$build" engine/weights/checkpoints/darkroom-emoji.safetensors
"$python" -m demo.classifier "$build"
"$python" -m demo.evaluate "$build" demo/results --things "$things"
