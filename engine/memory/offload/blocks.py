"""A module's weights in blocks, one for each layer that has weights of its own, and what is known of each weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from engine.memory.transfer_streams import TransferStream
from engine.memory.weight_patches import WeightPatch

# Layers that read their weights nowhere but in `forward`, so that these need to be there only then.
STREAMABLE_LAYERS = (nn.Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm, nn.Embedding)


@dataclass(eq=False, slots=True)
class Weight:
    """One parameter or buffer. `held` is what lies on the device; `below` what hooks have patched over."""

    key: str
    owners: list[tuple[nn.Module, str]]
    home: torch.Tensor | None
    held: torch.Tensor | None = None
    below: torch.Tensor | None = None
    applied: Sequence[WeightPatch] = ()
    is_pinned: bool = False

    @property
    def shown(self) -> torch.Tensor:
        """What the module sees: of the right shape, type and layout, whatever its values."""
        owner, name = self.owners[0]
        tensor = owner._buffers[name] if name in owner._buffers else owner._parameters[name]
        assert tensor is not None
        return tensor

    def show(self, tensor: torch.Tensor | None) -> None:
        """Let the module see this one; None: shape and type alone."""
        tensor = self.shown.to("meta") if tensor is None else tensor
        for owner, name in self.owners:
            if name not in owner._parameters:
                owner._buffers[name] = tensor
            elif isinstance(tensor, nn.Parameter):
                owner._parameters[name] = tensor
            else:
                owner._parameters[name] = nn.Parameter(tensor, requires_grad=False)


@dataclass(eq=False, slots=True)
class Block:
    """The weights of one layer. `is_streamable`: it can be away while others compute. `is_read`: its homes have been in
    RAM, so that views among them are no longer to be read from a disk.

    While the layer computes from a stream, `covered` is what the module saw before.
    """

    module: nn.Module
    weights: list[Weight]
    size_bytes: int
    is_streamable: bool
    is_there: bool = False
    is_read: bool = False
    hooks: list[Any] = field(default_factory=list)
    stream: TransferStream | None = None
    covered: list[tuple[Weight, torch.Tensor]] = field(default_factory=list)

    def uncover(self) -> None:
        """Let the module see again what it saw before its layer computed, and give the stream back."""
        for weight, tensor in self.covered:
            weight.show(tensor)
        self.covered.clear()
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.end()


def divide(module: nn.Module, is_at_home: Callable[[torch.Tensor], bool]) -> Iterator[Block]:
    """The blocks of a module. Those whose weights lie where they compute (`is_at_home`) are there already."""
    by_id: dict[int, Weight] = {}
    layers: list[tuple[nn.Module, list[Weight]]] = []
    for path, layer in module.named_modules():
        own: list[Weight] = []
        for name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            if tensor is None:
                continue
            if id(tensor) in by_id:
                by_id[id(tensor)].owners.append((layer, name))
                continue
            key = f"{path}.{name}" if path else name
            own.append(Weight(key, [(layer, name)], None if tensor.is_meta else tensor))
            by_id[id(tensor)] = own[-1]
        if own:
            layers.append((layer, own))
    for layer, weights in layers:
        is_alone = all(len(weight.owners) == 1 for weight in weights) and not layer._buffers
        size = sum(weight.shown.nbytes for weight in weights)
        block = Block(layer, weights, size, is_alone and isinstance(layer, STREAMABLE_LAYERS))
        if all(weight.home is not None and is_at_home(weight.home) for weight in weights):
            block.is_there = True
            for weight in weights:
                weight.held = weight.home
        yield block
