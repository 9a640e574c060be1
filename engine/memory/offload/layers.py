"""Streaming of weights around the layers of a model that need it before they compute.

An offloaded block is streamed for one call, through a cast buffer, and patched on the way; a block that is stored in
another type than it computes in passes through a buffer, too. Loaded layers have no hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from darkroom.engine.memory.device import Device
from darkroom.engine.memory.fresh_casts import FreshCasts
from darkroom.engine.memory.offload.blocks import Block
from darkroom.engine.memory.offload.device_weights import DeviceWeights
from darkroom.engine.memory.offload.packing import Packing
from darkroom.engine.memory.offload.patching import WantedPatches
from darkroom.engine.memory.offload.weight import Weight
from darkroom.engine.memory.transfer_streams import TransferStream, TransferStreams, conversion_bytes, padded
from darkroom.engine.memory.weight_patches import WeightPatch, same_patches


class Layers:
    """Layers of one model. `compute_dtype` is the type its floating point weights are cast to, unless None.

    The class is large because the size of a buffer, the hooks of a layer and what they bring follow from the same
    questions: whether a block is cast, looked up, used as stored, or patched in each call.
    """

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
        self._own_compute_dtype = compute_dtype
        self._compute_dtype = compute_dtype
        self.working_bytes = 0  # of the current use, charged at each block where the device counts
        self._fresh_casts = FreshCasts(device)
        self._num_direct = 0  # of those that asked for direct casts

    @property
    def block_bytes(self) -> int:
        """Buffer bytes of the largest block while it is streamed."""
        brought = (block for block in self._blocks if block.is_streamable and not self._looks_up(block))
        return max((self._buffer_bytes(block) for block in brought), default=0)

    @property
    def cast_bytes(self) -> int:
        """Bytes of the largest loaded block while it is cast into fresh memory."""
        return max((self._cast_bytes(block) for block in self._blocks if self._passes_buffer(block)), default=0)

    def _cast_bytes(self, block: Block) -> int:
        return sum(padded(weight.num_values * self._type_of(weight).itemsize) for weight in block.weights)

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

    # --- computing without cast buffers ------------------------------------------------------------------------------

    @property
    def casts_directly(self) -> bool:
        """True while loaded weights are cast into fresh memory on the computing stream, in place of a buffer."""
        return self._num_direct > 0

    @property
    def can_have_fixed_addresses(self) -> bool:
        """True where all weights are loaded, and none is patched in each call of its layer, from tensors elsewhere."""
        return all(block.is_loaded and not self._is_patched_in_calls(block) for block in self._blocks)

    @property
    def has_fixed_addresses(self) -> bool:
        """True where layers compute without a cast buffer, from weights that stay until they are moved or patched."""
        return self.can_have_fixed_addresses and (
            self.casts_directly or not any(self._passes_buffer(block) for block in self._blocks)
        )

    def set_compute_dtype(self, dtype: torch.dtype | None) -> None:
        """Set the type of the computation from the next call on; None: the model's own."""
        dtype = self._own_compute_dtype if dtype is None else dtype
        if dtype != self._compute_dtype:
            self._compute_dtype = dtype
            self.arrange_hooks()

    def cast_directly(self) -> Callable[[], None]:
        """Cast loaded weights into fresh memory, on the computing stream, until the function returned is called.

        The values are the same, but that no buffer is used, which is freed between uses. Calls may be nested.
        """
        self._num_direct += 1
        return self._end_direct_casts

    def _end_direct_casts(self) -> None:
        assert self._num_direct, "direct casts ended that had not begun"
        self._num_direct -= 1

    def use_as_stored(self, patches_of: Mapping[nn.Module, Mapping[str, Sequence[WeightPatch]]]) -> Callable[[], None]:
        """Let these layers compute with their weights as they are stored until the function returned is called.

        `patches_of` has, for each layer, the patches of packed weights, by their names, that its code applies itself.
        Its code gets other weights wherever they are not loaded or other patches are wanted: the usual, cast ones.
        Raises ValueError for a layer that has no such weight or whose weights cannot be streamed.
        """
        by_module = {id(block.module): block for block in self._blocks}
        chosen = [(by_module.get(id(layer)), handled) for layer, handled in patches_of.items()]
        for block, _ in chosen:
            if block is None or not block.is_streamable:
                raise ValueError(f"{self._name}: got a layer whose weights cannot be left as they are stored")
        for block, handled in chosen:
            assert block is not None
            block.used_as_stored = handled
        self.arrange_hooks()
        layers = tuple(patches_of)
        return lambda: self._end_use_as_stored(layers)

    def _end_use_as_stored(self, layers: Iterable[nn.Module]) -> None:
        """Cast the weights of these layers again."""
        ending = {id(layer) for layer in layers}
        for block in self._blocks:
            if id(block.module) in ending:
                block.used_as_stored = None
        self.arrange_hooks()

    def patches_changed(self) -> None:
        """Take account of other wanted patches: code that computes with stored weights may not apply them."""
        if any(block.used_as_stored is not None for block in self._blocks):
            self.arrange_hooks()

    def _is_used_as_stored(self, block: Block) -> bool:
        handled = block.used_as_stored
        return handled is not None and all(
            same_patches(self._patches_in_calls(weight), handled.get(weight.key, ())) for weight in block.weights
        )

    def _is_patched_in_calls(self, block: Block) -> bool:
        return not self._is_used_as_stored(block) and any(self._patches_in_calls(weight) for weight in block.weights)

    def _patches_in_calls(self, weight: Weight) -> list[WeightPatch]:
        """Return the wanted patches of a weight that are applied to its values in each call of the layer."""
        if not weight.is_patched_on_the_way:
            return []
        return [entry for layer in self._patches.layers_of(weight.key) for entry in layer]

    def _passes_buffer(self, block: Block) -> bool:
        """Return True for a loaded block that is cast in each call of its layer."""
        return block.is_streamable and self._is_cast(block) and not self._is_used_as_stored(block)

    # --- hooks -------------------------------------------------------------------------------------------------------

    def arrange_hooks(self) -> None:
        """Register hooks on the layers that need them before they compute, and remove those of the others."""
        for block in self._blocks:
            needs = block.is_streamable and (
                not block.is_loaded or self._passes_buffer(block) or self._device.charges_blocks
            )
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
        if is_loaded and not self._passes_buffer(block):
            return None
        is_plain = is_loaded and block.weights[0].packing is None
        if isinstance(block.module, nn.Embedding) and (is_plain or self._looks_up(block)):
            return self._bring_rows(block.weights[0], args)
        stream = block.stream = self._stream_for(block, is_loaded=is_loaded)
        plain = [weight for weight in block.weights if weight.packing is None]
        for weight in plain:
            weight.stream(self._brought(weight, stream))
        for weight in block.weights:
            if weight.packing is not None:
                weight.stream(self._unpacked(weight, weight.packing, plain, stream))
        stream.arrive()
        if isinstance(block.module, nn.Embedding):  # its rows were asked for where its table was: in RAM
            return (args[0].to(self._device.torch_name), *args[1:])
        return None

    def _stream_for(self, block: Block, *, is_loaded: bool) -> TransferStream | FreshCasts:
        if is_loaded and self.casts_directly:
            return self._fresh_casts
        return self._streams.next(0 if is_loaded else block.size_bytes, self._buffer_bytes(block))

    def _brought(self, weight: Weight, stream: TransferStream | FreshCasts) -> torch.Tensor:
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
        self, weight: Weight, packing: Packing, others: Sequence[Weight], stream: TransferStream | FreshCasts
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
            return self._compute_dtype or torch.float32
        if self._compute_dtype is None or weight.keeps_type or not stored.is_floating_point:
            return stored
        return self._compute_dtype

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
