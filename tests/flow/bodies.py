"""The requests that flow tests send, small enough for a CPU, and what a good answer to them is."""

from __future__ import annotations

from typing import Any

import httpx

from tests.flow.running_worker import CHECKPOINT

SIDE_PX = 64
SEED = 20261121


def modifier_request(**input_fields: Any) -> dict[str, Any]:
    modifications = {
        "prompt": "a lighthouse at dawn",
        "negative_prompt": "blurry",
        "ckpt_name": CHECKPOINT,
        "width": SIDE_PX,
        "height": SIDE_PX,
        "steps": 3,
        "seed": SEED,
    }
    return {"input": {"modifier": "Text2Image", "modifications": modifications, **input_fields}}


def image_request(image: str, **input_fields: Any) -> dict[str, Any]:
    modifications = {
        "prompt": "a lighthouse at dawn",
        "input_image": image,
        "ckpt_name": CHECKPOINT,
        "steps": 3,
        "seed": SEED,
    }
    return {"input": {"modifier": "Image2Image", "modifications": modifications, **input_fields}}


def workflow(seed: int | str = SEED, **changes: Any) -> dict[str, Any]:
    """Text to image with other settings than the modifier's; `changes` replace whole nodes (`n5` the node 5)."""
    nodes = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": CHECKPOINT}},
        "2": {"class_type": "EmptyLatentImage", "inputs": {"width": 96, "height": SIDE_PX, "batch_size": 2}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"text": "a (red:1.3) boat", "clip": ["1", 1]}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["1", 1]}},
        "5": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["1", 0],
                "positive": ["3", 0],
                "negative": ["4", 0],
                "latent_image": ["2", 0],
                "seed": seed,
                "steps": 4,
                "cfg": 6.5,
                "sampler_name": "dpmpp_2m",
                "scheduler": "karras",
                "denoise": 1.0,
            },
        },
        "6": {"class_type": "VAEDecode", "inputs": {"samples": ["5", 0], "vae": ["1", 2]}},
        "7": {"class_type": "SaveImage", "inputs": {"images": ["6", 0], "filename_prefix": "flow"}},
    }
    return {**nodes, **{key.removeprefix("n"): node for key, node in changes.items()}}


def workflow_request(seed: int | str = SEED, **input_fields: Any) -> dict[str, Any]:
    return {"input": {"workflow_json": workflow(seed), **input_fields}}


def vast_envelope(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request as Vast's client sends it; without MASTER_TOKEN nobody checks the signature."""
    auth = {"cost": "100", "endpoint": "e", "reqnum": 1, "request_idx": 1, "signature": "-", "url": "http://127.0.0.1"}
    return {"auth_data": auth, "payload": request}


def finished(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    assert result["status"] == "completed"
    return result
