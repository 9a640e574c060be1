"""T2I-Adapter files, in the original layout or that of the diffusers library, as networks with weights on the CPU.

The ControlNets of Stable Cascade are read here, too: like an adapter, they see nothing but the image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.cascade.controlnet import CascadeControl, CascadeControlConfig, LatentBackboneConfig
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import WeightFile
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.models.kinds.t2i_adapter import Adapter, AdapterConfig, LightAdapter

PREFIX = "adapter."
DIFFUSERS_BLOCK = re.compile(r"^body\.(\d+)\.resnets\.(\d+)\.")
DIFFUSERS_LEVEL = re.compile(r"^body\.(\d+)\.(?=(in_conv|downsample|down_opt)\.)")
XL_IN_CHANNELS = (256, 768)  # 16 x 16 pixels of one or three channels
LIGHT_MARK = "body.0.in_conv.weight"
FULL_MARK = "conv_in.weight"
PIXELS_MARK, LATENTS_MARK = "backbone.0.0.weight", "backbone.0.weight"
PROJECTION_MARK = "projections.0.2.weight"

ImageControl = Adapter | LightAdapter | CascadeControl


def is_t2i_adapter(names: Mapping[str, object]) -> bool:
    """Return True if tensor names are those of an adapter."""
    plain = {name.removeprefix(PREFIX) for name in names}
    if PROJECTION_MARK in plain:
        return PIXELS_MARK in plain or LATENTS_MARK in plain
    return LIGHT_MARK in plain or (FULL_MARK in plain and any(name.startswith("body.0.") for name in plain))


@refuses("a T2I-Adapter")
def load_t2i_adapter(file: WeightFile, *, to: Destination = Destination.RAM) -> ImageControl:
    """Load the network of a file, float32 as ComfyUI runs it on a CPU. Raises `BadModelFile`, `NotRecognised`."""
    names = _names(file.tensors)
    shapes = {name: file.tensors[key].shape for name, key in names.items()}
    with unfilled():
        network = _network(shapes)
    fill(network, file, names, torch.float32, to=to)
    return network


def _names(keys: Mapping[str, object]) -> dict[str, str]:
    """Return a map from the network's names to the file's."""
    is_diffusers = any(DIFFUSERS_BLOCK.match(key.removeprefix(PREFIX)) for key in keys)
    named = {}
    for key in keys:
        name = key.removeprefix(PREFIX)
        if is_diffusers:
            name = DIFFUSERS_BLOCK.sub(lambda found: f"body.{int(found[1]) * 2 + int(found[2])}.", name)
            name = DIFFUSERS_LEVEL.sub(lambda found: f"body.{int(found[1]) * 2}.", name)
        named[name] = key
    return named


def _network(shapes: Shapes) -> ImageControl:
    if PROJECTION_MARK in shapes:
        return CascadeControl(_cascade_config(shapes))
    return _light(shapes) if LIGHT_MARK in shapes else Adapter(_config(shapes))


def _cascade_config(shapes: Shapes) -> CascadeControlConfig:
    latents = None
    if LATENTS_MARK in shapes:
        # Beside the blocks: two convolutions with an activation between them, and a convolution at the end.
        num_blocks = count_children(shapes, "backbone") - 4
        latents = LatentBackboneConfig(shapes[LATENTS_MARK][0], shapes["backbone.2.weight"][0], num_blocks)
    return CascadeControlConfig(
        in_channels=shapes[PIXELS_MARK if latents is None else LATENTS_MARK][1],
        stage_channels=shapes[PROJECTION_MARK][0],
        num_projections=count_children(shapes, "projections"),
        latents=latents,
    )


def _light(shapes: Shapes) -> LightAdapter:
    channels = [shapes[name][0] for level in range(4) if (name := f"body.{level}.out_conv.weight") in shapes]
    num_blocks = sum(name.startswith("body.0.body.") and name.endswith("block1.weight") for name in shapes)
    return LightAdapter(shapes[LIGHT_MARK][1], channels, num_blocks)


def _config(shapes: Shapes) -> AdapterConfig:
    width, in_channels = shapes[FULL_MARK][:2]
    if "body.0.block2.weight" not in shapes:
        raise NotRecognised("a T2I adapter of an unknown form")
    return AdapterConfig(
        in_channels=in_channels,
        channels=(width, width * 2, width * 4, width * 4),
        kernel_size=shapes["body.0.block2.weight"][2],
        downs_by_conv=any(name.endswith("down_opt.op.weight") for name in shapes),
        is_xl=in_channels in XL_IN_CHANNELS,
    )
