"""The reader of GGUF: what it finds, and how it refuses what is not whole, not known or not GGUF."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.gguf_file import GgufFile
from darkroom.engine.formats.weight_file import open_weights
from tests.parity.quantised_models import write_gguf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensors = {
        "block.weight": torch.randn(4, 64),
        "block.bias": torch.arange(4.0),
        "conv.weight": torch.randn(2, 3, 3, 3),
        "bf.weight": torch.randn(2, 32).bfloat16(),
    }
    write_gguf(tmp_path / "a.gguf", tensors, "flux", {"^block": "Q8_0", "^bf": "BF16"})
    return tmp_path / "a.gguf"


def changed(path: Path, start: int, content: bytes) -> Path:
    whole = bytearray(path.read_bytes())
    whole[start : start + len(content)] = content
    path.write_bytes(whole)
    return path


def test_tensors_are_views_of_the_file_in_torchs_order(path: Path) -> None:
    file = open_weights(path)
    assert isinstance(file, GgufFile) and file.architecture == "flux"
    shapes = {"block.weight": (4, 68), "block.bias": (4,), "conv.weight": (2, 3, 3, 3), "bf.weight": (2, 32)}
    assert file.shapes == shapes
    assert (file.blocks["block.weight"].kind, file.blocks["block.weight"].shape) == ("Q8_0", (4, 64))
    assert file.tensor("block.weight").dtype == torch.uint8
    assert torch.equal(file.tensor("block.bias"), torch.arange(4.0))
    assert file.tensor("conv.weight").dtype == torch.float16 and file.tensor("bf.weight").dtype == torch.bfloat16


def test_a_reshaped_tensor_has_the_shape_it_had(tmp_path: Path) -> None:
    """Converters flatten convolutions to quantise them, and keep their shape in the metadata."""
    name, shape = "w", (2, 8, 2, 2)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
    key = f"comfy.gguf.orig_shape.{name}".encode()
    head += struct.pack("<Q", len(key)) + key + struct.pack("<IIQ4i", 9, 5, 4, *shape)
    head += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<IQQIQ", 2, 32, 2, 8, 0)
    path = tmp_path / "w.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(2 * 34))
    file = GgufFile(path)
    assert file.blocks["w"].shape == shape and file.shapes["w"] == (2, 34)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), "cut off"),
        (lambda path: path.write_bytes(path.read_bytes()[:60]), "damaged or cut-off header|counts"),
        (lambda path: path.write_bytes(b"PK\x03\x04" + path.read_bytes()[4:]), "does not start with GGUF"),
        (lambda path: changed(path, 4, struct.pack("<I", 1)), "GGUF of version 1; expected version 2 or 3"),
        (lambda path: changed(path, 8, struct.pack("<Q", 1 << 60)), "counts 1,152,921,504,606,846,976 things"),
    ],
    ids=("tensor cut off", "header cut off", "another file", "old version", "absurd count"),
)
def test_a_damaged_file_is_refused_by_name(path: Path, change: object, message: str) -> None:
    assert callable(change)
    change(path)
    with pytest.raises(BadModelFile, match=message) as caught:
        open_weights(path)
    assert caught.value.file_name == "a.gguf"


def test_an_unknown_quantisation_is_refused_with_those_that_are_known(path: Path) -> None:
    content = path.read_bytes()
    place = content.index(struct.pack("<IQ", 8, 0), content.index(b"block.weight"))  # its type, and its offset
    changed(path, place, struct.pack("<I", 16))
    with pytest.raises(BadModelFile, match=r"'block.weight' of the quantisation type IQ2_XXS; expected one of .*Q4_K"):
        open_weights(path)
