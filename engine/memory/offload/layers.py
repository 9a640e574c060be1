"""Streaming of weights around the layers of a model that need it before they compute.

An offloaded block is streamed for one call, through a cast buffer, and patched on the way; a block that is stored in
another type than it computes in passes through a buffer, too. Loaded layers have no hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from engine.memory.device import Device
from engine.memory.offload.blocks import Block
from engine.memory.offload.device_weights import DeviceWeights
from engine.memory.offload.patching import WantedPatches
from engine.memory.offload.weight import Weight
from engine.memory.transfer_streams import TransferStream, TransferStreams, conversion_bytes, padded


class Layers:
    """Layers of one model. `compute_dtype` is the type its floating point weights are cast to, unless None."""

    def __init__(
        self,
        name: str,
        blocks: Sequence[Block],
        device: Device,
        streams: TransferStreams,
        patches: WantedPatches,
        copies: DeviceWeights,
        *,
        can_leave: bool,
        compute_dtype: torch.dtype | None,
    ) -> None:
        self._name = name
        self._blocks = blocks
        self._device = device
        self._streams = streams
        self._patches = patches
        self._device_weights = copies
        self._can_leave = can_leave
        self.compute_dtype = compute_dtype
        self.working_bytes = 0  # of the current use, charged at each block where the device counts

    @property
    def block_bytes(self) -> int:
        """Buffer bytes of the largest block while it is streamed."""
        brought = (block for block in self._blocks if block.is_streamable and not self._looks_up(block))
        return max((self._buffer_bytes(block) for block in brought), default=0)

    @property
    def casts(self) -> bool:
        """True where loaded blocks pass through the buffers too."""
        return self.compute_dtype is not None and any(self._is_cast(block) for block in self._blocks)

    def arrange_hooks(self) -> None:
        """Register hooks on the layers that need them before they compute, and remove those of the others."""
        for block in self._blocks:
            needs = block.is_streamable and (not block.is_loaded or self._is_cast(block) or self._device.charges_blocks)
            if needs and not block.hooks:
                block.hooks = [
                    block.module.register_forward_pre_hook(_before(self, block)),
                    block.module.register_forward_hook(_after(block), always_call=True),
                ]
            elif not needs and block.hooks:
                _remove_hooks(block)

    def remove_hooks(self) -> None:
        """Remove the hooks of all layers."""
        for block in self._blocks:
            _remove_hooks(block)

    def bring(self, block: Block, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Stream a layer's weights for one call; return its arguments if they change. Raises `OutOfMemory`."""
        if self._device.charges_blocks:
            self._device.begin_block(self.working_bytes)
        is_loaded = block.is_loaded
        if is_loaded and not self._is_cast(block):
            return None
        if isinstance(block.module, nn.Embedding) and (is_loaded or self._looks_up(block)):
            return self._bring_rows(block.weights[0], args)
        block.stream = self._streams.next(0 if is_loaded else block.size_bytes, self._buffer_bytes(block))
        for weight in block.weights:
            weight.stream(self._brought(weight, block.stream))
        block.stream.arrive()
        if isinstance(block.module, nn.Embedding):  # its rows were asked for where its table was: in RAM
            return (args[0].to(self._device.torch_name), *args[1:])
        return None

    def _brought(self, weight: Weight, stream: TransferStream) -> torch.Tensor:
        layers = self._patches.layers_of(weight.key)
        last = _is_channels_last(weight.in_module)
        if weight.loaded is None and not layers:
            assert weight.host is not None, f"{self._name} {weight.key}: it was not read"
            return stream.bring(weight.host, self._type_of(weight.host), channels_last=last)
        tensor = weight.loaded
        if tensor is None:  # patched on the way: the same arithmetic on the same device
            assert weight.host is not None, f"{self._name} {weight.key}: it was not read"
            tensor = self._device.empty_like(weight.in_module)
            self._device.copy(None, tensor, weight.host)
            for entries in layers:
                tensor = self._device_weights.patched(entries, tensor, weight.key, working_bytes=self.working_bytes)
        return stream.bring(tensor, self._type_of(tensor), channels_last=last, is_computed=True)

    def _looks_up(self, block: Block) -> bool:
        """Return True for an embedding table of which only the rows that are asked for need to be streamed."""
        return isinstance(block.module, nn.Embedding) and not self._patches.layers_of(block.weights[0].key)

    def _bring_rows(self, weight: Weight, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Stream the rows of a table that are asked for; return their numbers in place of the arguments."""
        whole = weight.host if weight.loaded is None else weight.loaded
        assert whole is not None, f"{self._name} {weight.key}: it was not read"
        rows = args[0].reshape(-1)
        table = whole[rows.to(whole.device)]
        weight.stream(table.to(self._device.torch_name, self._type_of(table)))
        places = torch.arange(rows.numel(), device=self._device.torch_name)
        return (places.view(args[0].shape), *args[1:])

    def _type_of(self, tensor: torch.Tensor) -> torch.dtype:
        """Return the type that a weight is computed in."""
        is_cast = self.compute_dtype is not None and tensor.is_floating_point()
        return self.compute_dtype if is_cast and self.compute_dtype is not None else tensor.dtype

    def _is_cast(self, block: Block) -> bool:
        return self.compute_dtype is not None and any(
            self._type_of(weight.in_module) != weight.in_module.dtype for weight in block.weights
        )

    def _buffer_bytes(self, block: Block) -> int:
        sizes = []
        for tensor in (weight.in_module for weight in block.weights):
            dtype = self._type_of(tensor)
            # Even for a block that is loaded now: the plan allows for it to be offloaded.
            sizes.append(
                padded(tensor.numel() * dtype.itemsize) + (conversion_bytes(tensor, dtype) if self._can_leave else 0)
            )
        return sum(sizes)


# Hooks are functions and no methods, so that a module does not keep its weights alive.


def _before(layers: Layers, block: Block) -> Callable[..., object]:
    def before(module: nn.Module, args: tuple[Any, ...]) -> Any:
        return layers.bring(block, args)

    return before


def _after(block: Block) -> Callable[..., None]:
    def after(module: nn.Module, args: object, output: object) -> None:
        block.end_stream()

    return after


def _remove_hooks(block: Block) -> None:
    for hook in block.hooks:
        hook.remove()
    block.hooks = []


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.ndim == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)
