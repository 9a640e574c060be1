"""What happens around the layers of a model that need something before they compute.

A block that is away is brought over for one call, through a stream, and patched on the way; a block that is kept in
another type than it computes in passes through a stream, too. Layers that are all there have no hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from engine.memory.device import Device
from engine.memory.offload.blocks import Block, Weight
from engine.memory.offload.device_weights import DeviceWeights
from engine.memory.offload.patching import WantedPatches
from engine.memory.transfer_streams import TransferStream, TransferStreams, conversion_bytes, padded


class Layers:
    """The layers of one model. `compute_dtype` is what its floating point weights are cast to, unless None."""

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
        self.working_bytes = 0  # of the use in hand, charged at each block where somebody counts

    @property
    def block_bytes(self) -> int:
        """What the largest block takes while it is brought over."""
        brought = (block for block in self._blocks if block.is_streamable and not self._looks_up(block))
        return max((self._buffer_bytes(block) for block in brought), default=0)

    @property
    def casts(self) -> bool:
        """Whether blocks that are there pass through the buffers all the same."""
        return self.compute_dtype is not None and any(self._is_cast(block) for block in self._blocks)

    def arrange_hooks(self) -> None:
        """Layers that need something before they compute get it; the others are left alone."""
        for block in self._blocks:
            needs = block.is_streamable and (not block.is_there or self._is_cast(block) or self._device.charges_blocks)
            if needs and not block.hooks:
                block.hooks = [
                    block.module.register_forward_pre_hook(_before(self, block)),
                    block.module.register_forward_hook(_after(block), always_call=True),
                ]
            elif not needs and block.hooks:
                _remove_hooks(block)

    def remove_hooks(self) -> None:
        for block in self._blocks:
            _remove_hooks(block)

    def bring(self, block: Block, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Let the layer see its weights for one call; its arguments if they change. Raises `OutOfMemory`."""
        if self._device.charges_blocks:
            self._device.begin_block(self.working_bytes)
        if block.is_there and not self._is_cast(block):
            return None
        if isinstance(block.module, nn.Embedding) and (block.is_there or self._looks_up(block)):
            return self._bring_rows(block.weights[0], block, args)
        block.stream = self._streams.next(0 if block.is_there else block.size_bytes, self._buffer_bytes(block))
        self._patches.working_now_bytes = self.working_bytes
        try:
            for weight in block.weights:
                block.covered.append((weight, weight.shown))
                weight.show(self._brought(weight, block.stream))
        finally:
            self._patches.working_now_bytes = 0
        block.stream.arrive()
        if isinstance(block.module, nn.Embedding):  # asked for where its table lay: in RAM
            return (args[0].to(self._device.torch_name), *args[1:])
        return None

    def _brought(self, weight: Weight, stream: TransferStream) -> torch.Tensor:
        layers = self._patches.layers_of(weight.key)
        last = _is_channels_last(weight.shown)
        if weight.held is None and not layers:
            assert weight.home is not None, f"{self._name} {weight.key}: it was not read"
            return stream.bring(weight.home, self._type_of(weight.home), channels_last=last)
        tensor = weight.held
        if tensor is None:  # patched on the way: the same arithmetic on the same device
            assert weight.home is not None, f"{self._name} {weight.key}: it was not read"
            tensor = self._device.empty_like(weight.shown)
            self._device.copy(None, tensor, weight.home)
            for entries in layers:
                tensor = self._device_weights.patched(entries, tensor, weight.key)
        return stream.bring(tensor, self._type_of(tensor), channels_last=last, is_computed=True)

    def _looks_up(self, block: Block) -> bool:
        """Whether a layer is a table of which, while it is away, only those rows need to come that are asked for."""
        return isinstance(block.module, nn.Embedding) and not self._patches.layers_of(block.weights[0].key)

    def _bring_rows(self, weight: Weight, block: Block, args: tuple[Any, ...]) -> tuple[Any, ...]:
        whole = weight.home if weight.held is None else weight.held
        assert whole is not None, f"{self._name} {weight.key}: it was not read"
        rows = args[0].reshape(-1)
        table = whole[rows.to(whole.device)]
        block.covered.append((weight, weight.shown))
        weight.show(table.to(self._device.torch_name, self._type_of(table)))
        places = torch.arange(rows.numel(), device=self._device.torch_name)
        return (places.view(args[0].shape), *args[1:])

    def _type_of(self, tensor: torch.Tensor) -> torch.dtype:
        """What a weight is computed in."""
        is_cast = self.compute_dtype is not None and tensor.is_floating_point()
        return self.compute_dtype if is_cast and self.compute_dtype is not None else tensor.dtype

    def _is_cast(self, block: Block) -> bool:
        return self.compute_dtype is not None and any(
            self._type_of(weight.shown) != weight.shown.dtype for weight in block.weights
        )

    def _buffer_bytes(self, block: Block) -> int:
        sizes = []
        for shown in (weight.shown for weight in block.weights):
            dtype = self._type_of(shown)
            # Even for a block that is there now: it is planned for that it may be away.
            sizes.append(
                padded(shown.numel() * dtype.itemsize) + (conversion_bytes(shown, dtype) if self._can_leave else 0)
            )
        return sum(sizes)


# Hooks are functions and no methods, so that a module does not hold its weights for longer than these live.


def _before(layers: Layers, block: Block) -> Callable[..., Any]:
    def before(module: nn.Module, args: tuple[Any, ...]) -> Any:
        return layers.bring(block, args)

    return before


def _after(block: Block) -> Callable[..., None]:
    def after(module: nn.Module, args: Any, output: Any) -> None:
        block.uncover()

    return after


def _remove_hooks(block: Block) -> None:
    for hook in block.hooks:
        hook.remove()
    block.hooks = []


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.ndim == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)
