"""GLIGEN files become the gates of a UNet, in its order, and boxes of text steer its cells."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from darkroom.engine.errors import BadModelFile
from darkroom.engine.models.kinds.gligen import MAX_BOXES, Gligen
from darkroom.engine.models.kinds.load_gligen import load_gligen

# In the file's order, which is not the UNet's.
BLOCKS = (("output_blocks.3.1", 8), ("input_blocks.10.1", 16), ("input_blocks.2.1", 8), ("middle_block.1", 24))
UNET_ORDER = (8, 16, 24, 8)
LATENT = (2, 4, 8, 8)
CPU = torch.device("cpu")


def _write(path: Path, left_out: str = "") -> Path:
    torch.manual_seed(0)
    weights = {}
    source = Gligen([width for _, width in BLOCKS], 768, 768, heads=lambda width: 8)
    for name, weight in source.state_dict().items():
        value = torch.randn(weight.shape) * 0.1
        if name.startswith("module_list."):
            _, index, rest = name.split(".", 2)
            name = f"{BLOCKS[int(index)][0]}.transformer_blocks.0.fuser.{rest}"
        if name != left_out:
            weights[name] = value
    save_file(weights, path)
    return path


def test_gates_come_in_the_order_of_the_unet(tmp_path: Path) -> None:
    network = load_gligen(_write(tmp_path / "a.safetensors"))
    assert tuple(gate.get_parameter("linear.bias").numel() for gate in network.module_list) == UNET_ORDER


def test_a_box_changes_what_the_cells_see_and_an_empty_side_is_another_thing(tmp_path: Path) -> None:
    network = load_gligen(_write(tmp_path / "a.safetensors"))
    box = (torch.ones(1, 768), 4, 4, 0, 0)
    cells = torch.rand(2, 64, 16)
    options = {"transformer_index": 1}
    boxed, moved, empty = (
        network.set_position(LATENT, boxes, CPU)(cells, options) for boxes in ([box], [(*box[:3], 4, 4)], [])
    )
    assert boxed.shape == cells.shape
    assert torch.equal(network.set_empty(LATENT, CPU)(cells, options), empty)
    assert not torch.allclose(boxed, moved) and not torch.allclose(boxed, empty)


def test_boxes_beyond_what_it_holds_are_left_out(tmp_path: Path) -> None:
    network = load_gligen(_write(tmp_path / "a.safetensors"))
    boxes = [(torch.full((1, 768), float(index)), 1, 1, 0, 0) for index in range(MAX_BOXES + 1)]
    cells, options = torch.rand(2, 64, 8), {"transformer_index": 0}
    first, all_of_them = (network.set_position(LATENT, some, CPU)(cells, options) for some in (boxes[:-1], boxes))
    assert torch.equal(first, all_of_them)


def test_a_file_without_the_net_for_boxes_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.safetensors", left_out="position_net.null_positive_feature")
    with pytest.raises(BadModelFile, match="null_positive_feature"):
        load_gligen(path)
