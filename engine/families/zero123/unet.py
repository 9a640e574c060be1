"""The latent UNet with a projection of tokens that are wider than its own, as Zero-1-to-3 has one."""

from __future__ import annotations

from dataclasses import dataclass, fields

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.layers.unet import UnetConfig, UnetModel
from darkroom.engine.layers.unet_shapes import unet_config

PROJECTION = "cc_projection.weight"


@dataclass(frozen=True, slots=True)
class Zero123Config(UnetConfig):
    """Configuration of the network; `projected_dim` is the width of the tokens that are projected."""

    projected_dim: int = 0


class Zero123Unet(UnetModel):
    """A UNet beside which stands a projection of tokens [B, T, projected_dim] -> [B, T, context_dim]."""

    def __init__(self, config: Zero123Config) -> None:
        super().__init__(config)
        self.cc_projection = Linear(config.projected_dim, config.context_dim)


def zero123_config(shapes: Shapes) -> Zero123Config:
    """Return the configuration of the network with these tensors (names without prefix)."""
    return project(unet_config(shapes), shapes[PROJECTION][1])


def project(config: UnetConfig, projected_dim: int) -> Zero123Config:
    """Return the configuration of a UNet with a projection beside it."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return Zero123Config(**values, projected_dim=projected_dim)
