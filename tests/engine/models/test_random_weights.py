"""Random weights of every type that weights are kept in."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from darkroom.engine.models import random_weights
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.random_weights import random_networks

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def networks_of(dtype: torch.dtype, device: str = "cpu") -> list[nn.Module]:
    return [item for item in random_networks("small", 0, LoadTypes(dtype, dtype, dtype), device) if item is not None]


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_weights_have_the_variance_of_wider_ones(dtype: torch.dtype) -> None:
    for narrow, wide in zip(networks_of(dtype), networks_of(torch.float32), strict=True):
        for name, weight in wide.named_parameters():
            own = narrow.get_parameter(name)
            assert own.dtype == dtype and bool(own.float().isfinite().all()), name
            if weight.numel() >= 4096 and weight.std() > 0.01:  # smaller ones are rounded to steps of float8 near zero
                assert math.isclose(own.float().std(), weight.std(), rel_tol=0.1), name


def test_a_seed_gives_float8_weights_of_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    first = networks_of(FLOAT8[0])[0].state_dict()
    monkeypatch.setattr(random_weights, "NUMBERS_AT_ONCE", 1 << 16)  # the slices are a matter of memory alone
    second = networks_of(FLOAT8[0])[0].state_dict()
    assert all(torch.equal(weight.view(torch.uint8), second[name].view(torch.uint8)) for name, weight in first.items())


@pytest.mark.parametrize("dtype", [torch.float16, *FLOAT8])
def test_networks_have_shapes_alone_on_the_meta_device(dtype: torch.dtype) -> None:
    for network in networks_of(dtype, "meta"):
        assert {(weight.device.type, weight.dtype) for weight in network.parameters()} == {("meta", dtype)}
