"""`comfy.lora`: map from a LoRA file's names to weights, and its patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from darkroom.contract.graph.spec import Values
from darkroom.engine.adapters.lora import lora_patches
from darkroom.engine.memory import weight_patches
from darkroom.engine.models.patching.lora_keys import denoiser_lora_keys, text_lora_keys


def model_lora_keys_unet(model: object, key_map: dict[str, object] | None = None) -> dict[str, object]:
    """Return a map from the names a LoRA may use to the network's weights, added to `key_map`."""
    return {**(key_map or {}), **denoiser_lora_keys(model)}


def model_lora_keys_clip(model: object, key_map: dict[str, object] | None = None) -> dict[str, object]:
    return {**(key_map or {}), **text_lora_keys(model)}


def load_lora(lora: Values, to_load: Values, log_missing: bool = True) -> dict[Any, Any]:
    """Return patches by weight, or part of a weight, for `add_patches`."""
    return lora_patches(lora, to_load, warn=log_missing)


def calculate_weight(
    patches: Sequence[weight_patches.WeightPatch],
    weight: torch.Tensor,
    key: str,
    intermediate_dtype: torch.dtype = torch.float32,
    original_weights: Mapping[str, Sequence[Sequence[Any]]] | None = None,
) -> torch.Tensor:
    """Return `weight` with patches, changed in place where possible; the patches are computed in float32."""
    originals = None if original_weights is None else lambda name: original_weights[name][0][0]
    return weight_patches.calculate_weight(patches, weight, key, originals)
