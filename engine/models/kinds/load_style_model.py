"""Files of style models, which turn an image's tokens into words of a prompt, as networks on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.base import Shapes
from darkroom.engine.families.unsupported import describe
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import open_weights
from darkroom.engine.models.kinds.redux import Redux, ReduxConfig
from darkroom.engine.models.kinds.style_adapter import StyleAdapter, StyleAdapterConfig

EXPECTED = "a T2I-Adapter for style, or Redux"
HEADS = 8
ADAPTER_MARK = "style_embedding"
PROJECTION_MARK = "redux_down.weight"


@refuses(EXPECTED)
def load_style_model(path: Path, *, to: Destination = Destination.RAM) -> nn.Module:
    """Load the network of a file, float32 as in ComfyUI. Raises `BadModelFile`."""
    file = open_weights(path)
    try:
        with unfilled():
            network = _network(file.shapes)
    except LookupError as error:
        raise BadModelFile(path.name, f"no tensor {error}", EXPECTED) from error
    except ValueError as error:
        raise BadModelFile(path.name, f"tensors of other shapes ({error})", EXPECTED) from error
    if network is None:
        raise BadModelFile(path.name, describe(file.shapes, file.metadata), EXPECTED)
    fill(network, file, {name: name for name in file.shapes}, torch.float32, to=to)
    return network


def _network(shapes: Shapes) -> nn.Module | None:
    """Return the network of a file with these tensors, without weights; None for another kind of file."""
    if PROJECTION_MARK in shapes:
        context_width, inner_width = shapes[PROJECTION_MARK]
        return Redux(ReduxConfig(shapes["redux_up.weight"][1], context_width, inner_width))
    if ADAPTER_MARK not in shapes:
        return None
    _, num_words, width = shapes[ADAPTER_MARK]
    layers = {name.split(".")[1] for name in shapes if name.startswith("transformer_layes.")}
    context_width = shapes.get("proj", (width, width))[1]
    return StyleAdapter(StyleAdapterConfig(width, context_width, HEADS, num_layers=len(layers), num_words=num_words))
