"""Where the originals of a model's weights are: in RAM, pinned or not, in the mapped file, or where they compute."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from engine.memory.device import Device, Tensor
from engine.memory.offload.blocks import Block, Weight
from engine.memory.staging import RawWeight, max_conversion_bytes
from engine.memory.transfer_streams import PinnedMemory


class WeightSource(Protocol):
    """Where weights can be had again: names as in the module, types, layouts and values as it was made with."""

    @property
    def names(self) -> Collection[str]: ...

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """On the CPU, in the file's order; views of the mapped file where that holds them as they are wanted."""
        ...

    def is_view(self, name: str) -> bool:
        """Whether `read` gives it without taking memory."""
        ...

    def check(self) -> None:
        """Raises `BadModelFile` when the file is not what it was: to touch a view of it would end the process."""
        ...

    def raw(self, names: Iterable[str]) -> Iterator[tuple[str, RawWeight]]:
        """As the file has them, in its order; not read yet."""
        ...


class HostWeights:
    """The originals of one model's weights. `can_leave`: they are apart from what the device holds."""

    def __init__(
        self,
        name: str,
        weights: Mapping[str, Weight],
        device: Device,
        *,
        can_leave: bool,
        source: WeightSource | None,
        pinned: PinnedMemory | None,
    ) -> None:
        self._name = name
        self._weights = weights
        self._device = device
        self._can_leave = can_leave
        self._source = source
        self._pinned = pinned

    @property
    def names(self) -> Collection[str]:
        """Of the weights that a file can give again."""
        return () if self._source is None else self._source.names

    @property
    def ram_bytes(self) -> int:
        """Views of a mapped file do not count, nor what is only to be read again."""
        return sum(home.nbytes for _, home in self._in_ram())

    @property
    def droppable_bytes(self) -> int:
        """What `drop` would give back."""
        return sum(home.nbytes for _, home in self._droppable())

    def conversion_bytes(self) -> int:
        """What it takes on the device to load weights of the file that have to be changed there."""
        if self._source is None:
            return 0
        raws = self._source.raw(key for key, weight in self._weights.items() if self.comes_from_file(weight))
        return max_conversion_bytes(max((raw.num_bytes for key, raw in raws if self._is_changed(key, raw)), default=0))

    def _is_changed(self, key: str, raw: RawWeight) -> bool:
        shown = self._weights[key].shown
        return raw.dtype != shown.dtype or not shown.is_contiguous()

    def comes_from_file(self, weight: Weight) -> bool:
        """Whether the file is where to bring a weight from: its home is a view of it, or there is none."""
        source = self._source
        return source is not None and weight.key in source.names and (weight.home is None or source.is_view(weight.key))

    def is_view(self, key: str) -> bool:
        """Whether a home in the mapped file takes no RAM."""
        return self._source is not None and self._source.is_view(key)

    def check(self) -> None:
        """Raises `BadModelFile` when the file has been changed where it lies."""
        if self._source is not None:
            self._source.check()

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, keys: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        wanted = list(keys)
        return self._unchanged(wanted).read(wanted) if wanted else iter(())

    def raw(self, keys: Iterable[str]) -> Iterator[tuple[str, RawWeight]]:
        wanted = list(keys)
        return self._unchanged(wanted).raw(wanted) if wanted else iter(())

    def _unchanged(self, wanted: Sequence[str]) -> WeightSource:
        """The file, as it was when it was opened. Raises `BadModelFile`."""
        assert self._source is not None, f"{self._name} {wanted[0]}: there is no file to read it from"
        self._source.check()
        return self._source

    def original(self, key: str) -> Tensor:
        """In RAM if the model can leave its device. Raises KeyError for a name the module does not have."""
        weight = self._weights[key]
        if weight.home is not None:
            if self.is_view(key) and not weight.is_pinned:
                self.check()
            return weight.home
        if key in self.names:
            return next(tensor for _, tensor in self.read([key]))
        copied = self.copy_in_ram(weight)
        assert copied is not None, f"{self._name} {key}: nobody has it"
        return copied

    def copy_in_ram(self, weight: Weight) -> Tensor | None:
        """Of what the device has of the original; None where only the file has it: leaving waits for no disk."""
        if weight.home is not None:
            return weight.home.to("cpu", copy=True)
        held = weight.held if weight.below is None else weight.below
        return None if held is None or weight.applied else held.to("cpu", copy=True)

    def bring_to_ram(self, blocks: Sequence[Block]) -> None:
        """For blocks that are away: also those that are views nobody has touched yet, pinned as far as that goes."""
        wanted: dict[str, Weight] = {}
        for block in blocks:
            for weight in block.weights:
                is_unread = not block.is_read and not weight.is_pinned and self.is_view(weight.key)
                if weight.home is None or is_unread:
                    wanted[weight.key] = weight
            block.is_read = True
        for key, tensor in self.read(wanted):
            weight = wanted.pop(key)
            weight.home = tensor
            weight.show(tensor)
        if self._pinned is not None:
            for weight in (weight for block in blocks for weight in block.weights):
                self._pin(weight, self._pinned)

    def _pin(self, weight: Weight, pinned: PinnedMemory) -> None:
        copy = None if weight.is_pinned or weight.home is None else pinned.pin(weight.home)
        if copy is not None:
            weight.home, weight.is_pinned = copy, True
            weight.show(copy)

    # --- leaving RAM -------------------------------------------------------------------------------------------------

    def drop(self, blocks: Sequence[Block]) -> int:
        """Forget the homes that the file can give again. Returns the bytes of RAM given back."""
        found = list(self._droppable())
        num_bytes = sum(home.nbytes for _, home in found)
        dropped = [weight for weight, _ in found]
        del found
        had_pinned = any(weight.is_pinned for weight in dropped)
        for weight in dropped:
            weight.home, weight.is_pinned = None, False
        if not self._device.has_own_memory:  # it computed with the homes themselves
            keys = {weight.key for weight in dropped}
            for block in blocks:
                if any(weight.key in keys for weight in block.weights):
                    block.is_there = False
                    for weight in block.weights:
                        weight.held = None
        for weight in dropped:
            if weight.held is None:
                weight.show(None)
        if had_pinned:
            self._device.empty_host_cache()
        return num_bytes

    def _in_ram(self) -> Iterator[tuple[Weight, Tensor]]:
        """Weights whose homes take RAM, and these; also while another thread moves them."""
        for weight in self._weights.values():
            home = weight.home
            is_view = not weight.is_pinned and self.is_view(weight.key)
            stays = self._device.has_own_memory and not self._can_leave and weight.held is not None
            if home is not None and home.device.type == "cpu" and not is_view and not stays:
                yield weight, home

    def _droppable(self) -> Iterator[tuple[Weight, Tensor]]:
        for weight, home in self._in_ram():
            is_needed = weight.applied and not self._device.has_own_memory
            if weight.key in self.names and not is_needed:
                yield weight, home
