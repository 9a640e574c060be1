"""Convolutions with fewer multiplications: the same numbers, from weights that are those of now."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.tuning.kernels import winograd
from darkroom.engine.tuning.kernels.winograd import FOUR, TWO, Tile, convolve, transform_weight
from darkroom.engine.tuning.networks_in_use import NetworksInUse
from darkroom.engine.tuning.outcome import Choice
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.run import TunedRun
from darkroom.engine.tuning.strategies.winograd import FEW_CHANNELS, FREE_SHARE, WinogradConvolutions
from darkroom.engine.tuning.strategy import MachineFacts, SamplingUse, Strategy


class Patcher:
    """The members that the strategy reads of a MODEL."""

    is_injected = False
    load_device = torch.device("cpu")
    patches: dict[str, Any] = {}
    patches_uuid: object = "first"
    free = 1e12

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.object_patches: dict[str, Any] = {}

    def loaded_size(self) -> int:
        return 1

    def model_size(self) -> int:
        return 1

    def free_bytes(self) -> float:
        return self.free


@pytest.fixture
def use() -> SamplingUse:
    torch.manual_seed(0)
    wide = Conv2d(FEW_CHANNELS, FEW_CHANNELS, 3, padding=1)
    few = Conv2d(4, FEW_CHANNELS, 3, padding=1)
    halving = Conv2d(FEW_CHANNELS, FEW_CHANNELS, 3, padding=1, stride=2)
    network = nn.Sequential(few, wide, halving).requires_grad_(False)
    return SamplingUse(Patcher(network), network, {"transformer_options": {}})


def wide_layer(use: SamplingUse) -> Any:
    return list(use.network.children())[1]


@pytest.mark.parametrize("tile", [TWO, FOUR], ids=["2x2", "4x4"])
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (5, 7), (8, 6), (12, 9)])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("band_bytes", [1, 16 * 1024**2])
def test_gives_what_a_plain_convolution_gives(
    tile: Tile, size: tuple[int, int], has_bias: bool, band_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "LEAST_BAND_BYTES", band_bytes)
    torch.manual_seed(0)
    x, weight = torch.randn(3, 12, *size), torch.randn(9, 12, 3, 3)
    bias = torch.randn(9) if has_bias else None
    exact = functional.conv2d(x.double(), weight.double(), None if bias is None else bias.double(), padding=1)
    for given in (x, x.contiguous(memory_format=torch.channels_last)):
        found = convolve(given, transform_weight(weight, tile), bias)
        assert found.shape == exact.shape and found.stride(1) == 1  # channels innermost
        torch.testing.assert_close(found.double(), exact, atol=1e-5 if tile is TWO else 1e-4, rtol=1e-5)
    double = convolve(x.double(), transform_weight(weight.double(), tile), None if bias is None else bias.double())
    torch.testing.assert_close(double, exact, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("tile", [TWO, FOUR], ids=["2x2", "4x4"])
def test_a_row_of_a_batch_has_the_same_bits_at_each_place(tile: Tile) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 64, 8, 8), transform_weight(torch.randn(32, 64, 3, 3), tile)
    both, turned = convolve(x, weight, None), convolve(x.flip(0), weight, None)
    assert torch.equal(both, turned.flip(0))


def test_layers_of_many_channels_are_replaced_and_restored(use: SamplingUse) -> None:
    strategy, x = WinogradConvolutions(), torch.randn(2, 4, 16, 16)
    plain = use.network(x)
    assert strategy.unfit(use) is None
    undo = strategy.apply(use)
    assert ["forward" in vars(layer) for layer in use.network.children()] == [False, True, False]
    torch.testing.assert_close(use.network(x), plain, atol=1e-5, rtol=1e-5)
    assert torch.equal(use.network(x[:, :, :2, :2]), undone(use, undo, x[:, :, :2, :2]))  # too few cells to gain


def undone(use: SamplingUse, undo: Any, x: torch.Tensor) -> torch.Tensor:
    undo()
    assert not any("forward" in vars(layer) for layer in use.network.modules())
    out: torch.Tensor = use.network(x)
    return out


def test_weights_are_transformed_once_and_anew_when_they_have_changed(use: SamplingUse) -> None:
    strategy, x, layer = WinogradConvolutions(), torch.randn(2, 4, 16, 16), wide_layer(use)

    def draw() -> tuple[torch.Tensor, int]:
        undo = strategy.apply(use)
        address = inspect.getclosurevars(layer.forward).nonlocals["weight"].data_ptr()
        out = use.network(x)
        undo()
        return out, address

    (first, made), (again, held) = draw(), draw()
    assert made == held and torch.equal(first, again)
    with torch.inference_mode():
        layer.weight.mul_(2)  # by a node, without a patch
    torch.testing.assert_close(draw()[0], use.network(x), atol=1e-4, rtol=1e-5)
    use.patcher.patches = {"1.weight": []}
    with torch.inference_mode():
        layer.weight[1:].mul_(2)
    torch.testing.assert_close(draw()[0], use.network(x), atol=1e-4, rtol=1e-5)
    use.patcher.patches_uuid = "second"
    with torch.inference_mode():
        layer.weight[1:].mul_(3)
    torch.testing.assert_close(draw()[0], use.network(x), atol=1e-4, rtol=1e-5)
    strategy.release()
    torch.testing.assert_close(draw()[0], use.network(x), atol=1e-4, rtol=1e-5)


def test_layers_with_few_weights_come_first_where_not_all_have_room(use: SamplingUse) -> None:
    strategy, wide = WinogradConvolutions(), wide_layer(use)
    widest = Conv2d(FEW_CHANNELS, 16 * FEW_CHANNELS, 3, padding=1).requires_grad_(False)
    network = nn.Sequential(widest, *use.network.children())
    use = SamplingUse(Patcher(network), network, {"transformer_options": {}})
    use.patcher.free = (wide.weight.nbytes * 4 + widest.weight.nbytes) / FREE_SHARE
    assert strategy.unfit(use) is None
    undo = strategy.apply(use)
    assert [layer for layer in network if "forward" in vars(layer)] == [wide]
    undo()
    assert strategy.unfit(use) is None  # kept weights need no room
    use.patcher.free = 1e12
    strategy.release()
    undo = strategy.apply(use)
    assert {layer for layer in network if "forward" in vars(layer)} == {wide, widest}
    undo()


def test_it_steps_aside_without_memory_and_from_changed_layers(use: SamplingUse) -> None:
    strategy = WinogradConvolutions()
    use.patcher.free = 1024
    assert strategy.unfit(use) == "too little memory for the transformed weights"
    use.patcher.free = 1e12
    wide_layer(use).padding_mode = "circular"  # as nodes for seamless images do
    assert strategy.unfit(use) == "the network has no convolutions of this kind"
    assert strategy.missing(MachineFacts("cuda", "a card")) == "needs a CPU"


@pytest.mark.parametrize("free_bytes", [1e12, 1024])
def test_its_error_counts_where_it_is_used(use: SamplingUse, free_bytes: float) -> None:
    strategy = WinogradConvolutions("AVX2")
    use.patcher.free = free_bytes
    strategies: dict[str, Strategy] = {strategy.name: strategy}
    run = TunedRun(Quality.SAME, strategies, lambda _network: Choice((strategy.name,), None, 0.0), NetworksInUse())
    with run.sampling(use.patcher, use.network, {"transformer_options": {}}):
        is_used = "forward" in vars(wide_layer(use))
    assert is_used == (free_bytes > 1024)
    assert run.usage.error == (strategy.certain_error if is_used else 0.0)


def test_it_is_used_unmeasured_where_it_has_been_measured_to_gain() -> None:
    assert WinogradConvolutions("AVX2").is_certain and not WinogradConvolutions("AVX512").is_certain
