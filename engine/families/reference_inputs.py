"""Inputs of networks that see reference images beside the one that they generate. `B` batch, `C` channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, ListInput
from darkroom.engine.diffusion.denoiser import Denoiser


def reference_inputs(denoiser: Denoiser, options: Mapping[str, Any]) -> dict[str, BatchedInput]:
    """Return the reference latents of a condition in the network's scale, and the way in which it sees them.

    None without any. Raises ValueError for latents of another family's VAE.
    """
    references = options.get("reference_latents")
    if references is None:
        return {}
    scaled = [denoiser.process_latent_in(_checked(denoiser, latent)) for latent in references]
    inputs: dict[str, BatchedInput] = {"ref_latents": ListInput(scaled)}
    method = options.get("reference_latents_method")
    return inputs if method is None else {**inputs, "ref_latents_method": ConstantInput(method)}


def _checked(denoiser: Denoiser, latent: torch.Tensor) -> torch.Tensor:
    channels, num_axes = denoiser.latent_format.latent_channels, denoiser.latent_format.latent_dimensions + 2
    if latent.ndim not in (4, num_axes) or latent.shape[1] != channels:
        raise ValueError(
            f"reference latents: a latent of another VAE than the model's; got shape {list(latent.shape)}, "
            f"expected {channels} channels"
        )
    return latent
