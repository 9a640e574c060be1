"""Files of the T2I-Adapter for style as networks on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.architectures.style_adapter import StyleAdapter, StyleAdapterConfig
from engine.errors import BadModelFile
from engine.families.unsupported import describe, describe_style
from engine.formats.fill import Destination, fill
from engine.formats.weight_file import open_weights

EXPECTED = "a T2I-Adapter for style"
HEADS = 8
MARK = "style_embedding"


def load_style_model(path: Path, *, to: Destination = Destination.RAM) -> StyleAdapter:
    """Load the network of a file, float32 as in ComfyUI. Raises `BadModelFile`."""
    file = open_weights(path)
    shapes = file.shapes
    if MARK not in shapes:
        raise BadModelFile(path.name, describe_style(shapes) or describe(shapes), EXPECTED)
    _, num_words, width = shapes[MARK]
    layers = {name.split(".")[1] for name in shapes if name.startswith("transformer_layes.")}
    config = StyleAdapterConfig(
        width, shapes.get("proj", (width, width))[1], HEADS, num_layers=len(layers), num_words=num_words
    )
    with torch.device("meta"):
        network = StyleAdapter(config)
    fill(network, file, {name: name for name in shapes}, torch.float32, to=to)
    return network
