"""Files of MediaPipe's face landmarker, as networks with weights on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.unsupported import describe
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import WeightFile, open_weights
from darkroom.engine.models.kinds.face_landmarks.face_network import FaceNetworks
from darkroom.engine.models.kinds.face_landmarks.face_template import PARTS, FaceTemplate, face_template

EXPECTED = "MediaPipe's face landmarker"
NETWORKS = ("detector_short.", "detector_full.", "mesh.", "blendshapes.")
VERTICES, INDICES, WEIGHTS = "canonical_vertices", "procrustes_indices", "procrustes_weights"
SMALL_DATA = 1 << 20
"""Values of a table at most."""


@refuses(EXPECTED)
def load_face_landmarker(path: Path, *, to: Destination = Destination.RAM) -> FaceNetworks:
    """Load the networks of a file, as float32. Raises `BadModelFile`."""
    file = open_weights(path)
    if not all(any(name.startswith(part) for name in file.shapes) for part in NETWORKS):
        raise BadModelFile(path.name, describe(file.shapes, file.metadata), EXPECTED)
    try:
        template = _template(file)
    except KeyError as error:
        raise BadModelFile(path.name, f"no tensor {error}", EXPECTED) from error
    except ValueError as error:
        raise BadModelFile(path.name, str(error), EXPECTED) from error
    with unfilled():
        networks = FaceNetworks(template)
    names = {name: name for name in file.shapes if name.startswith(NETWORKS)}
    fill(networks, file, names, torch.float32, to=to)
    return networks


def _template(file: WeightFile) -> FaceTemplate:
    """Return the tables of a file. Raises KeyError for a missing one, ValueError for one of other sizes."""
    edges = {name: _table(file, f"topology.{name}").long().numpy() for name in PARTS}
    vertices, weights = (_table(file, name).double().numpy() for name in (VERTICES, WEIGHTS))
    return face_template(edges, vertices, _table(file, INDICES).long().numpy(), weights)


def _table(file: WeightFile, name: str) -> torch.Tensor:
    shape = file.shapes[name]
    if torch.Size(shape).numel() > SMALL_DATA:
        raise ValueError(f"{name}: got shape {list(shape)}, expected a small table")
    return file.tensor(name)
