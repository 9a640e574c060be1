"""A whole worker whose engine reads a model file while it is downloaded: the right file, and a wrong one."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from darkroom.worker.cli.worker_alone import worker_alone
from tests.tiny_checkpoint import make_tiny_checkpoint
from tests.worker.models.model_server import model_server
from tests.worker.running_front import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MANIFEST = """
[right]
kind = "checkpoints"
sources = ["{url}/wrong.safetensors", "{url}/right.safetensors"]
name = "right.safetensors"
sha256 = "{sha256}"

[wrong]
kind = "checkpoints"
sources = ["{url}/wrong.safetensors"]
sha256 = "{sha256}"
"""


def workflow(checkpoint: str) -> dict[str, Any]:
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": checkpoint}},
        "2": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "3": {"class_type": "VAEDecode", "inputs": {"samples": ["2", 0], "vae": ["1", 2]}},
        "4": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "a"}},
    }


async def test_a_wrong_file_fails_its_job_by_name_and_the_next_source_lets_it_run_again(tmp_path: Path) -> None:
    base, log = tmp_path / "base", tmp_path / "log.txt"
    base.mkdir()
    right = make_tiny_checkpoint(tmp_path).read_bytes()
    wrong = right[:-1000] + bytes([right[-1000] ^ 255]) + right[-999:]
    settings = {
        "BASE_DIRECTORY": str(base), "STATE_DIRECTORY": str(tmp_path / "state"), "BENCHMARK": "off", "CPU": "true",
        "FETCH_MISSING": "manifest", "MODEL_BANDWIDTH": str(len(right) // 2), 
        "MIN_FREE_MEMORY_BYTES": "0", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    with model_server(files={"/right.safetensors": right, "/wrong.safetensors": wrong}) as server:
        manifest = MANIFEST.format(url=server.url, sha256=hashlib.sha256(right).hexdigest())
        (base / "models.toml").write_text(manifest)
        with log.open("w+b") as output, worker_alone(settings, output) as (_, url):
            async with httpx.AsyncClient(base_url=url, timeout=300) as http:

                async def is_ready() -> bool:
                    try:
                        return (await http.get("/ready")).status_code == 200
                    except httpx.TransportError:
                        return False

                await until(is_ready, 240)
                jobs = (
                    http.post("/generate/sync", json={"input": {"workflow_json": workflow(f"{name}.safetensors")}})
                    for name in ("wrong", "right")
                )
                refused, made = await asyncio.gather(*jobs)
    assert refused.status_code == 422 and refused.json()["error"]["model"] == "wrong.safetensors"
    assert refused.json()["error"]["reason"] == "model_broken" and refused.json()["output"] == []
    assert made.status_code == 200, made.text
    assert (base / "models" / "checkpoints" / "right.safetensors").read_bytes() == right
    assert not (base / "models" / "checkpoints" / "wrong.safetensors").exists()
