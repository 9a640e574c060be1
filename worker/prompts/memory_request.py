"""The question to an engine of ours what memory a prompt takes on a card. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from darkroom.contract.graph.work import PromptWork
from darkroom.worker.prompts.model_needs import ModelNeeds

ROUTE: Final = "/api/v1/memory_plan"
FOLDERS: Final[Mapping[str, str]] = {"unet": "diffusion_models", "clip": "text_encoders"}
"""Older names of folders of model files."""


def memory_request(work: PromptWork, needs: ModelNeeds, vram_bytes: int | None) -> dict[str, object]:
    """Return the body for an engine's memory plan; `vram_bytes` None: of its own device."""
    missing = {
        f"{FOLDERS.get(item.entry.kind, item.entry.kind)}/{item.model.name}": {
            "size_bytes": item.entry.size_bytes,
            "family": next(iter(item.entry.families), ""),
        }
        for item in needs.missing
        if item.entry is not None
    }
    pixels = {node_id: int(size.sampled_pixels) for node_id, size in work.sizes.items() if size.pixels is not None}
    return {"prompt": work.graph.prompt, "vram_bytes": vram_bytes, "missing": missing, "pixels": pixels}
