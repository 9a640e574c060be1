"""Sizes of the networks in model files, by their headers; of files that are not there, by their family's real sizes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily, NotRecognised, Shapes, TensorIndex
from darkroom.engine.families.vision_family import VisionFamily
from darkroom.engine.formats.quantised.open_model import open_model
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import Names, shape_of
from darkroom.engine.memory.timeline import StageKind
from darkroom.engine.models.load import TEXT_PREFIXES

KIND_OF_FOLDER: Mapping[str, StageKind] = {
    "text_encoders": "text_encoder",
    "diffusion_models": "network",
    "vae": "vae",
}


@dataclass(frozen=True, slots=True)
class NetworkSize:
    """Number of weights of a network, and of its largest layer."""

    num_weights: int
    largest_layer: int


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Networks of a file by the stage that they compute in, and the family of the denoising network, if any.

    `refusal` is what was found in a file that no family's loader takes, empty for others.
    """

    networks: Mapping[StageKind, NetworkSize]
    family: ModelFamily | None = None
    refusal: str = ""


def sizes_in_file(folder: str, path: Path) -> FileSizes:
    """Return the networks of a file of that folder; none for a file that is no model of a known family."""
    try:
        file = open_model(path)
        shapes = file.shapes
        if folder in ("text_encoders", "vae"):
            return FileSizes({KIND_OF_FOLDER[folder]: _size(shapes)})
        vision = registry.recognise_vision(shapes)
        if vision is not None:
            return _sizes_of_vision(folder, shapes, *vision)
        found = registry.recognise(TensorIndex(shapes, file.metadata))
    except NotRecognised as error:
        return FileSizes({}, refusal=error.found)
    except (BadModelFile, OSError):
        return FileSizes({})
    family = found.family
    denoiser = {name: shape_of(item, shapes) for name, item in found.match.names.items()}
    networks: dict[StageKind, NetworkSize] = {"network": _size(denoiser)}
    if folder == "checkpoints":
        text = {name: shape for name, shape in shapes.items() if name.startswith(TEXT_PREFIXES)}
        vae = registry.names_of(family.vae, shapes, in_checkpoint=True) or {}
        networks |= {"text_encoder": _size(text)} if text else {}
        networks |= {"vae": _size({name: shape_of(item, shapes) for name, item in vae.items()})} if vae else {}
    return FileSizes(networks, family)


def _sizes_of_vision(folder: str, shapes: Shapes, family: VisionFamily, names: Names) -> FileSizes:
    """Return the networks of a file whose own one reads images, with its text encoders where it is a checkpoint."""
    networks: dict[StageKind, NetworkSize] = {"network": _size(_under(names, shapes))}
    for encoder in family.text if folder == "checkpoints" else ():
        found = registry.names_of(encoder.network, shapes, in_checkpoint=True)
        networks |= {"text_encoder": _size(_under(found, shapes))} if found else {}
    return FileSizes(networks)


def _under(names: Names, shapes: Shapes) -> Shapes:
    return {name: shape_of(item, shapes) for name, item in names.items()}


def sizes_of_family(name: str, folder: str) -> FileSizes:
    """Return the real networks of a family that a file of that folder has; none for an unknown family."""
    if name not in registry.family_names():
        return FileSizes({})
    family = registry.family_named(name)
    full = family.scales["full"]
    with unfilled():
        networks: dict[StageKind, NetworkSize] = {"network": _size(_shapes(family.denoiser.build(full.denoiser)))}
        if folder == "checkpoints":
            texts = [encoder.network.build(full.text[encoder.encoding.slot]) for encoder in family.text_of(full)]
            sizes = [_size(_shapes(network)) for network in texts]
            networks["vae"] = _size(_shapes(family.vae.build(full.vae)))
            if sizes:
                largest = max(size.largest_layer for size in sizes)
                networks["text_encoder"] = NetworkSize(sum(size.num_weights for size in sizes), largest)
    return FileSizes(networks, family)


def _shapes(network: torch.nn.Module) -> Shapes:
    return {name: tuple(weight.shape) for name, weight in network.state_dict().items()}


def _size(shapes: Shapes) -> NetworkSize:
    """Return the size of a network by its tensors; those with the same name but for its last part are of one layer."""
    layers: Counter[str] = Counter()
    for name, shape in shapes.items():
        layers[name.rpartition(".")[0]] += math.prod(shape)
    return NetworkSize(layers.total(), max(layers.values(), default=0))
