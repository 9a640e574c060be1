"""Darkroom on Modal: one worker in a container with one GPU, models and state on a volume.

modal secret create darkroom-keys API_KEYS="shop:$(openssl rand -hex 24)"
modal run deploy/modal/app.py::fetch
modal deploy deploy/modal/app.py
"""

import os
import subprocess

import modal

IMAGE = os.environ.get("DARKROOM_IMAGE", "registry.example.com/darkroom:0.2.0")
MODELS = "/base/models"

app = modal.App("darkroom")
image = modal.Image.from_registry(IMAGE).entrypoint([])
models = modal.Volume.from_name("darkroom-models", create_if_missing=True)


@app.function(image=image, volumes={MODELS: models}, timeout=3600)
def fetch(name: str = "sd15") -> None:
    """Put a known model onto the volume."""
    subprocess.run(["darkroom", "models", "fetch", name], check=True, env={**os.environ, "BASE_DIRECTORY": "/base"})
    models.commit()


@app.function(
    image=image,
    gpu="L4",
    volumes={MODELS: models},
    secrets=[modal.Secret.from_name("darkroom-keys")],
    scaledown_window=300,
    timeout=3600,
)
@modal.concurrent(max_inputs=8)
@modal.web_server(8000, startup_timeout=600)
def worker() -> None:
    """Serve; Modal forwards requests once the port answers."""
    settings = {"BASE_DIRECTORY": "/base", "STATE_DIRECTORY": "/tmp/state", "BENCHMARK": "off"}  # noqa: S108
    subprocess.Popen(["darkroom", "serve"], env={**os.environ, **settings})
