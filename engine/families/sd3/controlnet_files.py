"""The ControlNets of Stable Diffusion 3 and 3.5: InstantX's, and Stability AI's for 3.5 large."""

from __future__ import annotations

from functools import partial

import torch

from darkroom.engine.diffusion.latent_format import LatentFormat, ShiftedLatentFormat
from darkroom.engine.families.base import ControlNetwork, ControlReading, Network, Shapes, TensorReader
from darkroom.engine.families.sd3.controlnet import (
    Sd3ControlNet,
    Sd3ControlNetConfig,
    Sd35ControlNet,
    Sd35ControlNetConfig,
)
from darkroom.engine.families.sd3.diffusers_names import NETWORK, file_layout
from darkroom.engine.families.sd3.transformer import Sd3Config, sd3_config
from darkroom.engine.formats.weight_file import Item, Names
from darkroom.engine.layers.shapes import count_children

FIRST_ONWARD = "controlnet_blocks.0.weight"
HINT = "pos_embed_input.proj.weight"
PATCHES_MARK = "transformer_blocks.0.adaLN_modulation.1.bias"
FURTHER = ("controlnet_blocks.", "pos_embed_input.")
PATCHES_FURTHER = (*FURTHER, "transformer_blocks.", "t_embedder.", "x_embedder.", "y_embedder.")
LABELS, PATCHES = "y_embedder.", "x_embedder."
KIND = "control_type"
CANNY, DEPTH = 1, 2


def _layout(shapes: Shapes) -> Names | None:
    """Return the names of a shorter copy, in the layout of the diffusers library."""
    names = file_layout(shapes) if FIRST_ONWARD in shapes and HINT in shapes else None
    return None if names is None else {**names, **_further(shapes, FURTHER)}


def _configure(shapes: Shapes) -> Sd3ControlNetConfig:
    return Sd3ControlNetConfig(sd3_config(shapes), shapes[HINT][1])


def _reading(latents: LatentFormat, config: Sd3ControlNetConfig, file: TensorReader) -> ControlReading:
    return ControlReading(latents, config.hint_channels > latents.latent_channels)


def _steers(config: Sd3ControlNetConfig, steered: object) -> bool:
    return isinstance(steered, Sd3Config) and config.trunk.width == steered.width


def _patches_layout(shapes: Shapes) -> Names | None:
    """Return the names of a network that reads no text: those of the diffusers library outside its blocks."""
    if FIRST_ONWARD not in shapes or HINT not in shapes or PATCHES_MARK not in shapes:
        return None
    renamed: dict[str, Item] = {
        f"{ours}.{kind}": f"{theirs}.{kind}"
        for theirs, ours in NETWORK.items()
        for kind in ("weight", "bias")
        if f"{theirs}.{kind}" in shapes
    }
    return {**_further(shapes, PATCHES_FURTHER), **renamed}


def _further(shapes: Shapes, prefixes: tuple[str, ...]) -> dict[str, Item]:
    return {name: name for name in shapes if name.startswith(prefixes)}


def _configure_patches(shapes: Shapes) -> Sd35ControlNetConfig:
    width, label_dim = shapes["y_embedder.mlp.0.weight"]
    _, channels, patch_size, _ = shapes[HINT]
    return Sd35ControlNetConfig(
        num_blocks=count_children(shapes, "transformer_blocks"),
        width=width,
        embeds_twice=width == label_dim,
        label_dim=label_dim,
        in_channels=channels,
        patch_size=patch_size,
    )


def _of_canny(image: torch.Tensor) -> torch.Tensor:
    return image * 255 * 0.5 + 0.5


def _of_depth(image: torch.Tensor) -> torch.Tensor:
    return 1.0 - image


def _reading_patches(latents: LatentFormat, config: Sd35ControlNetConfig, file: TensorReader) -> ControlReading:
    """Return the reading; the file has a number for its kind of image, which it was trained on in a range of its own.

    The range of Canny's edges is far beyond that of an image: as in ComfyUI.
    """
    kind = round(float(file.tensor(KIND).item())) if KIND in file.shapes else None
    borrowed = LABELS if config.embeds_twice else PATCHES
    if kind == CANNY:
        return ControlReading(latents, prepare=_of_canny, borrowed=borrowed)
    if kind == DEPTH:
        return ControlReading(latents, prepare=_of_depth, borrowed=borrowed)
    return ControlReading(latents, borrowed=borrowed)


def _steers_patches(config: Sd35ControlNetConfig, steered: object) -> bool:
    return isinstance(steered, Sd3Config) and config.width == steered.width


def control_networks(latents: ShiftedLatentFormat) -> tuple[ControlNetwork, ...]:
    """Return the kinds of ControlNets, which read latents of that format; the copies without its shift."""
    unshifted = type(latents)()
    unshifted.shift_factor = 0.0
    return (
        ControlNetwork(
            Network(layouts=(_patches_layout,), in_checkpoint=(), configure=_configure_patches, build=Sd35ControlNet),
            partial(_reading_patches, latents),
            _steers_patches,
        ),
        ControlNetwork(
            Network(layouts=(_layout,), in_checkpoint=(), configure=_configure, build=Sd3ControlNet),
            partial(_reading, unshifted),
            _steers,
        ),
    )
