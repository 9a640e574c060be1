"""Files of networks that enlarge latents, by the rules of the families."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.unsupported import describe
from darkroom.engine.formats.fill import check_tensors, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import open_weights
from darkroom.engine.models.load import LoadTypes, configured

EXPECTED = "a latent upscale model"


@refuses(EXPECTED)
def load_latent_upscaler(path: Path, types: LoadTypes) -> torch.nn.Module:
    """Load the network of a file, in the types of its family's VAE. Raises `BadModelFile`."""
    file = open_weights(path)
    found = registry.recognise_latent_upscaler(file.shapes)
    if found is None:
        raise BadModelFile(path.name, describe(file.shapes, file.metadata), EXPECTED)
    family, network, names = found
    try:
        config = configured(file, network, names)
        with unfilled():
            module = network.build(config)
    except NotRecognised as error:
        raise BadModelFile(path.name, error.found, EXPECTED) from error
    except (ArithmeticError, ValueError, RuntimeError) as error:
        raise BadModelFile(path.name, f"tensors of shapes that no network can have ({error})", EXPECTED) from error
    check_tensors(module, file, names)
    fill(module, file, names, types.of(replace(family, vae=network)).vae, to=types.to)
    return module
