"""Checkpoints of random weights: for benchmarks, for tests, and for a machine without access to models.

The images are abstract, but finite. The UNet predicts approximately the normalised noisy latent, so that sampling
ends in the range of real latents.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from darkroom.engine.families.base import ModelFamily
from darkroom.engine.families.registry import default_family
from darkroom.engine.formats.fill import wants_channels_last
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.formats.unfilled import give_memory, unfilled
from darkroom.engine.layers.frozen_norm import FrozenBatchNorm
from darkroom.engine.layers.image_encoders import ImageEncoderConfig, image_encoder
from darkroom.engine.layers.norms import DynamicTanh
from darkroom.engine.layers.unet import UnetModel
from darkroom.engine.layers.weight_norm import WeightNorm
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.saved_layout import (
    denoiser_tensors,
    description,
    text_tensors,
    vae_tensors,
    vocabulary_tensors,
)
from darkroom.engine.text.clip_encoding import TextEncoderSet

# Layers that end a residual branch: small, so that depth does not make activations grow.
BRANCH_ENDS = ("out_layers.3", "proj_out", "to_out.0", "ff.net.2", "conv2", "out_proj", "fc2")
NORMED_BRANCH_END = "layers.3"  # of residual units of audio
BRANCH_GAIN = 0.3
NUMBERS_AT_ONCE = 1 << 24  # drawn in float32 for weights of a type that torch draws no numbers in
DRAWN_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Parameters that something is divided by or multiplied with, and tokens from which layers make others.
FACTORS = (
    "std-of-means", "latent_std", "timestep_scale_multiplier", "gamma", "lambda1", "running_std", "scaling_factor",
    "new_tokens",
)  # fmt: skip


def random_networks(
    scale: str, seed: int, types: LoadTypes, device: str = "cpu", *, family: ModelFamily | None = None
) -> tuple[Any, Any, Any]:
    """Draw a family's networks of a scale on the device, deterministically by seed, scale and device.

    Weights may have any floating point type: those that torch draws no numbers in, as float8, are drawn in float32 and
    rounded. On the device "meta" they have shapes alone.

    Returns the denoising network, the `TextEncoderSet` and the VAE. A family that takes no prompt has None for text
    encoders. Without a family it is the default one. Raises KeyError for an unknown scale.
    """
    family = default_family() if family is None else family
    configs = family.scales[scale]
    types = types.of(family)
    with unfilled():
        unet = family.denoiser.build(configs.denoiser)
        described = family.text_of(configs)
        transformers = [encoder.network.build(configs.text[encoder.encoding.slot]) for encoder in described]
        encoders = [
            encoder.encoder_type(transformer, encoder.encoding)
            for transformer, encoder in zip(transformers, described, strict=True)
        ]
        for encoder, item in zip(encoders, described, strict=True):
            if item.vocabulary is not None:
                encoder.vocabulary = item.vocabulary.random()
            if item.second_vocabulary is not None:
                encoder.second_vocabulary = item.second_vocabulary.random()
        text_encoder = TextEncoderSet(encoders, combine=family.combine_text, family=family) if encoders else None
        vae = family.vae.build(configs.vae)
    generator = _generator(device, seed)
    for network, dtype in ((unet, types.unet), (text_encoder, types.text_encoder), (vae, types.vae)):
        if network is None:
            continue
        give_memory(network.requires_grad_(False).to(dtype).eval(), device)
        if generator is not None:
            _draw(network, generator)
        # Only now: torch fills a tensor in the order of its memory, and the weights shall not depend on their layout.
        if wants_channels_last(dtype, on_processor=device == "cpu"):
            for weight in network.parameters():
                if weight.ndim == 4:
                    weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    if isinstance(unet, UnetModel) and generator is not None:
        _carry_latent(unet)
    return unet, text_encoder, vae


def _generator(device: str, seed: int) -> torch.Generator | None:
    """Return a generator for weights on a device; None for that of shapes alone, where there is nothing to draw."""
    return None if torch.device(device).type == "meta" else torch.Generator(device=device).manual_seed(seed)


def _set_gaussian(weight: torch.Tensor, std: float, generator: torch.Generator) -> None:
    """Set a contiguous weight of any floating point type to Gaussian noise of mean zero.

    In a type that torch draws no numbers in they are drawn in float32, in slices, and rounded.
    """
    if weight.dtype in DRAWN_TYPES:
        weight.normal_(0.0, std, generator=generator)
        return
    flat = weight.view(-1)
    for start in range(0, flat.numel(), NUMBERS_AT_ONCE):
        part = flat[start : start + NUMBERS_AT_ONCE]
        part.copy_(torch.empty_like(part, dtype=torch.float32).normal_(0.0, std, generator=generator))


@torch.no_grad()
def _draw(network: nn.Module, generator: torch.Generator) -> None:
    """Set norms to the identity, biases to zero, and other weights to Gaussian noise of variance 1 / fan-in.

    Parameters of other names (factors that mix two branches) are zero, those that are divided by are one.
    """
    for name, module in network.named_modules():
        for kind, parameter in module.named_parameters(recurse=False):
            if kind not in ("weight", "bias"):
                is_slope = kind == "alpha" and isinstance(module, DynamicTanh)
                is_factor = isinstance(module, nn.RMSNorm) or kind in FACTORS or is_slope
                parameter.fill_(1.0) if is_factor else parameter.zero_()
        if isinstance(module, FrozenBatchNorm):
            module.running_var.fill_(1.0)
        if isinstance(module, WeightNorm):
            _draw_normed(module, BRANCH_GAIN if name.endswith(NORMED_BRANCH_END) else 1.0, generator)
            continue
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor):
            continue
        if isinstance(module, (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, FrozenBatchNorm)):
            weight.fill_(1.0)
        elif isinstance(module, nn.Embedding):
            _set_gaussian(weight, 0.02, generator)
        else:
            gain = BRANCH_GAIN if name.endswith(BRANCH_ENDS) else 1.0
            _set_gaussian(weight, gain / math.sqrt(weight[0].numel()), generator)
        bias = getattr(module, "bias", None)
        if isinstance(bias, torch.Tensor):
            bias.zero_()


def _draw_normed(module: WeightNorm, gain: float, generator: torch.Generator) -> None:
    """Set a weight of a direction and a length to Gaussian noise of variance gain^2 / fan-in, and its bias to zero."""
    direction = module.weight_v
    _set_gaussian(direction, gain / math.sqrt(direction[0].numel()), generator)
    dims = tuple(range(1, direction.ndim))
    module.weight_g.copy_(torch.linalg.vector_norm(direction.float(), dim=dims, keepdim=True))
    if module.bias is not None:
        module.bias.zero_()


@torch.no_grad()
def _carry_latent(unet: UnetModel) -> None:
    """Set weights so that eight channels carry plus and minus the latent from the first layer to the output.

    They use the last skip connection.

    silu(a) - silu(-a) = a, so the output convolution gets the latent back from the two signs.
    """
    channels = unet.config.model_channels
    weights = dict(unet.named_parameters())
    signs = torch.cat([torch.eye(4), -torch.eye(4)]).to(
        weights["out.2.weight"].device
    )  # float32: not all types compute
    first, out = weights["input_blocks.0.0.weight"], weights["out.2.weight"]
    first[:8] = 0
    first[:8, :4, 1, 1] = signs
    reserved = max(8, channels // 32)
    last = f"output_blocks.{len(unet.output_blocks) - 1}"
    skip = weights[f"{last}.0.skip_connection.weight"]
    start = skip.shape[1] - channels  # where the skip connection's channels begin
    skip[:reserved] = 0
    skip[range(8), range(start, start + 8)] = 1
    weights[f"{last}.0.out_layers.3.weight"][:reserved] = 0
    if f"{last}.1.proj_out.weight" in weights:
        weights[f"{last}.1.proj_out.weight"][:reserved] = 0
    out[:, 8:] = (out[:, 8:].float() * 0.1).to(out.dtype)
    out[:, :8] = 0
    out[:, :8, 1, 1] = signs.T * 0.95


def _random_vision(config: ImageEncoderConfig, seed: int) -> dict[str, torch.Tensor]:
    """Draw an image encoder, deterministically by seed and configuration."""
    with unfilled():
        network = image_encoder(config)
    give_memory(network.requires_grad_(False), "cpu")
    _draw(network, torch.Generator().manual_seed(seed))
    return network.state_dict()


def write_random_checkpoint(
    path: Path, scale: str = "small", seed: int = 0, *, family: ModelFamily | None = None
) -> None:
    """Write a checkpoint in a family's layout, float16. The file appears only when it is whole."""
    family = default_family() if family is None else family
    unet, text_encoder, vae = random_networks(scale, seed, LoadTypes(), family=family)
    tensors = denoiser_tensors(family, unet.state_dict())
    tensors |= vae_tensors(family, vae.state_dict())
    if text_encoder is not None:
        tensors |= text_tensors(family, text_encoder.state_dict())
    vocabularies = {} if text_encoder is None else vocabulary_tensors(text_encoder)
    vision = family.scales[scale].vision
    if vision is not None:
        tensors |= {f"{family.vision_prefix}{name}": item for name, item in _random_vision(vision, seed).items()}
    halved = {name: weight.to(torch.float16) for name, weight in tensors.items()}
    write_safetensors(path, halved | vocabularies, description(family, unet, vae))


def random_denoiser(
    config: Any, seed: int = 0, *, family: ModelFamily, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Any:
    """Draw a denoising network of this configuration alone on the device, deterministically by seed and device."""
    with unfilled():
        network = family.denoiser.build(config)
    give_memory(network.requires_grad_(False).to(dtype).eval(), device)
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    _draw(network, generator)
    if isinstance(network, UnetModel):
        _carry_latent(network)
    return network


def write_random_denoiser(path: Path, config: Any, seed: int = 0, *, family: ModelFamily) -> None:
    """Write a denoising network of this configuration alone, float16, under the names that a checkpoint has."""
    network = random_denoiser(config, seed, family=family, dtype=torch.float16)
    write_safetensors(path, denoiser_tensors(family, network.state_dict()), description(family, network))
