"""ComfyUI's later quantised formats against comfy_kitchen, and how files say them.

`comfy_kitchen.safetensors` has a random weight in each format as comfy_kitchen 0.2.26 (ComfyUI 0.30.0) quantises it on
the CPU, and the values that its `dequantize` gives as float32 and bfloat16. `int8_rows` has a scale for each row,
`int8_rotated` is rotated in groups of 64 columns, `convrot_w4a4` of 256.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.lens.gpt_oss import ExpertLinear
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.quantised.open_model import open_model
from darkroom.engine.formats.quantised.quantised_file import QuantisedFile
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.memory.offload.packing import packings_of
from tests.engine.memory.simulated import Card

REFERENCE = load_file(Path(__file__).with_name("comfy_kitchen.safetensors"))
SAID: dict[str, dict[str, Any]] = {
    "float8_e4m3fn": {"format": "float8_e4m3fn"},
    "mxfp8": {"format": "mxfp8"},
    "nvfp4": {"format": "nvfp4"},
    "int8_tensorwise": {"format": "int8_tensorwise"},
    "int8_rows": {"format": "int8_tensorwise"},
    "int8_rotated": {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 64},
    "convrot_w4a4": {"format": "convrot_w4a4", "params": {"convrot_groupsize": 256}},
}


def parts(name: str) -> dict[str, torch.Tensor]:
    kept = ("weight", "weight_scale", "weight_scale_2")
    return {f"0.{part}": REFERENCE[f"{name}.{part}"] for part in kept if f"{name}.{part}" in REFERENCE}


def described(said: dict[str, Any]) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)


def written(folder: Path, tensors: dict[str, torch.Tensor], said: dict[str, Any], *, in_metadata: bool = False) -> Path:
    path = folder / "quantised.safetensors"
    metadata = {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": {"0": said}})}
    more = {} if in_metadata else {"0.comfy_quant": described(said)}
    save_file({**tensors, **more, "0.input_scale": torch.ones(())}, path, metadata if in_metadata else None)
    return path


def opened(path: Path) -> QuantisedFile:
    file = open_model(path)
    assert isinstance(file, QuantisedFile)
    return file


@pytest.mark.parametrize("in_metadata", (False, True), ids=("a tensor says it", "the metadata say it"))
@pytest.mark.parametrize("name", SAID)
def test_values_are_those_of_comfy_kitchen(tmp_path: Path, name: str, in_metadata: bool) -> None:
    file = opened(written(tmp_path, parts(name), SAID[name], in_metadata=in_metadata))
    expected = REFERENCE[f"{name}.values.float32"]
    assert file.shapes == {"0.weight": tuple(expected.shape)}
    if "rot" in name:  # by products of matrices, which add in an order of their own
        torch.testing.assert_close(file.tensor("0.weight"), expected, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(file.tensor("0.weight"), expected)


@pytest.mark.parametrize("name", SAID)
def test_a_layer_computes_with_them_in_its_own_type(tmp_path: Path, name: str) -> None:
    file = opened(written(tmp_path, parts(name), SAID[name]))
    expected = REFERENCE[f"{name}.values.bfloat16"]
    rows, columns = expected.shape
    x = torch.eye(columns, dtype=torch.bfloat16)
    for budget in (1 << 24, columns * rows * 40):
        with unfilled():
            network = nn.Sequential(nn.Linear(columns, rows, bias=False))
        fill(network, file, {"0.weight": "0.weight"}, torch.bfloat16, to=Destination.SIMULATED_DEVICE)
        assert packings_of(network[0])["weight"].shape == (rows, columns)
        handle = Card(budget).add("layer", network, compute_dtype=torch.bfloat16)
        with handle.in_use() as used:
            found = used(x).T
        is_rotated = "rot" in name  # by products of matrices: the last bit may differ
        torch.testing.assert_close(found, expected, rtol=8e-3 * is_rotated, atol=1e-4 * is_rotated)


@pytest.mark.parametrize("name", SAID)
def test_a_layer_of_experts_has_a_stack_of_matrices(tmp_path: Path, name: str) -> None:
    def changed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.flip(0) if tensor.ndim else tensor * 2

    second = {key: changed(tensor) for key, tensor in parts(name).items()}
    if name == "float8_e4m3fn":  # one scale for all
        second["0.weight_scale"] = parts(name)["0.weight_scale"]
    expected = torch.stack(
        [opened(written(tmp_path, own, SAID[name])).tensor("0.weight") for own in (parts(name), second)]
    )
    stacked = {key: torch.stack([tensor, second[key]]) for key, tensor in parts(name).items()}
    if name == "float8_e4m3fn":
        stacked["0.weight_scale"] = second["0.weight_scale"]
    bias = torch.randn(2, expected.shape[1])
    file = opened(written(tmp_path, {**stacked, "0.bias": bias}, {**SAID[name], "num_experts": 2}))
    assert file.shapes["0.weight"] == tuple(expected.shape)
    with unfilled():
        network = nn.Sequential(ExpertLinear(2, expected.shape[2], expected.shape[1]))
    fill(network, file, {key: key for key in ("0.weight", "0.bias")}, torch.float32, to=Destination.SIMULATED_DEVICE)
    x = torch.randn(1, 3, expected.shape[2])
    with Card(1 << 24).add("layer", network, compute_dtype=torch.float32).in_use() as used:
        torch.testing.assert_close(used(x), x @ expected.transpose(1, 2) + bias[:, None], rtol=1e-4, atol=1e-5)


def test_experts_of_float8_have_one_scale(tmp_path: Path) -> None:
    own = parts("float8_e4m3fn")
    stacked = {"0.weight": torch.stack([own["0.weight"]] * 2), "0.weight_scale": torch.ones(2)}
    with pytest.raises(BadModelFile, match="float8 with 2 scales"):
        open_model(written(tmp_path, stacked, SAID["float8_e4m3fn"]))


def test_smoothing_of_the_input_is_done_to_the_weight(tmp_path: Path) -> None:
    factors = torch.linspace(0.5, 2.0, 96)
    file = opened(written(tmp_path, parts("nvfp4") | {"0.pre_quant_scale": factors}, SAID["nvfp4"]))
    x = torch.randn(3, 96)
    expected = (x * factors) @ REFERENCE["nvfp4.values.float32"].T
    torch.testing.assert_close(x @ file.tensor("0.weight").T, expected)


def test_what_cannot_be_unpacked_is_refused_with_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match="'int3' of layer '0'; expected one of float8_e4m3fn, .*, convrot_w4a4"):
        open_model(written(tmp_path, parts("mxfp8"), {"format": "int3"}))
    incomplete = {"0.weight": parts("nvfp4")["0.weight"]}
    with pytest.raises(BadModelFile, match="layer '0' of the format 'nvfp4' without 'weight_scale'"):
        open_model(written(tmp_path, incomplete, SAID["nvfp4"]))
    with pytest.raises(BadModelFile, match="128 columns, rotated in groups of 48; expected groups of a power of four"):
        open_model(written(tmp_path, parts("int8_rotated"), SAID["int8_rotated"] | {"convrot_groupsize": 48}))
    save_file({"0.comfy_quant": torch.zeros(3, dtype=torch.uint8)}, tmp_path / "bad.safetensors")
    with pytest.raises(BadModelFile, match="cannot be read"):
        open_model(tmp_path / "bad.safetensors")
