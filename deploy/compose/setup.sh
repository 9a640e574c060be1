#!/usr/bin/env bash
# Writes .env for `docker compose` in this folder: fresh secrets, and which of the files make up the worker.
#
#     ./setup.sh           the worker
#     ./setup.sh full      with an S3 store, a receiver of webhooks, Prometheus and Grafana
#     ./setup.sh fleet     with a gateway, Redis and PostgreSQL
#
# With an NVIDIA driver it takes the GPUs: CUDA 13 from driver 580 on, else CUDA 12. An .env that is there stays.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

case "${1:-}" in
  "" | full | fleet) ;;
  *)
    echo "usage: ./setup.sh [full | fleet]" >&2
    exit 2
    ;;
esac
if [ -e .env ]; then
  echo ".env is there already; remove it for new secrets" >&2
  exit 1
fi

files=compose.yaml accelerator=cpu
if driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null); then
  files+=:gpu.yaml accelerator=cuda12
  if [ "${driver%%.*}" -ge 580 ]; then accelerator=cuda13; fi
fi
if [ -n "${1:-}" ]; then files+=:$1.yaml; fi

secret() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
umask 077
cat >.env <<END
COMPOSE_FILE=$files
ACCELERATOR=$accelerator
API_KEYS=shop:$(secret)
ADMIN_API_KEYS=ops:$(secret)
S3_ACCESS_KEY_ID=darkroom
S3_SECRET_ACCESS_KEY=$(secret)
WEBHOOK_SECRET=$(secret)
GRAFANA_PASSWORD=$(secret)
REDIS_PASSWORD=$(secret)
POSTGRES_PASSWORD=$(secret)
END
echo "Wrote $PWD/.env: $files for $accelerator"
