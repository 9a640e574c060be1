"""Convolutions of 3x3 with fewer multiplications, on processors that are bound by them.

Layers with few weights make 4x4 cells at a time, for which transformed weights take 4 times the memory of the plain
ones; layers with many make 2x2, for which it is 16/9. Where not all have room, those with few weights come first: they
have the larger images. Transformed weights are kept from one run to the next while the weights are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import nn

from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.tuning.kernels.winograd import FOUR, TWO, Tile, convolve, transform_weight
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import (
    MachineFacts,
    SamplingUse,
    Strategy,
    Undo,
    custom_code,
    offloaded,
    replace_forwards,
    unchanged_layers,
)

FREE_SHARE = 0.3  # of the free memory that the transformed weights may take
FEW_CHANNELS = 256  # with fewer, moving the cells takes longer than the products that are saved
MOST_OF_FOUR = 1280 * 640  # of the channels' product: with more, reading the weights for 4x4 cells does
FEW_TILES = 8  # with fewer, reading the larger weights does, too
MOST_NETWORKS = 2  # whose weights are kept: a UNet and a VAE


@dataclass(frozen=True, slots=True)
class _Made:
    """Transformed weights of a network's layers, and what all its weights of this kind were recognised by."""

    kind: object
    weights: Mapping[Conv2d, torch.Tensor]


class WinogradConvolutions(Strategy):
    """Convolutions by Winograd's minimal filtering."""

    name = "winograd_convolutions"
    quality = Quality.SAME
    about = "convolutions of 3x3 with 4 or 2.25 products where plain ones take 9"
    target = "any"
    is_size_sensitive = True
    makes_tensors = True
    certain_error = 1e-4  # 4e-5 after two steps with random weights
    conflicts = frozenset({"compiled_blocks"})

    def __init__(self, cpu_capability: str | None = None) -> None:
        # Wider vectors have kernels of their own, beside which it has not been measured: there it is a candidate.
        self.is_certain = (cpu_capability or torch.backends.cpu.get_cpu_capability()) == "AVX2"
        self._made: WeakKeyDictionary[nn.Module, _Made] = WeakKeyDictionary()

    def missing(self, machine: MachineFacts) -> str | None:
        return None if machine.device_type == "cpu" else "needs a CPU"

    def unfit(self, use: SamplingUse) -> str | None:
        if use.device.type != "cpu":
            return "the network is on a GPU"
        found = custom_code(use) or offloaded(use)
        if found is not None:
            return found
        layers = _layers(use)
        if not layers:
            return "the network has no convolutions of this kind"
        if self._held(use, layers) or _fitting(use, layers):
            return None
        return "too little memory for the transformed weights"

    def apply(self, use: SamplingUse) -> Undo:
        layers = _layers(use)
        made = self._held(use, layers)
        if not made:
            made = {
                layer: transform_weight(layer.get_parameter("weight"), _tile(layer)) for layer in _fitting(use, layers)
            }
            self._made.pop(use.network, None)
            while len(self._made) >= MOST_NETWORKS:
                del self._made[next(iter(self._made))]
            self._made[use.network] = _Made(_kind(use, layers), made)
        return replace_forwards([(layer, _filtered(layer, weight)) for layer, weight in made.items()])

    def release(self) -> bool:
        was_some = bool(self._made)
        self._made.clear()
        return was_some

    def _held(self, use: SamplingUse, layers: list[Conv2d]) -> Mapping[Conv2d, torch.Tensor] | None:
        """Return transformed weights of these layers where they are kept and the layers' weights are the same."""
        held = self._made.get(use.network)
        if held is None or held.kind != _kind(use, layers):
            return None
        # A node may have written into the weights, of which the patches say nothing.
        is_same = all(
            torch.equal(weight[-1, 0], layer.get_parameter("weight")[0, :, 2, 2])  # the last is not transformed
            for layer, weight in held.weights.items()
        )
        return held.weights if is_same else None


def _kind(use: SamplingUse, layers: list[Conv2d]) -> object:
    patches = use.patcher.patches_uuid if use.patcher.patches else None
    return patches, tuple(layer.get_parameter("weight").data_ptr() for layer in layers)


def _layers(use: SamplingUse) -> list[Conv2d]:
    return [layer for layer in unchanged_layers(use, (Conv2d,)) if isinstance(layer, Conv2d) and _takes(layer)]


def _fitting(use: SamplingUse, layers: list[Conv2d]) -> list[Conv2d]:
    """Return the layers whose transformed weights have room, those with few weights first."""
    left = use.patcher.free_bytes() * FREE_SHARE
    found = []
    for layer in sorted(layers, key=lambda layer: layer.weight.numel()):
        left -= layer.get_parameter("weight").nbytes * _tile(layer).num_products / 9
        if left < 0:
            break
        found.append(layer)
    return found


def _tile(layer: Conv2d) -> Tile:
    return FOUR if layer.in_channels * layer.out_channels <= MOST_OF_FOUR else TWO


def _takes(layer: Conv2d) -> bool:
    """Return True for a layer of many channels that is the convolution of `convolve`, unless a node has changed it."""
    shape = (layer.kernel_size, layer.stride, layer.dilation, layer.groups, layer.padding_mode)
    return (
        shape == ((3, 3), (1, 1), (1, 1), 1, "zeros")
        and layer.padding in (1, (1, 1))
        and min(layer.in_channels, layer.out_channels) >= FEW_CHANNELS
        and layer.weight.dtype == torch.float32
        and not (layer._forward_hooks or layer._forward_pre_hooks or "_conv_forward" in layer.__dict__)
    )


def _filtered(layer: Conv2d, weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    tile = _tile(layer)

    def forward(x: torch.Tensor) -> torch.Tensor:
        if x.ndim != 4 or x.dtype != weight.dtype or tile.count(x) < FEW_TILES:
            return Conv2d.forward(layer, x)
        return convolve(x, weight, layer.bias)

    return forward
