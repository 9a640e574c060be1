"""T2I-Adapter files, in the original layout or that of the diffusers library, as networks with weights on the CPU.

Networks of a family that see nothing but the image, as an adapter does, are read here, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import nn

from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import WeightFile
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.models.kinds.t2i_adapter import Adapter, AdapterConfig, LightAdapter

PREFIX = "adapter."
DIFFUSERS_BLOCK = re.compile(r"^body\.(\d+)\.resnets\.(\d+)\.")
DIFFUSERS_LEVEL = re.compile(r"^body\.(\d+)\.(?=(in_conv|downsample|down_opt)\.)")
XL_IN_CHANNELS = (256, 768)  # 16 x 16 pixels of one or three channels
LIGHT_MARK = "body.0.in_conv.weight"
FULL_MARK = "conv_in.weight"


def is_t2i_adapter(names: Mapping[str, object]) -> bool:
    """Return True if tensor names are those of an adapter."""
    plain = {name.removeprefix(PREFIX) for name in names}
    if registry.recognise_image_control(plain) is not None:
        return True
    return LIGHT_MARK in plain or (FULL_MARK in plain and any(name.startswith("body.0.") for name in plain))


@refuses("a T2I-Adapter")
def load_t2i_adapter(file: WeightFile, *, to: Destination = Destination.RAM) -> nn.Module:
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


def _network(shapes: Shapes) -> nn.Module:
    kind = registry.recognise_image_control(shapes.keys())
    if kind is not None:
        return kind.build(shapes)
    return _light(shapes) if LIGHT_MARK in shapes else Adapter(_config(shapes))


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
