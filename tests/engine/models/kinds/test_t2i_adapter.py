"""T2I-Adapters return what ComfyUI's networks return, place by place."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from darkroom.engine.models.kinds.t2i_adapter import Adapter, AdapterConfig, LightAdapter
from tests.engine.models.kinds.t2i_cases import CASES, REFERENCE, WIDTHS, T2iCase, fill, flat


def _network(case: T2iCase) -> torch.nn.Module:
    if case.is_light:
        return LightAdapter(case.in_channels, WIDTHS)
    config = AdapterConfig(case.in_channels, WIDTHS, case.kernel_size, case.downs_by_conv, case.is_xl)
    return Adapter(config)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_returns_what_comfyui_returns(case: T2iCase) -> None:
    expected = {name: tensor for name, tensor in load_file(REFERENCE).items() if name.startswith(f"{case.name}/")}
    with torch.no_grad():
        found = flat(case, fill(_network(case), case)(case.make_image()))
    assert found.keys() == expected.keys()
    for name, addition in found.items():
        torch.testing.assert_close(addition, expected[name], rtol=1e-4, atol=1e-5)
