#!/usr/bin/env bash
# The demo model from the npm packages to figures:   demo/make.sh BUILD
# Run again it goes on where it stopped. DEVICE (cpu), THINGS (24), VAE_SECONDS, SECONDS_IN_ALL choose how much is done.
set -euo pipefail
build=${1:?usage: demo/make.sh BUILD}
device=${DEVICE:-cpu} things=${THINGS:-24}
python=${PYTHON:-python}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

"$python" -m demo.fetch "$build"
"$python" -m demo.train_vae "$build" --device "$device" --seconds 1 --whole-from 0
"$python" -m demo.encode "$build" --device "$device" --things "$things"
"$python" -m demo.train_vae "$build" --device "$device" --decoder-only --start "$build/vae.pt" --name decoder.pt \
  --whole-from 0 --batch 8 --rate 1.5e-4 --seconds "${VAE_SECONDS:-3000}"
"$python" -m demo.train_diffusion "$build" --device "$device" --compile --batch 64 --seconds "${SECONDS_IN_ALL:-7200}"
"$python" -m demo.export "$build" engine/weights/checkpoints/darkroom-emoji.safetensors
"$python" -m demo.classifier "$build"
"$python" -m demo.evaluate "$build" demo/results --things "$things"
