"""A model's weights under the names that a checkpoint of its family has."""

from __future__ import annotations

import torch

from engine.families.base import ModelFamily, Tensors


def denoiser_tensors(family: ModelFamily, weights: Tensors) -> dict[str, torch.Tensor]:
    """Return the weights of the denoising network under a checkpoint's names."""
    return dict(family.denoiser.saved(weights))


def text_tensors(family: ModelFamily, weights: Tensors) -> dict[str, torch.Tensor]:
    """Return the weights of the text encoder set (`clip_l.transformer...`) under a checkpoint's names."""
    tensors: dict[str, torch.Tensor] = {}
    for encoder in family.text:
        prefix = f"{encoder.encoding.key}.transformer."
        own = {name.removeprefix(prefix): item for name, item in weights.items() if name.startswith(prefix)}
        tensors |= encoder.network.saved(own)
    return tensors


def vae_tensors(family: ModelFamily, weights: Tensors) -> dict[str, torch.Tensor]:
    """Return the weights of the VAE under a checkpoint's names."""
    return dict(family.vae.saved(weights))
