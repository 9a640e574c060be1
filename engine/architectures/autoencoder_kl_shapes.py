"""The configuration of a KL autoencoder, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.architectures.autoencoder_kl import VaeConfig
from engine.architectures.latent_unet_shapes import Shapes, count_children

TEMPORAL_MARK = "decoder.mid.block_1.mix_factor"


def vae_config(shapes: Shapes) -> VaeConfig:
    """Return the configuration of the autoencoder with these tensors (names without prefix)."""
    first = shapes["encoder.conv_in.weight"]
    is_temporal = TEMPORAL_MARK in shapes
    levels = range(count_children(shapes, "encoder.down"))
    return VaeConfig(
        base_channels=first[0],
        level_channels=tuple(shapes[f"encoder.down.{level}.block.0.conv1.weight"][0] for level in levels),
        blocks_per_level=count_children(shapes, "encoder.down.0.block"),
        latent_channels=shapes["decoder.conv_in.weight"][1],
        embedding_channels=_embedding_channels(shapes, is_temporal=is_temporal),
        picture_channels=first[1],
        is_temporal=is_temporal,
    )


def _embedding_channels(shapes: Shapes, *, is_temporal: bool) -> int:
    if is_temporal:
        return shapes["decoder.conv_in.weight"][1]
    return shapes["post_quant_conv.weight"][1] if "post_quant_conv.weight" in shapes else 0
