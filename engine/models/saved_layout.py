"""A model's weights under the names that a checkpoint of its family has."""

from __future__ import annotations

import json
from typing import Any

import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily, Tensors
from darkroom.engine.text.clip_encoding import TextEncoderSet


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


def vocabulary_tensors(text_encoders: TextEncoderSet) -> dict[str, torch.Tensor]:
    """Return the serialised tokenizers of a text encoder set, tensors of bytes, under a checkpoint's names."""
    encoders: dict[str, Any] = {**text_encoders.encoders()}
    contents = (
        (vocabulary, getattr(encoders.get(item.encoding.slot), name, None))
        for item in text_encoders.family.text
        for name, vocabulary in (("vocabulary", item.vocabulary), ("second_vocabulary", item.second_vocabulary))
    )
    return {
        vocabulary.in_checkpoint: bytes_tensor(content)
        for vocabulary, content in contents
        if vocabulary is not None and content is not None
    }


def bytes_tensor(content: bytes) -> torch.Tensor:
    """Return bytes as a tensor [length] of theirs."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def vae_tensors(family: ModelFamily, weights: Tensors) -> dict[str, torch.Tensor]:
    """Return the weights of the VAE under a checkpoint's names."""
    return dict(family.vae.saved(weights))


def description(family: ModelFamily, denoiser: torch.nn.Module, vae: torch.nn.Module | None = None) -> dict[str, str]:
    """Return the metadata of a checkpoint with these networks: what the shapes of their tensors do not tell."""
    parts = [family.denoiser.description(denoiser.config)]
    if vae is not None:
        parts.append(_vae_description(vae))
    return _as_texts(parts)


def vae_description(vae: torch.nn.Module) -> dict[str, str]:
    """Return the metadata of a file of a VAE alone."""
    return _as_texts([_vae_description(vae)])


def _vae_description(vae: torch.nn.Module) -> dict[str, dict[str, Any]]:
    owner = next((network for _, network in registry.vaes() if network.build is type(vae)), None)
    return {} if owner is None else owner.description(vae.config)


def _as_texts(descriptions: list[dict[str, dict[str, Any]]]) -> dict[str, str]:
    merged: dict[str, dict[str, Any]] = {}
    for described in descriptions:
        for name, fields in described.items():
            merged.setdefault(name, {}).update(fields)
    return {name: json.dumps(fields) for name, fields in merged.items()}
