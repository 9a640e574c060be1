"""Scaled float8: what a file is seen as, what a network keeps of it, and how patched weights are rounded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.fill import Destination, check_tensors, fill
from darkroom.engine.formats.quantised.open_model import open_model
from darkroom.engine.formats.quantised.quantised_file import QuantisedFile
from darkroom.engine.formats.quantised.scaled_float8 import ScaledFloat8Packing
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.memory.offload.packing import packings_of

SCALE = torch.tensor([0.01])


def written(folder: Path, mark: torch.dtype = torch.float8_e4m3fn) -> Path:
    torch.manual_seed(0)
    tensors = {
        "scaled_fp8": torch.zeros(2, dtype=mark),
        "0.weight": torch.randn(8, 8).mul(50).to(torch.float8_e4m3fn),
        "0.bias": torch.full((8,), 0.3, dtype=torch.bfloat16),
        "0.scale_weight": SCALE,
        "0.scale_input": torch.ones(1),
        "1.weight": torch.full((8,), 0.3, dtype=torch.bfloat16),
        "1.bias": torch.zeros(8, dtype=torch.bfloat16),
        "2.weight": torch.full((8, 8), 0.3, dtype=torch.bfloat16),
        "2.bias": torch.zeros(8, dtype=torch.bfloat16),
    }
    save_file(tensors, folder / "scaled.safetensors")
    return folder / "scaled.safetensors"


def filled(path: Path, to: Destination) -> tuple[QuantisedFile, nn.Sequential]:
    file = open_model(path)
    assert isinstance(file, QuantisedFile)
    with unfilled():
        network = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    fill(network, file, {name: name for name in file.shapes}, torch.float32, to=to)
    return file, network


def test_a_file_is_seen_without_marks_and_scales(tmp_path: Path) -> None:
    file, _ = filled(written(tmp_path), Destination.RAM)
    assert file.shapes == {
        "0.weight": (8, 8), "0.bias": (8,), "1.weight": (8,), "1.bias": (8,), "2.weight": (8, 8), "2.bias": (8,),
    }  # fmt: skip
    torch.testing.assert_close(file.tensor("0.weight"), file.file.tensor("0.weight").float() * 0.01)


def test_a_missing_or_misshapen_tensor_is_refused_before_anything_is_filled(tmp_path: Path) -> None:
    file = open_model(written(tmp_path))
    names = {name: name for name in file.shapes}
    with unfilled():
        network = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
        wider = nn.Sequential(nn.Linear(9, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    check_tensors(network, file, names)
    check_tensors(nn.Sequential(nn.Conv2d(2, 8, 2, device="meta")), file, names)  # as many values
    with pytest.raises(BadModelFile, match=r"'0.weight' of shape \[8, 8\]; expected shape \[8, 9\]"):
        check_tensors(wider, file, names)
    with pytest.raises(BadModelFile, match="'2.bias' is missing"):
        check_tensors(network, file, {name: name for name in file.shapes if name != "2.bias"})


def test_scaled_weights_are_kept_as_float8_and_all_else_as_wanted(tmp_path: Path) -> None:
    for to in (Destination.RAM, Destination.SIMULATED_DEVICE):
        _, network = filled(written(tmp_path), to)
        types = {name: weight.dtype for name, weight in network.named_parameters()}
        assert types.pop("0.weight") == torch.float8_e4m3fn
        assert set(types.values()) == {torch.float32}
        assert packings_of(network[0])["weight"].shape == (8, 8) and not packings_of(network[2])


def test_a_mark_of_float32_stands_for_e4m3(tmp_path: Path) -> None:
    file, _ = filled(written(tmp_path, torch.float32), Destination.RAM)
    assert file.packed["0.weight"].stored == torch.float8_e4m3fn
    file, _ = filled(written(tmp_path, torch.float8_e5m2), Destination.RAM)
    assert file.packed["0.weight"].stored == torch.float8_e5m2


def test_codes_are_views_of_the_file_on_the_processor_too(tmp_path: Path) -> None:
    file, network = filled(written(tmp_path), Destination.RAM)
    codes = network.get_parameter("0.weight")
    assert codes.untyped_storage().data_ptr() == file.file.tensor("0.weight").untyped_storage().data_ptr()


def test_the_scale_is_rounded_to_the_type_of_the_values() -> None:
    packing = ScaledFloat8Packing(torch.Size((4,)), scale=0.0123456)
    codes = torch.tensor([1.0, -2.0, 3.5, 448.0]).to(torch.float8_e4m3fn)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        values = torch.empty(4, dtype=dtype)
        packing.unpack(codes, {}, values)
        assert torch.equal(values, codes.to(dtype) * torch.tensor(0.0123456).to(dtype))
