"""Names that LoRA files use for the weights of a model, by its family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from darkroom.engine.adapters.lora_conventions import under_common_names
from darkroom.engine.adapters.lora_names import LoraTarget, target_name
from darkroom.engine.adapters.weight_adapters import LoraAdapter
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.models.weight_handle import Network

TEXT_STARTS = ("lora_te", "text_encoder", "lora_prior_te", "clip_", "t5xxl")  # of keys for text encoders


def denoiser_lora_keys(network: Network) -> Mapping[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of a denoising network, or parts of them.

    `network` is `engine/diffusion/denoiser.py::Denoiser`.
    """
    family: ModelFamily = network.model_config.family
    return family.network_lora_keys(network.state_dict(), network.diffusion_model.config)


def renamed_lora(network: Network | None, lora: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a LoRA file's tensors under common names, also where files for the network's family have others.

    Without a denoising network they are those for text encoders alone.
    """
    lora = under_common_names(lora)
    family: ModelFamily | None = None if network is None else network.model_config.family
    return lora if network is None or family is None else family.renamed_lora(lora, network.diffusion_model.config)


def lora_misfit(network: Network, patches: Mapping[LoraTarget, Any]) -> str | None:
    """Return the sign, in a LoRA's patches, that it is made for another network; None without one.

    Networks of one kind share names and many widths. A LoRA is another's where none of its patches of linear layers has
    as many inputs as the layer, or none of those of the layers that read the text.
    """
    config = network.diffusion_model.config
    text_dim = getattr(config, "context_dim", 0) or getattr(config, "text_dim", 0)
    wrong: list[str] = []
    fits: list[bool] = []
    fits_text: list[bool] = []
    for target, adapter in patches.items():
        layer = _linear_layer(network, target_name(target)) if isinstance(adapter, LoraAdapter) else None
        if layer is None or adapter.reshape is not None:
            continue
        given, wanted = adapter.down.flatten(1).shape[1], layer.in_features
        fits.append(given == wanted)
        if wanted == text_dim:
            fits_text.append(given == wanted)
        if given != wanted:
            wrong.append(f"a change of {given} inputs for {target_name(target)}, expected {wanted}")
    is_other = bool(wrong) and (not any(fits) or (bool(fits_text) and not any(fits_text)))
    return wrong[0] if is_other else None


def _linear_layer(network: Network, name: str) -> nn.Linear | None:
    try:
        layer = network.get_submodule(name.removesuffix(".weight"))
    except AttributeError:
        return None
    return layer if isinstance(layer, nn.Linear) else None


def text_lora_keys(text_encoders: Network) -> dict[str, str]:
    """Return a map from the names used in LoRA files to the weights of a set of text encoders."""
    family: ModelFamily = text_encoders.family
    return family.text_lora_keys(text_encoders.state_dict())
