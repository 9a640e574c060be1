"""Weights that can be read again from a mapped file at any time: a `WeightSource` of `engine/memory`."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from darkroom.engine.formats.mapped_file import MappedFile
from darkroom.engine.formats.unfilled import memory_for
from darkroom.engine.formats.weight_file import WeightFile, tensors_of

ALIGNMENT_BYTES = 64
SOURCE_ATTRIBUTE = "weight_source"  # of a network that `load.fill` has filled


class FileWeights:
    """The weights of one network in one file.

    `wanted` are tensors (of the meta device, too) of the shapes, types and layouts to read, `names` their names in the
    file. With `copies` there are no views, and weights read in one call share one block of memory. Copies are for
    a network that computes with them directly, since pages of a file may have to be read again at any time. They are
    rounded to `through` first, unless that is None. The weights named in `packed` are views all the same, and never
    rounded: they are unpacked whenever a layer computes.
    """

    def __init__(
        self,
        file: WeightFile,
        names: Mapping[str, str],
        wanted: Mapping[str, torch.Tensor],
        *,
        copies: bool,
        through: torch.dtype | None = None,
        packed: Collection[str] = (),
    ) -> None:
        self._file = file
        self._names = {name: names[name] for name in wanted}
        self._wanted = {name: memory_for(tensor, "meta") for name, tensor in wanted.items()}
        self._copies = copies
        self._through = through
        self._packed = frozenset(packed)

    @property
    def names(self) -> Collection[str]:
        return self._names.keys()

    def is_view(self, name: str) -> bool:
        """Return True if the file holds the weight in the wanted form, so that reading it is mapping it."""
        like = self._wanted.get(name)
        if like is None or (self._copies and (name not in self._packed or not isinstance(self._file, MappedFile))):
            return False
        place = self._file.tensors[self._names[name]]
        return place.dtype == like.dtype and like.is_contiguous() and place.start % place.dtype.itemsize == 0

    def check(self) -> None:
        """Raise `BadModelFile` when the file was written to since it was opened."""
        if isinstance(self._file, MappedFile):
            self._file.check()

    @property
    def is_arriving(self) -> bool:
        """True while the file is being downloaded."""
        return isinstance(self._file, MappedFile) and self._file.is_arriving

    def settle(self) -> None:
        """Wait until the content of the file has been checked (`MappedFile.settle`)."""
        if isinstance(self._file, MappedFile):
            self._file.settle()

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield weights in the file's order. Those that are not views are converted one tensor at a time."""
        order = sorted(names, key=lambda name: self._file.tensors[self._names[name]].start)
        block = Block(sum(padded(self._wanted[name].nbytes) for name in order)) if self._copies else None
        for name, tensor in self._tensors(order):
            like = self._wanted[name]
            tensor = tensor.view(like.shape)
            if not self.is_view(name):
                target = memory_for(like, "cpu") if block is None else block.take(like)
                is_rounded = self._through is not None and name not in self._packed
                tensor = target.copy_(tensor.to(self._through) if is_rounded else tensor)
            yield name, tensor
        if self._copies and isinstance(self._file, MappedFile):
            self._file.forget_pages()

    def _tensors(self, order: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield tensors of the file in this order. Those that are copied hold until the next one."""
        names = {name: self._names[name] for name in order}
        are_copied = self._copies and not self._packed.intersection(order)
        if are_copied and isinstance(self._file, MappedFile):
            return self._file.read_once(names.items())
        return tensors_of(self._file, names)

    def view(self, name: str) -> torch.Tensor:
        """Return a weight of which `is_view` is true, not read yet."""
        assert isinstance(self._file, MappedFile), "what is viewed is a mapped file"
        return self._file.tensor(self._names[name], is_needed_now=False).view(self._wanted[name].shape)

    def raw(self, names: Iterable[str]) -> Iterator[tuple[str, WeightInFile]]:
        """Yield the tensors in the form and order of the file, not read yet."""
        assert isinstance(self._file, MappedFile), "what is read later is a mapped file"
        for name in sorted(names, key=lambda name: self._file.tensors[self._names[name]].start):
            yield name, WeightInFile(self._file, self._names[name])


@dataclass(frozen=True, slots=True)
class WeightInFile:
    """One tensor of a mapped file (`engine/memory/staging.py::RawWeight`)."""

    file: MappedFile
    name: str

    @property
    def dtype(self) -> torch.dtype:
        return self.file.tensors[self.name].dtype

    @property
    def num_bytes(self) -> int:
        return self.file.tensors[self.name].num_bytes

    def read_into(self, memory: torch.Tensor, start: int) -> None:
        self.file.read_into(memory, self.name, start)


class JoinedWeights:
    """The weights of several parts of a network, each under its prefix."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = {prefix + name: (part, name) for prefix, part in parts.items() for name in part.names}
        self._sources = tuple(parts.values())

    @property
    def names(self) -> Collection[str]:
        return self._parts.keys()

    def is_view(self, name: str) -> bool:
        if name not in self._parts:
            return False
        part, inner = self._parts[name]
        is_view: bool = part.is_view(inner)
        return is_view

    def check(self) -> None:
        """Raise `BadModelFile` when a file was written to since it was opened."""
        for source in self._sources:
            source.check()

    @property
    def is_arriving(self) -> bool:
        """True while one of the files is being downloaded."""
        return any(source.is_arriving for source in self._sources)

    def settle(self) -> None:
        """Wait until the contents of the files have been checked (`MappedFile.settle`)."""
        for source in self._sources:
            source.settle()

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for part, by_inner in self._groups(names):
            for inner, tensor in part.read(by_inner):
                yield by_inner[inner], tensor

    def raw(self, names: Iterable[str]) -> Iterator[tuple[str, WeightInFile]]:
        for part, by_inner in self._groups(names):
            for inner, tensor in part.raw(by_inner):
                yield by_inner[inner], tensor

    def _groups(self, names: Iterable[str]) -> Iterable[tuple[Any, dict[str, str]]]:
        groups: dict[int, tuple[Any, dict[str, str]]] = {}
        for name in names:
            part, inner = self._parts[name]
            groups.setdefault(id(part), (part, {}))[1][inner] = name
        return groups.values()


def source_of(network: nn.Module) -> JoinedWeights | None:
    """Return the source of a network's weights, for those of its parts that were read from mapped files."""
    parts = {
        f"{path}." if path else "": getattr(module, SOURCE_ATTRIBUTE)
        for path, module in network.named_modules()
        if hasattr(module, SOURCE_ATTRIBUTE)
    }
    return JoinedWeights(parts) if parts else None


class Block:
    """One block of memory shared by many tensors; huge pages, if the system has them, speed up filling it."""

    def __init__(self, num_bytes: int) -> None:
        self._memory = mmap.mmap(-1, max(num_bytes, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._used = 0

    def take(self, like: torch.Tensor) -> torch.Tensor:
        """Return the next tensor, uninitialised (zero), of that shape, type and layout."""
        flat = torch.frombuffer(self._memory, dtype=torch.uint8, count=like.nbytes, offset=self._used)
        self._used += padded(like.nbytes)
        return flat.view(like.dtype).as_strided(like.shape, like.stride())


def padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
