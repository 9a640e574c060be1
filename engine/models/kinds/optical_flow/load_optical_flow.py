"""Files of networks that estimate optical flow, as networks with weights on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.unsupported import describe
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import open_weights
from darkroom.engine.models.kinds.optical_flow.raft import Raft

EXPECTED = "RAFT's large network in torchvision's layout"
PARTS = ("feature_encoder.", "context_encoder.", "update_block.")


@refuses(EXPECTED)
def load_optical_flow(path: Path, *, to: Destination = Destination.RAM) -> Raft:
    """Load the network of a file, as float32. Raises `BadModelFile`."""
    file = open_weights(path)
    shapes = file.shapes
    if not all(any(name.startswith(part) for name in shapes) for part in PARTS):
        raise BadModelFile(path.name, describe(shapes, file.metadata), EXPECTED)
    with unfilled():
        network = Raft()
    fill(network, file, {name: name for name in shapes}, torch.float32, to=to)
    return network
