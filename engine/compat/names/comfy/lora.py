"""`comfy.lora`: whose weights a LoRA file's names mean, and its patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.adapters.lora import lora_patches
from engine.adapters.lora_names import clip_text_keys, denoiser_keys
from engine.architectures.diffusers_names import unet_names


def model_lora_keys_unet(model: Any, key_map: dict[str, Any] | None = None) -> dict[str, Any]:
    """The names a LoRA may use -> the network's weights, added to `key_map`."""
    return {**(key_map or {}), **denoiser_keys(model.state_dict(), unet_names(model.diffusion_model.config))}


def model_lora_keys_clip(model: Any, key_map: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        **(key_map or {}),
        **clip_text_keys(model.state_dict(), "clip_l.transformer."),
    }


def load_lora(lora: Mapping[str, Any], to_load: Mapping[str, str], log_missing: bool = True) -> dict[str, Any]:
    """Patches by weight, for `add_patches`."""
    return lora_patches(lora, to_load, warn=log_missing)
