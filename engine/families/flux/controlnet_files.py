"""The ControlNets of Flux.1: InstantX's layout (also Shakker Labs, jasperai, alimama), XLabs', MistoLine's."""

from __future__ import annotations

from functools import partial

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import ControlNetwork, ControlReading, Network, Shapes, TensorReader
from darkroom.engine.families.flux.controlnet import (
    FluxControlNet,
    FluxControlNetConfig,
    HintKind,
    flux_controlnet_config,
)
from darkroom.engine.families.flux.diffusers_names import file_layout
from darkroom.engine.families.flux.transformer import FluxConfig
from darkroom.engine.formats.weight_file import Item, Names

LIBRARY_LAYOUT = file_layout({"controlnet_x_embedder": "pos_embed_input"})
INPUTS = ("y", "guidance")
FIRST_ONWARD = "controlnet_blocks.0.weight"
OWN_MARK = "double_blocks.0.img_attn.norm.key_norm.scale"
ACTIVATED_ONWARD = "controlnet_blocks.0.linear.weight"
ACTIVATED_SINGLES = "single_controlnet_blocks."
SINGLES = "controlnet_single_blocks."
FURTHER = ("controlnet_blocks.", SINGLES, "controlnet_mode_embedder.")


def _library_layout(shapes: Shapes) -> Names | None:
    """Return the names of a file in the layout of the diffusers library."""
    if FIRST_ONWARD not in shapes or "controlnet_x_embedder.weight" not in shapes:
        return None
    names = LIBRARY_LAYOUT(shapes)
    if names is None:
        return None
    further: dict[str, Item] = {name: name for name in shapes if name.startswith(FURTHER)}
    return {**names, **further}


def _own_layout(shapes: Shapes) -> Names | None:
    """Return the names of a file whose blocks are called as the network's."""
    if OWN_MARK not in shapes or not (FIRST_ONWARD in shapes or ACTIVATED_ONWARD in shapes):
        return None
    return {name.replace(ACTIVATED_SINGLES, SINGLES): name for name in shapes}


def _reading(latents: LatentFormat, config: FluxControlNetConfig, file: TensorReader) -> ControlReading:
    if config.hint is not HintKind.LATENT:
        return ControlReading(inputs=INPUTS)
    return ControlReading(latents, config.hint_channels > latents.latent_channels, INPUTS)


def _steers(config: FluxControlNetConfig, steered: object) -> bool:
    return isinstance(steered, FluxConfig) and config.trunk.width == steered.width


def control_networks(latents: LatentFormat) -> tuple[ControlNetwork, ...]:
    """Return the kinds of ControlNets, which read latents of that format, or pixels."""
    network = Network(
        layouts=(_library_layout, _own_layout),
        in_checkpoint=(),
        configure=flux_controlnet_config,
        build=FluxControlNet,
    )
    return (ControlNetwork(network, partial(_reading, latents), _steers),)
