"""Files of networks that interpolate frames, as networks with weights on the CPU.

RIFE's weights are named `blocks.0.conv0...`, `block0.conv0...`, or either behind `module.` or `flownet.`; what only its
training used (`teacher.`, `caltime.`) is left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.unsupported import describe
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import open_weights
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.models.kinds.frame_interpolation.film import Film, FilmConfig
from darkroom.engine.models.kinds.frame_interpolation.rife import SCALES, Rife, RifeConfig

EXPECTED = "a network that interpolates frames (RIFE from 4.25 on, FILM)"
FILM_SIGNATURE = "extract.extract_sublevels.convs.0.0.conv.weight"
RIFE_SIGNATURE = "encode.cnn3.weight"
PREFIXES = ("module.", "flownet.")
OF_TRAINING = ("teacher.", "caltime.")
STAGE = re.compile(r"^block(\d)\.")


@refuses(EXPECTED)
def load_frame_interpolation(path: Path, *, to: Destination = Destination.RAM) -> Rife | Film:
    """Load the network of a file, as float32. Raises `BadModelFile`."""
    file = open_weights(path)
    shapes = file.shapes
    names = {name: name for name in shapes} if FILM_SIGNATURE in shapes else _rife_names(shapes)
    ours = {name: shapes[key] for name, key in names.items()}
    network: Rife | Film
    try:
        with unfilled():
            if FILM_SIGNATURE in ours:
                network = Film(FilmConfig(ours[FILM_SIGNATURE][0]))
            elif RIFE_SIGNATURE in ours:
                network = Rife(_rife_config(ours))
            else:
                raise BadModelFile(path.name, describe(shapes, file.metadata), EXPECTED)
    except KeyError as error:
        raise BadModelFile(path.name, f"no tensor {error}", EXPECTED) from error
    fill(network, file, names, torch.float32, to=to)
    return network


def _rife_names(shapes: Shapes) -> Mapping[str, str]:
    """Return a map from names in `Rife` to the file's."""
    names = {}
    for key in shapes:
        name = key
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        if not name.startswith(OF_TRAINING):
            names[STAGE.sub(r"blocks.\1.", name)] = key
    return names


def _rife_config(shapes: Shapes) -> RifeConfig:
    stages = tuple(shapes[f"blocks.{index}.conv0.1.0.weight"][0] for index in range(len(SCALES)))
    return RifeConfig(feature_channels=shapes[RIFE_SIGNATURE][1], stage_channels=stages)
