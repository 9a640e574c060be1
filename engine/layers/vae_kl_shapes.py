"""The configuration of a KL autoencoder, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.layers.unet_shapes import Shapes
from engine.layers.vae_kl import VaeConfig
from engine.layers.vae_levels import vae_levels

TEMPORAL_MARK = "decoder.mid.block_1.mix_factor"


def vae_config(shapes: Shapes) -> VaeConfig:
    """Return the configuration of the autoencoder with these tensors (names without prefix)."""
    levels, is_temporal = vae_levels(shapes), TEMPORAL_MARK in shapes
    return VaeConfig(
        base_channels=shapes["encoder.conv_in.weight"][0],
        level_channels=levels.level_channels,
        blocks_per_level=levels.blocks_per_level,
        latent_channels=shapes["decoder.conv_in.weight"][1],
        embedding_channels=_embedding_channels(shapes, is_temporal=is_temporal),
        picture_channels=levels.picture_channels,
        is_temporal=is_temporal,
    )


def _embedding_channels(shapes: Shapes, *, is_temporal: bool) -> int:
    if is_temporal:
        return shapes["decoder.conv_in.weight"][1]
    return shapes["post_quant_conv.weight"][1] if "post_quant_conv.weight" in shapes else 0
