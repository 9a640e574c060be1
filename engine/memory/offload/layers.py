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
from engine.memory.offload.packing import Packing
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
    def unpacking_bytes(self) -> int:
        """Bytes that it takes besides the buffer to unpack a weight."""
        return max((self._unpacking_bytes_of(block) for block in self._blocks), default=0)

    def _unpacking_bytes_of(self, block: Block) -> int:
        packings = [weight.packing for weight in block.weights if weight.packing is not None]
        if not packings or self._looks_up(block):
            return 0
        return max(packing.working_bytes for packing in packings)

    @property
    def casts(self) -> bool:
        """True where loaded blocks pass through the buffers too."""
        return any(self._is_cast(block) for block in self._blocks)

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
            self._device.begin_block(self.working_bytes + self._unpacking_bytes_of(block))
        is_loaded = block.is_loaded
        if is_loaded and not self._is_cast(block):
            return None
        is_plain = is_loaded and block.weights[0].packing is None
        if isinstance(block.module, nn.Embedding) and (is_plain or self._looks_up(block)):
            return self._bring_rows(block.weights[0], args)
        block.stream = self._streams.next(0 if is_loaded else block.size_bytes, self._buffer_bytes(block))
        plain = [weight for weight in block.weights if weight.packing is None]
        for weight in plain:
            weight.stream(self._brought(weight, block.stream))
        for weight in block.weights:
            if weight.packing is not None:
                weight.stream(self._unpacked(weight, weight.packing, plain, block.stream))
        block.stream.arrive()
        if isinstance(block.module, nn.Embedding):  # its rows were asked for where its table was: in RAM
            return (args[0].to(self._device.torch_name), *args[1:])
        return None

    def _brought(self, weight: Weight, stream: TransferStream) -> torch.Tensor:
        layers = self._patches.layers_of(weight.key)
        last = _is_channels_last(weight.in_module)
        if weight.loaded is None and not layers:
            assert weight.host is not None, f"{self._name} {weight.key}: it was not read"
            return stream.bring(weight.host, self._type_of(weight), channels_last=last)
        tensor = weight.loaded
        if tensor is None:  # patched on the way: the same arithmetic on the same device
            assert weight.host is not None, f"{self._name} {weight.key}: it was not read"
            tensor = self._device.empty_like(weight.in_module)
            self._device.copy(None, tensor, weight.host)
            for entries in layers:
                tensor = self._device_weights.patched(entries, tensor, weight.key, working_bytes=self.working_bytes)
        return stream.bring(tensor, self._type_of(weight), channels_last=last, is_computed=True)

    def _unpacked(
        self, weight: Weight, packing: Packing, others: Sequence[Weight], stream: TransferStream
    ) -> torch.Tensor:
        """Return the values of a packed weight in the buffer, patched; its scales have been brought there before."""
        values = stream.reserve(packing.shape, self._type_of(weight))
        codes = weight.loaded
        if codes is None:
            assert weight.host is not None, f"{self._name} {weight.key}: it was not read"
            codes = stream.bring(weight.host, weight.host.dtype, channels_last=False)
            stream.arrive()
            for entries in () if weight.is_patched_on_the_way else self._patches.layers_of(weight.key):
                codes = self._device_weights.patched(entries, codes, weight.key, working_bytes=self.working_bytes)
        elif packing.scales:
            stream.arrive()
        scales = {name: other.in_module for other in others for _, name in other.owners if name in packing.scales}
        packing.unpack(codes, scales, values)
        if weight.is_patched_on_the_way and self._patches.layers_of(weight.key):
            values.copy_(self._patches.patched_values(values, weight.key, working_bytes=self.working_bytes))
        return values

    def _looks_up(self, block: Block) -> bool:
        """Return True for an embedding table of which only the rows that are asked for need to be streamed."""
        return isinstance(block.module, nn.Embedding) and not self._patches.layers_of(block.weights[0].key)

    def _bring_rows(self, weight: Weight, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Stream the rows of a table that are asked for; return their numbers in place of the arguments."""
        whole = weight.host if weight.loaded is None else weight.loaded
        assert whole is not None, f"{self._name} {weight.key}: it was not read"
        rows = args[0].reshape(-1)
        table = whole[rows.to(whole.device)]
        if weight.packing is None:
            table = table.to(self._device.torch_name, self._type_of(weight))
        else:
            codes = table.to(self._device.torch_name)
            table = torch.empty(
                (len(codes), *weight.packing.shape[1:]), dtype=self._type_of(weight), device=codes.device
            )
            weight.packing.unpack(codes, {}, table)
        weight.stream(table)
        places = torch.arange(rows.numel(), device=self._device.torch_name)
        return (places.view(args[0].shape), *args[1:])

    def _type_of(self, weight: Weight) -> torch.dtype:
        """Return the type that a weight is computed in; that of packed ones is float32 where nothing else is said."""
        stored = weight.in_module.dtype
        if weight.packing is not None:
            return self.compute_dtype or torch.float32
        if self.compute_dtype is None or weight.keeps_type or not stored.is_floating_point:
            return stored
        return self.compute_dtype

    def _is_cast(self, block: Block) -> bool:
        return any(
            weight.packing is not None or self._type_of(weight) != weight.in_module.dtype for weight in block.weights
        )

    def _buffer_bytes(self, block: Block) -> int:
        sizes = []
        for weight in block.weights:
            tensor, dtype = weight.in_module, self._type_of(weight)
            sizes.append(padded(weight.num_values * dtype.itemsize))
            if not self._can_leave:
                continue
            # Even for a block that is loaded now: the plan allows for it to be offloaded.
            sizes.append(padded(tensor.nbytes) if weight.packing is not None else conversion_bytes(tensor, dtype))
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
