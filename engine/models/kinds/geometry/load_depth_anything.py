"""Files of Depth Anything 3, as networks with weights on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.unsupported import describe
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import open_weights
from darkroom.engine.models.kinds.geometry.depth_anything_3 import (
    SIGNATURE,
    DepthAnything3,
    depth_anything_3_config,
)

EXPECTED = "Depth Anything 3 in the layout of ComfyUI"
PREFIX = "model.diffusion_model."


@refuses(EXPECTED)
def load_depth_anything(
    path: Path, dtype: torch.dtype | None = None, *, to: Destination = Destination.RAM
) -> DepthAnything3:
    """Load the network of a file: float32, with weights rounded to `dtype` unless that is None.

    Raises `BadModelFile`.
    """
    file = open_weights(path)
    names = {name.removeprefix(PREFIX): name for name in file.shapes}
    shapes = {name: file.shapes[key] for name, key in names.items()}
    if SIGNATURE not in shapes:
        raise BadModelFile(path.name, describe(file.shapes, file.metadata), EXPECTED)
    try:
        config = depth_anything_3_config(shapes)
    except KeyError as error:
        raise BadModelFile(path.name, f"no tensor {error}", EXPECTED) from error
    with unfilled():
        network = DepthAnything3(config)
    fill(network, file, names, torch.float32, to=to, through=dtype)
    return network
