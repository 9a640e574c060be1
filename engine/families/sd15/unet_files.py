"""The UNet of latent diffusion as a network of a family: where files have it, and its names in LoRA files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from darkroom.engine.adapters.lora_names import denoiser_keys
from darkroom.engine.families.base import ControlModels, Network, Shapes, TensorIndex
from darkroom.engine.families.layouts import behind_first, names_behind, saved_behind
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.layers.diffusers_names import unet_names
from darkroom.engine.layers.unet import UnetConfig, UnetModel
from darkroom.engine.layers.unet_layers import (
    BlockSpec,
    ConvSpec,
    DownSpec,
    LayerSpec,
    ResSpec,
    TransformerSpec,
    UpSpec,
)
from darkroom.engine.layers.unet_shapes import (
    FIRST,
    UnetTraits,
    diffusers_unet_config,
    unet_config,
    unet_half_config,
    unet_traits,
)

PREFIX = "model.diffusion_model."
PREFIXES = (PREFIX, "diffusion_model.", "")  # of files of the network alone
DIFFUSERS_MARK = "down_blocks.0.resnets.0.conv1.weight"

NUM_HEADS = 8  # at every width, unless heads have a width of their own

MERGED_BLOCKS = (
    "time_embed.", "label_emb.", *(f"input_blocks.{index}." for index in range(12)),
    *(f"middle_block.{index}." for index in range(3)), *(f"output_blocks.{index}." for index in range(12)), "out.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FoundUnet:
    """A UNet in a file: the names of its weights there, and what families are told apart by."""

    names: Names
    traits: UnetTraits


def diffusers_layout(shapes: Shapes) -> Names | None:
    """Return the names that a file of the diffusers library has for the weights of the UNet."""
    if DIFFUSERS_MARK not in shapes:
        return None
    try:
        names = unet_names(diffusers_unet_config(shapes))
    except (LookupError, StopIteration):
        return None
    return {ours: theirs for theirs, ours in names.items() if theirs in shapes}


LAYOUTS = (diffusers_layout, behind_first(PREFIXES, FIRST))


def find_unet(index: TensorIndex) -> FoundUnet | None:
    """Return the UNet of a file that has one, alone or in a checkpoint."""
    for layout in LAYOUTS:
        names = layout(index.shapes)
        if names is not None:
            shapes = {name: index.shapes[key] for name, key in names.items() if isinstance(key, str)}
            return FoundUnet(names, unet_traits(shapes))
    return None


def unet_network(*, head_channels: int | None = None) -> Network:
    """Describe the UNet; `head_channels` None means 8 attention heads at every width."""
    return Network(
        layouts=LAYOUTS,
        in_checkpoint=(_in_checkpoint,),
        configure=partial(unet_config, head_channels=head_channels),
        build=UnetModel,
        saved=partial(saved_behind, PREFIX),
    )


def _in_checkpoint(shapes: Shapes) -> Names | None:
    return names_behind(shapes, PREFIX) if PREFIX + FIRST in shapes else None


def unet_controls(
    fits: Callable[[UnetTraits], bool], *, token_width: int, head_channels: int | None = None
) -> ControlModels:
    """Describe the ControlNets of a UNet; `fits` takes the traits of theirs."""
    return ControlModels(
        fits=lambda shapes: FIRST in shapes and fits(unet_traits(shapes)),
        configure=partial(unet_half_config, head_channels=head_channels),
        token_width=token_width,
        heads=lambda channels: NUM_HEADS if head_channels is None else channels // head_channels,
    )


def unet_lora_keys(weight_names: Iterable[str], config: UnetConfig) -> dict[str, str]:
    """Return a map from the names used in LoRA files to the weights of the network."""
    return denoiser_keys(weight_names, unet_names(config))


def level_unet(
    *,
    model_channels: int,
    context_dim: int,
    channel_mult: tuple[int, ...] = (1, 2, 4, 4),
    depths: tuple[int, ...] | None = None,
    middle_depth: int = 1,
    blocks_per_level: int = 2,
    in_channels: int = 4,
    uses_linear: bool = False,
    head_channels: int | None = None,
    label_dim: int = 0,
    is_temporal: bool = False,
) -> UnetConfig:
    """Return the layers of a UNet with transformers of one depth on each level, none where it is 0.

    Without `depths` it is 1 on all levels but the lowest.
    """
    res = partial(ResSpec, is_temporal=is_temporal)
    transformer = partial(TransformerSpec, context_dim=context_dim, uses_linear=uses_linear, is_temporal=is_temporal)
    widths = [model_channels * factor for factor in channel_mult]
    depths = (*(1 for _ in widths[1:]), 0) if depths is None else depths
    inputs: list[BlockSpec] = [(ConvSpec(in_channels, model_channels),)]
    channels, skips = model_channels, [model_channels]
    for level, width in enumerate(widths):
        lowest = level == len(widths) - 1
        for _ in range(blocks_per_level):
            layers: list[LayerSpec] = [res(channels, width)]
            if depths[level]:
                layers.append(transformer(width, depths[level]))
            inputs.append(tuple(layers))
            channels = width
            skips.append(channels)
        if not lowest:
            inputs.append((DownSpec(channels, channels),))
            skips.append(channels)
    middle = (res(channels, channels), transformer(channels, middle_depth), res(channels, channels))
    outputs: list[BlockSpec] = []
    for level, width in reversed(list(enumerate(widths))):
        for index in range(blocks_per_level + 1):
            layers = [res(channels + skips.pop(), width)]
            channels = width
            if depths[level]:
                layers.append(transformer(width, depths[level]))
            if level and index == blocks_per_level:
                layers.append(UpSpec(width, width))
            outputs.append(tuple(layers))
    return UnetConfig(
        in_channels, 4, model_channels, tuple(inputs), middle, tuple(outputs), head_channels=head_channels,
        label_dim=label_dim,
    )  # fmt: skip
