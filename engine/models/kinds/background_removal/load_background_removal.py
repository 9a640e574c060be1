"""Files of networks that remove backgrounds, as networks with weights on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.unsupported import describe
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import open_weights
from darkroom.engine.models.kinds.background_removal.birefnet import BiRefNet, birefnet_config

EXPECTED = "a network that removes backgrounds (BiRefNet)"
SIGNATURE = "bb.layers.1.blocks.0.attn.relative_position_bias_table"


@refuses(EXPECTED)
def load_background_removal(path: Path, dtype: torch.dtype, *, to: Destination = Destination.RAM) -> BiRefNet:
    """Load the network of a file: float32, with weights rounded to `dtype`. Raises `BadModelFile`."""
    file = open_weights(path)
    if SIGNATURE not in file.shapes:
        raise BadModelFile(path.name, describe(file.shapes, file.metadata), EXPECTED)
    try:
        config = birefnet_config(file.shapes)
    except KeyError as error:
        raise BadModelFile(path.name, f"no tensor {error}", EXPECTED) from error
    with unfilled():
        network = BiRefNet(config)
    fill(network, file, {name: name for name in file.shapes}, torch.float32, to=to, through=dtype)
    return network
