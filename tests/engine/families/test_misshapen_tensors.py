"""Tensors by which a family is recognised, with other numbers of dimensions than a network has: refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily, TensorIndex
from darkroom.engine.models.files.faults import fault_of_file
from darkroom.engine.models.load import LoadTypes, load_unet
from darkroom.engine.models.planning.network_sizes import sizes_in_file
from tests.engine.families.test_wrapped_names import every_family, shapes_of

SHAPES = ((), (3,), (2, 1, 3, 1, 2))
MAX_TENSORS = 6
FOLDER = "diffusion_models"


class ReadShapes(dict[str, tuple[int, ...]]):
    """Shapes that record which of them were read."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__(shapes)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> tuple[int, ...]:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: object = None) -> object:  # type: ignore[override]
        self.read.add(name)
        return super().get(name, default)


def read_shapes(family: ModelFamily) -> list[str]:
    """Return the tensors of which detection and configuration read the shapes."""
    shapes = ReadShapes(shapes_of(family))
    match = family.detect(TensorIndex(shapes))
    assert match is not None
    configured = ReadShapes(dict(registry.shapes_under(match.names, shapes_of(family))))
    family.denoiser.configure(configured)
    of_network = {match.names[name] for name in configured.read & configured.keys()}
    return sorted((shapes.read | {name for name in of_network if isinstance(name, str)}) & shapes.keys())


def write_header(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write a file of tensors whose values are a hole in it."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with path.open("r+b") as file:
        file.truncate(8 + len(text) + end)


@every_family
def test_a_misshapen_tensor_is_refused_by_name(family: ModelFamily, tmp_path: Path) -> None:
    path = tmp_path / "network.safetensors"
    shapes = shapes_of(family)
    names = read_shapes(family)
    assert names
    for number, name in enumerate(names[:: max(1, len(names) // MAX_TENSORS)]):
        shape = [shape for shape in SHAPES if len(shape) != len(shapes[name])][number % 2]
        write_header(path, shapes | {name: shape})
        fault_of_file(path, FOLDER)
        sizes_in_file(FOLDER, path)
        with pytest.raises(BadModelFile) as raised:
            load_unet(path, LoadTypes())
        assert "does not fit together" not in raised.value.found, name
