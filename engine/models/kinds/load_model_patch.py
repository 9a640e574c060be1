"""Files of networks that nodes attach to a denoising network, by the rules of the families."""

from __future__ import annotations

from pathlib import Path

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.unsupported import describe
from darkroom.engine.formats.fill import fill
from darkroom.engine.formats.quantised.open_model import open_model
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.models.load import LoadTypes, configured


@refuses("a model patch")
def load_model_patch(path: Path, types: LoadTypes) -> torch.nn.Module:
    """Load the network of a file, in the types of the family that it is for. Raises `BadModelFile`."""
    file = open_model(path, types.block_arithmetic)
    found = registry.recognise_model_patch(file.shapes)
    if found is None:
        raise BadModelFile(
            path.name, describe(file.shapes, file.metadata), f"a model patch of {registry.patched_labels()}"
        )
    family, network, names = found
    try:
        config = configured(file, network, names)
    except NotRecognised as error:
        raise BadModelFile(path.name, error.found, f"a model patch of {registry.patched_labels()}") from error
    with unfilled():
        module = network.build(config)
    dtype = types.of(family).unet_computed or types.of(family).unet
    ends = network.float32_ends if network.float32_ends_of is None else network.float32_ends_of(config)
    fill(module, file, names, lambda name: torch.float32 if f".{name}".endswith(ends) else dtype, to=types.to)
    return module
