"""The configuration of a causal video autoencoder, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.families.wan.vae import WanVaeConfig
from engine.layers.unet_shapes import Shapes

MARK = "decoder.middle.0.residual.0.gamma"
NESTED_MARK = "decoder.upsamples.0.upsamples.0.residual.2.weight"  # of the autoencoder of Wan 2.2
LAST_NORM = "decoder.head.0.gamma"


def wan_vae_config(shapes: Shapes) -> WanVaeConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    return WanVaeConfig(base_channels=shapes[LAST_NORM][0], latent_channels=shapes["conv2.weight"][0])
