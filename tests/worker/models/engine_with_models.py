"""A fake engine with a checkpoint loader, whose choices are the files in a folder, as ComfyUI's are."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fakes import OBJECT_INFO, FakeEngine

LOADERS = {
    "CheckpointLoaderSimple": ("ckpt_name", "checkpoints"),
    "LoraLoaderModelOnly": ("lora_name", "loras"),
    "VAELoader": ("vae_name", "vae"),
    "UNETLoader": ("unet_name", "diffusion_models"),
    "CLIPLoader": ("clip_name", "text_encoders"),
}


class EngineWithModels(FakeEngine):
    """Its loaders do nothing. `models` is the folder that it lists."""

    def __init__(self, folder: Path, models: Path) -> None:
        super().__init__(folder)
        self.models = models

    async def _object_info(self, _request: web.Request) -> web.Response:
        self.num_described += 1
        info = copy.deepcopy(OBJECT_INFO)
        info["Draw"]["input"]["optional"] = {f"model{place}": ["MODEL"] for place in range(10, 15)}
        for name, (field, kind) in LOADERS.items():
            info[name] = {
                "input": {"required": {field: [self._files(kind), {}]}, "optional": {}},
                "output": ["MODEL"],
                "output_node": False,
                "python_module": "nodes",
            }
        return web.json_response(info)

    async def _run(self, prompt_id: str, prompt: dict[str, Any], client_id: str) -> dict[str, Any]:
        for node in prompt.values():
            field, kind = LOADERS.get(node["class_type"], ("", ""))
            if field and node["inputs"][field] not in self._files(kind):
                node["class_type"] = "Fails"
        kept = {node_id: node for node_id, node in prompt.items() if node["class_type"] not in LOADERS}
        return await super()._run(prompt_id, kept, client_id)

    def _files(self, kind: str) -> list[str]:
        return sorted(path.name for path in (self.models / kind).glob("*.safetensors"))


def drawing(*checkpoints: str) -> dict[str, Any]:
    """A workflow that loads checkpoints and draws with them."""
    loaders = {
        str(place): {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": name}}
        for place, name in enumerate(checkpoints, start=10)
    }
    links = {f"model{place}": [place, 0] for place in loaders}
    return {**loaders, "1": {"class_type": "Draw", "inputs": {"text": "a", "size": 3, **links}}}
