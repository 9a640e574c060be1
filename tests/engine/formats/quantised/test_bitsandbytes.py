"""Four-bit weights against the bitsandbytes library.

`bitsandbytes.safetensors` has random weights as bitsandbytes 0.50.2 quantises them on the CPU, under the names that it
gives the parts, and the values that its `dequantize_4bit` returns. `nested` has quantised magnitudes.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.quantised.open_model import open_model
from darkroom.engine.formats.quantised.quantised_file import QuantisedFile

REFERENCE = load_file(Path(__file__).with_name("bitsandbytes.safetensors"))
NAMES = ("nf4", "nested", "fp4", "fp32")


def parts(name: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in REFERENCE.items() if key.startswith(f"{name}.weight")}


def opened(folder: Path, tensors: dict[str, torch.Tensor]) -> QuantisedFile:
    save_file(tensors, folder / "four.safetensors")
    file = open_model(folder / "four.safetensors")
    assert isinstance(file, QuantisedFile)
    return file


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    file = opened(tmp_path, parts(name))
    expected = REFERENCE[f"{name}.values"]
    assert file.shapes == {f"{name}.weight": tuple(expected.shape)}
    assert torch.equal(file.tensor(f"{name}.weight"), expected.float())


@pytest.mark.parametrize("name", NAMES)
def test_large_weights_are_unpacked_in_parts(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.engine.formats.quantised.bitsandbytes.VALUES_AT_ONCE", 200)
    values = opened(tmp_path, parts(name)).tensor(f"{name}.weight")
    assert torch.equal(values, REFERENCE[f"{name}.values"].float())


def test_the_numbers_of_nf4_are_the_quantiles_of_a_normal_distribution(tmp_path: Path) -> None:
    """The construction of the paper's appendix E: eight quantiles above zero, seven below, and zero itself."""

    def quantiles(count: int) -> list[float]:
        places = torch.linspace(0.9677083, 0.5, count + 1, dtype=torch.float64)[:-1]
        return [math.sqrt(2) * float(torch.erfinv(2 * place - 1)) for place in places]

    found = sorted([*quantiles(8), 0.0, *(-number for number in quantiles(7))])
    expected = torch.tensor(found, dtype=torch.float64) / max(found)
    torch.testing.assert_close(REFERENCE["nf4.weight.quant_map"].double(), expected, rtol=0, atol=2e-6)


def test_incomplete_and_unknown_weights_are_refused(tmp_path: Path) -> None:
    whole = parts("nf4")
    with pytest.raises(BadModelFile, match="'nf4.weight' without 'absmax'"):
        opened(tmp_path, {key: value for key, value in whole.items() if not key.endswith(".absmax")})
    with pytest.raises(BadModelFile, match=r"'nf4.weight' of shape \[6, 256\] in 700 bytes"):
        opened(tmp_path, whole | {"nf4.weight": whole["nf4.weight"][:700].clone()})
    with pytest.raises(BadModelFile, match="bitsandbytes type 'int3'; expected nf4 or fp4"):
        opened(tmp_path, {"a.weight.quant_state.bitsandbytes__int3": torch.zeros(2, dtype=torch.uint8)})
    with pytest.raises(BadModelFile, match="a state of 'nf4.weight' that cannot be read"):
        broken = {"nf4.weight.quant_state.bitsandbytes__nf4": torch.zeros(2, dtype=torch.uint8)}
        opened(tmp_path, whole | broken)
