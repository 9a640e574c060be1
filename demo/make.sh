#!/usr/bin/env bash
# The demo model from the npm packages to figures, all in one folder:
#
#     demo/make.sh BUILD      writes BUILD/darkroom-emoji.safetensors and BUILD/results; nothing of the repository changes
#
# About four hours on two CPU cores, 81 MB of downloads, 0.5 GB in BUILD. Run again it goes on where it stopped; with
# SLICE_SECONDS each run ends with code 3 once a training has had so many, until all is done. PYTHON (.venv/bin/python),
# DEVICE (cpu), THINGS (109), SLICES of scenes (70, of 512 each), DECODER_SECONDS (3900), DIFFUSION_SECONDS (9000) and
# CLASSIFIER_SECONDS (180) choose how much is done.
set -euo pipefail
build=$(realpath -m "${1:?usage: demo/make.sh BUILD}")
device=${DEVICE:-cpu} things=${THINGS:-109} slice=(--slice-seconds "${SLICE_SECONDS:-1e9}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
half=()
[ "$device" = cpu ] || half=(--half)

say() { echo "== $1"; }

say "images and names (npm)"
[ -f "$build/pictures.npz" ] || "$python" -m demo.fetch "$build"
say "autoencoder: fitted, not trained"
"$python" -m demo.train_vae "$build" --device "$device" --seconds 1 --whole-from 0
say "scenes as latents"
"$python" -m demo.encode "$build" --device "$device" --things "$things" --slices "${SLICES:-70}"
say "decoder: ${DECODER_SECONDS:-3900} s in all"
"$python" -m demo.train_vae "$build" --device "$device" --decoder-only --start "$build/vae.pt" --name decoder.pt \
  --whole-from 0 --batch 8 --rate 1.5e-4 --seconds "${DECODER_SECONDS:-3900}" "${slice[@]}" "${half[@]}"

say "text encoder and UNet: ${DIFFUSION_SECONDS:-9000} s in all"
train=("$python" -m demo.train_diffusion "$build" --device "$device" --compile
  --seconds "${DIFFUSION_SECONDS:-9000}" "${slice[@]}")
if [ "$device" = cpu ]; then # two processes of one thread each are quicker than one of two
  "${train[@]}" --processes 2 --rank 1 &
  other=$!
  "${train[@]}" --processes 2 --rank 0
  wait "$other" || [ $? -eq 3 ] # its clock may say that a second is left
else
  "${train[@]}" --batch 512
fi

say "checkpoint"
"$python" -m demo.export "$build" "$build/darkroom-emoji.safetensors"
say "classifier"
"$python" -m demo.classifier "$build" --seconds "${CLASSIFIER_SECONDS:-180}"
say "figures and contact sheet"
"$python" -m demo.evaluate "$build" "$build/results" --checkpoint "$build/darkroom-emoji.safetensors" --things "$things"
say "to ship it: copy the checkpoint to engine/weights/checkpoints and $build/results to demo/results"
