"""Blocks of a module: the weights of one layer each, which are loaded and offloaded together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from darkroom.engine.memory.fresh_casts import FreshCasts
from darkroom.engine.memory.offload.packing import packings_of
from darkroom.engine.memory.offload.weight import Weight
from darkroom.engine.memory.offload.weight_state import HostState
from darkroom.engine.memory.transfer_streams import TransferStream
from darkroom.engine.memory.weight_patches import WeightPatch

# Layers that read their weights nowhere but in `forward`, so that these need to be there only then.
STREAMABLE_LAYERS = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.GroupNorm, nn.LayerNorm,
    nn.RMSNorm, nn.Embedding,
)  # fmt: skip


@dataclass(eq=False, slots=True)
class Block:
    """Weights of one layer. `is_streamable`: it can be offloaded while others compute.

    `hooks` are those on its layer; `stream` is the transfer stream while the layer computes from a cast buffer.
    `used_as_stored` is set while code outside of model memory computes with the weights as they are stored: the patches
    of packed ones, by their names, that it applies itself.
    """

    module: nn.Module
    weights: list[Weight]
    size_bytes: int
    is_streamable: bool
    hooks: list[Any] = field(default_factory=list)
    stream: TransferStream | FreshCasts | None = None
    used_as_stored: Mapping[str, Sequence[WeightPatch]] | None = None

    @property
    def is_loaded(self) -> bool:
        """True where all its weights are on the device."""
        for weight in self.weights:  # noqa: SIM110 - no generator: read for each block, and in each call of a layer
            if not weight.is_loaded:
                return False
        return True

    @property
    def is_streamed(self) -> bool:
        """True while its layer computes from a cast buffer."""
        return self.stream is not None or any(weight.is_streamed for weight in self.weights)

    def end_stream(self) -> None:
        """Return to the weights from before the layer's call, and free the cast buffer."""
        for weight in self.weights:
            if weight.is_streamed:
                weight.end_stream()
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.end()


def divide(
    module: nn.Module, is_in_place: Callable[[torch.Tensor], bool], is_view: Callable[[str], bool]
) -> Iterator[Block]:
    """Yield the blocks of a module. Those whose weights are where they compute (`is_in_place`) are loaded already.

    `is_view` is True for the names of weights that are views of a mapped file.
    """
    by_id: dict[int, Weight] = {}
    layers: list[tuple[nn.Module, list[Weight]]] = []
    for path, layer in module.named_modules():
        own: list[Weight] = []
        packings = packings_of(layer)
        scales = {scale for packing in packings.values() for scale in packing.scales}
        for name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            if tensor is None:
                continue
            if id(tensor) in by_id:
                by_id[id(tensor)].owners.append((layer, name))
                continue
            key = f"{path}.{name}" if path else name
            host = None if tensor.is_meta else tensor
            own.append(
                Weight(
                    key,
                    [(layer, name)],
                    host,
                    _host_state(host, is_view(key)),
                    packing=packings.get(name),
                    keeps_type=name in scales,
                )
            )
            by_id[id(tensor)] = own[-1]
        if own:
            layers.append((layer, own))
    for layer, weights in layers:
        scales = {scale for packing in packings_of(layer).values() for scale in packing.scales}
        is_alone = all(len(weight.owners) == 1 for weight in weights) and layer._buffers.keys() <= scales
        size = sum(weight.in_module.nbytes for weight in weights)
        if all(weight.host is not None and is_in_place(weight.host) for weight in weights):
            for weight in weights:
                weight.load_in_place()
        yield Block(layer, weights, size, is_alone and isinstance(layer, STREAMABLE_LAYERS))


def _host_state(tensor: torch.Tensor | None, is_view: bool) -> HostState:
    """Return the state of an original as its module was made with it."""
    if tensor is None:
        return HostState.ABSENT
    if tensor.device.type != "cpu":
        return HostState.ON_DEVICE
    return HostState.MAPPED if is_view else HostState.IN_RAM
