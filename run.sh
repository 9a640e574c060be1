#!/usr/bin/env bash
# From a fresh clone to an image: installs, starts the worker with its engine, sends one real request, saves the image.
# Then serves until Ctrl+C; with --once it stops after the image, and the exit code tells whether there was one.
#
#     ./run.sh [--once]
#
# Settings come from the environment and .env (docs/settings.md); BASE_DIRECTORY is ./base unless it is set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

once=false
case "${1:-}" in
  "") ;;
  --once) once=true ;;
  *)
    echo "usage: ./run.sh [--once]" >&2
    exit 2
    ;;
esac

tools/install.sh
python=.venv/bin/python

if ! grep -qsE '^(export )?(BASE_DIRECTORY|COMFYUI_INSTALL_PATH)=' .env && [ -z "${COMFYUI_INSTALL_PATH:-}" ]; then
  export BASE_DIRECTORY=${BASE_DIRECTORY:-$PWD/base}
fi
settings=$("$python" -m tools.where)
{ read -r base && read -r url && read -r certificate && read -r key_file || true; } <<<"$settings"
mkdir -p "$base/models/checkpoints" "$base/input" "$base/output" "$base/temp"

# What to draw with: Stable Diffusion 1.5 if it is here or can be had, else the small model that ships with the engine.
checkpoint=v1-5-pruned-emaonly-fp16.safetensors
prompt="a lighthouse on a cliff at dawn, oil painting, warm light"
size=512 steps=20
if [ ! -f "$base/models/checkpoints/$checkpoint" ] && ! .venv/bin/darkroom models fetch sd15; then
  echo "Without it the image is drawn by the built-in demo model, which knows a hundred emoji and nothing else."
  echo "For all else put $checkpoint into $base/models/checkpoints, or run this again when the hub can be reached."
  checkpoint=darkroom-emoji.safetensors
  prompt="a red apple on a blue background"
  size=128
elif ! nvidia-smi -L >/dev/null 2>&1; then
  size=384 steps=12
  echo "No NVIDIA GPU here: the image is drawn on the CPU, smaller and in fewer steps, which takes some minutes."
fi

address=${url#*://}
host=${address%:*}
host=${host#[}
if (exec 3<>"/dev/tcp/${host%]}/${address##*:}") 2>/dev/null; then
  echo "Something listens at $url already; stop it, or set WORKER_PORT to another port." >&2
  exit 1
fi

log=$base/darkroom.log
echo "Starting darkroom serve (log: $log)"
.venv/bin/darkroom serve >"$log" 2>&1 &
worker=$!

stop_worker() { # ends the worker and passes on how it ended; asked to stop, it may end with the signal's own code
  kill -TERM "$worker" 2>/dev/null || true
  local code=0
  wait "$worker" || code=$?
  case "$code" in 0 | 130 | 143) return 0 ;; esac
  echo "The worker stopped with exit code $code; see $log" >&2
  return 1
}
trap 'trap "" INT TERM; echo; echo "Stopping"; stop_worker && exit 0 || exit 1' INT TERM

drawn=0
"$python" tools/first_image.py --url "$url" --certificate "$certificate" --key-file "$key_file" --process-id "$worker" \
  --checkpoint "$checkpoint" --prompt "$prompt" --size "$size" --steps "$steps" --output "$base/first-image.png" &
wait $! || drawn=$?

if [ "$drawn" -ne 0 ]; then
  echo "The end of $log:" >&2
  tail -n 30 "$log" >&2
  stop_worker || true
  exit 1
fi
if [ "$once" = true ]; then
  stop_worker
  exit
fi
echo "Serving at $url until Ctrl+C"
code=0
wait "$worker" || code=$?
echo "The worker ended by itself with exit code $code; see $log" >&2
exit 1
