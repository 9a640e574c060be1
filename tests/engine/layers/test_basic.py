"""Linear layers and convolutions give what torch's own give, whichever way they are computed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d, GroupNorm, Linear, linear

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 3, 5), (2, 2, 2, 5), (0, 5)])
def test_a_linear_layer_takes_any_number_of_dimensions(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    layer = Linear(5, 7).to(dtype).requires_grad_(False)
    x = torch.randn(shape, dtype=dtype)
    assert_near(layer(x), functional.linear(x, layer.weight, layer.bias))
    assert_near(linear(x, layer.weight), functional.linear(x, layer.weight))


def test_tokens_and_weights_may_lie_in_any_order() -> None:
    x, weight = torch.randn(2, 64, 100).transpose(1, 2), torch.randn(64, 48).t()
    assert_near(linear(x, weight), functional.linear(x, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "padding": 1, "stride": 2},
        {"kernel_size": (3, 1), "padding": (2, 0), "stride": (1, 2), "bias": False},
        {"kernel_size": 1},
        {"kernel_size": 3, "padding": 2, "dilation": 2},
        {"kernel_size": 3, "padding": 1, "groups": 2},
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
        {"kernel_size": 3, "padding": "same"},
    ],
    ids=str,
)
def test_a_convolution_of_many_channels_over_few_cells(
    arguments: dict[str, object], is_last: bool, dtype: torch.dtype
) -> None:
    """Custom nodes change padding and padding mode of layers that are there (seamless images)."""
    torch.manual_seed(0)
    theirs = nn.Conv2d(6, 256, **arguments).requires_grad_(False)  # type: ignore[arg-type]
    ours = Conv2d(6, 256, **arguments).requires_grad_(False)  # type: ignore[arg-type]
    ours.load_state_dict(theirs.state_dict())
    layout = torch.channels_last if is_last else torch.contiguous_format
    ours = ours.to(dtype).to(memory_format=layout)  # type: ignore[call-overload]
    for width in (5, 60):  # fewer cells than channels, and more
        x = torch.randn(2, 6, 7, width).to(dtype).contiguous(memory_format=layout)
        found, expected = ours(x), theirs(x.float()).to(dtype)
        assert_near(found, expected)


def test_a_node_may_replace_how_a_layer_convolves() -> None:
    layer = Conv2d(4, 64, 3, padding=1).requires_grad_(False)
    layer._conv_forward = lambda x, weight, bias: functional.conv2d(  # type: ignore[method-assign, assignment]
        functional.pad(x, (1, 1, 1, 1), mode="circular"), weight, bias
    )
    x = torch.randn(1, 4, 4, 4)
    wrapped = functional.conv2d(functional.pad(x, (1, 1, 1, 1), mode="circular"), layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), wrapped)


def test_a_convolution_over_no_images_gives_none() -> None:
    layer = Conv2d(4, 64, 3, padding=1).requires_grad_(False)
    assert layer(torch.zeros(0, 4, 2, 2)).shape == (0, 64, 2, 2)


def test_where_a_gradient_is_wanted_there_is_one() -> None:
    layers = nn.Sequential(Conv2d(4, 64, 3, padding=1), nn.Flatten(), Linear(64 * 4, 3))
    x = torch.randn(1, 4, 2, 2, requires_grad=True)
    layers(x).sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0
    assert all(weight.grad is not None for weight in layers.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 64, 16, 16), (1, 64, 40, 40), (2, 640, 4, 4), (2, 64, 8)], ids=str)
def test_a_group_norm_normalises_any_image_in_any_layout(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm = GroupNorm(32, shape[1], eps=1e-6).requires_grad_(False)
    x, factors = torch.randn(shape), torch.randn(2, shape[1])
    norm.weight.copy_(factors[0])
    norm.bias.copy_(factors[1])
    expected = functional.group_norm(x, 32, factors[0], factors[1], 1e-6)
    norm, narrow = norm.to(dtype), x.to(dtype)
    layouts = [narrow, narrow.to(memory_format=torch.channels_last)] if x.ndim == 4 else [narrow]
    for given in layouts:
        assert_near(norm(given), expected.to(dtype))
