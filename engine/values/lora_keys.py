"""Names that LoRA files use for the weights of a model, by its family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.adapters.lora_names import LoraTarget
from engine.families.base import ModelFamily
from engine.values.weight_handle import Network


def denoiser_lora_keys(network: Network) -> Mapping[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of a denoising network, or parts of them.

    `network` is `engine/diffusion/denoiser.py::Denoiser`.
    """
    family: ModelFamily = network.model_config.family
    return family.denoiser_lora_keys(network.state_dict(), network.diffusion_model.config)


def renamed_lora(network: Network, lora: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a LoRA file's tensors under common names, where files for the network's family have names of their own."""
    family: ModelFamily | None = network.model_config.family
    return lora if family is None else family.renamed_lora(lora)


def text_lora_keys(text_encoders: Network) -> dict[str, str]:
    """Return a map from the names used in LoRA files to the weights of a set of text encoders."""
    family: ModelFamily = text_encoders.family
    return family.text_lora_keys(text_encoders.state_dict())
