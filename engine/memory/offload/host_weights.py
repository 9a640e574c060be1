"""Originals of a model's weights: in RAM, pinned or not, in the mapped file, or on the device that they never leave."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from darkroom.engine.memory.device import Device, Tensor
from darkroom.engine.memory.offload.blocks import Block
from darkroom.engine.memory.offload.packing import unpacked
from darkroom.engine.memory.offload.weight import Weight
from darkroom.engine.memory.offload.weight_state import HostState
from darkroom.engine.memory.staging import RawWeight, max_conversion_bytes
from darkroom.engine.memory.transfer_streams import PinnedMemory


class WeightSource(Protocol):
    """Source of weights: names as in the module, and types, layouts and values as it was made with."""

    @property
    def names(self) -> Collection[str]: ...

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield weights on the CPU, in the file's order; views of the mapped file where it has them as needed."""
        ...

    def is_view(self, name: str) -> bool:
        """Return True where `read` returns a view of the mapped file."""
        ...

    def check(self) -> None:
        """Raise `BadModelFile` when the file has changed: touching a view of it would end the process."""
        ...

    def raw(self, names: Iterable[str]) -> Iterator[tuple[str, RawWeight]]:
        """Yield weights as the file has them, in its order, unread."""
        ...


class HostWeights:
    """Originals of one model's weights: reading them, pinning them, and dropping those that a file can give again."""

    def __init__(
        self,
        name: str,
        weights: Mapping[str, Weight],
        device: Device,
        *,
        source: WeightSource | None,
        pinned: PinnedMemory | None,
    ) -> None:
        self._name = name
        self._weights = weights
        self._device = device
        self._source = source
        self._pinned = pinned

    @property
    def names(self) -> Collection[str]:
        """Names of the weights that a file can give again."""
        return () if self._source is None else self._source.names

    @property
    def ram_bytes(self) -> int:
        """Bytes of originals in RAM, without views of a mapped file."""
        return sum(host.nbytes for _, host in self._in_ram())

    @property
    def droppable_bytes(self) -> int:
        """Bytes that `drop` would free."""
        return sum(host.nbytes for _, host in self._droppable())

    def conversion_bytes(self) -> int:
        """Return the bytes on the device that it takes to convert weights of the file while they load."""
        if self._source is None:
            return 0
        raws = self._source.raw(key for key, weight in self._weights.items() if self.comes_from_file(weight))
        return max_conversion_bytes(max((raw.num_bytes for key, raw in raws if self._is_changed(key, raw)), default=0))

    def _is_changed(self, key: str, raw: RawWeight) -> bool:
        in_module = self._weights[key].in_module
        return raw.dtype != in_module.dtype or not in_module.is_contiguous()

    def comes_from_file(self, weight: Weight) -> bool:
        """Return True where a weight is loaded from the file: the original is a view of it, or absent."""
        source = self._source
        if source is None or weight.key not in source.names:
            return False
        return weight.host_state is HostState.ABSENT or source.is_view(weight.key)

    def state_when_read(self, key: str) -> HostState:
        """Return the state of an original that has just been read."""
        is_view = self._source is not None and self._source.is_view(key)
        return HostState.READ if is_view else HostState.IN_RAM

    def check(self) -> None:
        """Raise `BadModelFile` when the file has been changed in place."""
        if self._source is not None:
            self._source.check()

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, keys: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Read originals from the file. Raises `BadModelFile`."""
        wanted = list(keys)
        return self._unchanged(wanted).read(wanted) if wanted else iter(())

    def raw(self, keys: Iterable[str]) -> Iterator[tuple[str, RawWeight]]:
        """Return weights of the file in its own types, unread. Raises `BadModelFile`."""
        wanted = list(keys)
        return self._unchanged(wanted).raw(wanted) if wanted else iter(())

    def _unchanged(self, wanted: Sequence[str]) -> WeightSource:
        """Return the file, unchanged since it was opened. Raises `BadModelFile`."""
        assert self._source is not None, f"{self._name} {wanted[0]}: there is no file to read it from"
        self._source.check()
        return self._source

    def original(self, key: str) -> Tensor:
        """Return the original, in RAM if the model can be offloaded. Raises KeyError for an unknown name."""
        weight = self._weights[key]
        if weight.host is not None:
            if weight.host_state in (HostState.MAPPED, HostState.READ):
                self.check()
            return weight.host
        if key in self.names:
            return next(tensor for _, tensor in self.read([key]))
        copied = self.copy_in_ram(weight)
        assert copied is not None, f"{self._name} {key}: its original is lost"
        return copied

    def values(self, key: str) -> Tensor:
        """Return the original as values: float32 where it is packed. Raises KeyError for an unknown name."""
        weight, original = self._weights[key], self.original(key)
        if weight.packing is None:
            return original
        path = key.removesuffix(weight.owners[0][1])
        scales = {name: self.original(path + name).to(original.device) for name in weight.packing.scales}
        return unpacked(weight.packing, original, scales)

    def copy_in_ram(self, weight: Weight) -> Tensor | None:
        """Copy the original from the device; None where only a file has it: offloading waits for no disk."""
        if weight.host is not None:
            return weight.host.to("cpu", copy=True)
        loaded = weight.unhooked
        return None if loaded is None or weight.applied else loaded.to("cpu", copy=True)

    def bring_to_ram(self, blocks: Sequence[Block]) -> None:
        """Read the originals of offloaded blocks, unread views too, and pin them as far as the limit allows."""
        unread = (HostState.ABSENT, HostState.MAPPED)
        weights = {weight.key: weight for block in blocks for weight in block.weights}
        wanted = [key for key, weight in weights.items() if weight.host_state in unread]
        for key, tensor in self.read(wanted):
            weights[key].put_host(tensor, self.state_when_read(key))
        if self._pinned is not None:
            for weight in weights.values():
                self._pin(weight, self._pinned)

    def _pin(self, weight: Weight, pinned: PinnedMemory) -> None:
        if weight.host is None or weight.host_state not in (HostState.READ, HostState.IN_RAM):
            return
        copy = pinned.pin(weight.host)
        if copy is not None:
            weight.put_host(copy, HostState.PINNED)

    # --- leaving RAM -------------------------------------------------------------------------------------------------

    def drop(self, blocks: Sequence[Block]) -> int:
        """Free the RAM of originals that the file can give again; return the bytes freed."""
        found = list(self._droppable())
        num_bytes = sum(host.nbytes for _, host in found)
        dropped = [weight for weight, _ in found]
        del found
        had_pinned = any(weight.host_state is HostState.PINNED for weight in dropped)
        if not self._device.has_own_memory:  # it computes with the originals themselves
            keys = {weight.key for weight in dropped}
            for block in blocks:
                if any(weight.key in keys for weight in block.weights):
                    for weight in block.weights:
                        weight.offload()
        for weight in dropped:
            weight.forget_host()
        if had_pinned:
            self._device.empty_host_cache()
        return num_bytes

    def _in_ram(self) -> Iterator[tuple[Weight, Tensor]]:
        """Yield weights whose originals take RAM, and these; also while another thread moves them."""
        for weight in self._weights.values():
            host = weight.host
            if host is not None and weight.host_state.takes_ram:
                yield weight, host

    def _droppable(self) -> Iterator[tuple[Weight, Tensor]]:
        for weight, host in self._in_ram():
            is_needed = weight.applied and not self._device.has_own_memory
            if weight.key in self.names and not is_needed:
                yield weight, host
