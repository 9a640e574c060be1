"""A file of named tensors, whatever its format, and names for parts of its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.arriving_file import find_part
from darkroom.engine.formats.gguf_file import GgufFile, is_gguf
from darkroom.engine.formats.mapped_file import MappedFile, TensorPlace
from darkroom.engine.formats.pickle_file import PickleFile, is_zip
from darkroom.engine.formats.safetensors_file import SafetensorsFile

SAFETENSORS_ENDINGS = (".safetensors", ".sft")


@dataclass(frozen=True, slots=True)
class Part:
    """One of `count` equal parts of a tensor, along its first dimension."""

    name: str
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Transposed:
    """A matrix that the file holds transposed."""

    name: str


@dataclass(frozen=True, slots=True)
class Joined:
    """Several tensors, or parts of tensors, behind each other along their first dimension: one weight of a network."""

    items: tuple[str | Part, ...]


Item = str | Part | Transposed | Joined
Names = Mapping[str, Item]  # name in a network -> what of the file it is


class WeightFile(Protocol):
    """A file of weights. `tensors` has the place of each (`start` gives the file's order).

    `tensor` may return a view of the mapped file.
    """

    path: Path
    metadata: dict[str, str]

    @property
    def tensors(self) -> Mapping[str, TensorPlace]: ...

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]: ...

    def tensor(self, name: str) -> torch.Tensor: ...


class ChangedTensors:
    """A file with some of its tensors replaced, or all under other names."""

    def __init__(self, path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
        self.path = path
        self.metadata = dict(metadata)
        self._tensors = dict(tensors)
        self.tensors = {
            name: TensorPlace(tensor.dtype, tuple(tensor.shape), order, tensor.nbytes)
            for order, (name, tensor) in enumerate(self._tensors.items())
        }

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: place.shape for name, place in self.tensors.items()}

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def with_parts(file: WeightFile, names: Names) -> tuple[WeightFile, dict[str, str]]:
    """Return a file in which every part has a name, and the names of the network's weights there.

    Parts of a mapped file are not copied, and are read like its other tensors. What is composed is left out. Raises
    `BadModelFile` for a tensor that has no equal parts.
    """
    parts = {f"{item.name}[{item.index}/{item.count}]": item for item in names.values() if isinstance(item, Part)}
    plain = {
        name: f"{item.name}[{item.index}/{item.count}]" if isinstance(item, Part) else item
        for name, item in names.items()
        if not isinstance(item, Transposed | Joined)
    }
    if not parts:
        return file, plain
    for part in parts.values():
        shape = file.tensors[part.name].shape
        if not shape or shape[0] % part.count:
            raise BadModelFile(
                file.path.name, f"{part.name!r} of shape {list(shape)}", f"{part.count} equal parts of it"
            )
    if isinstance(file, MappedFile):
        return file.with_tensors({key: _place_of(file.tensors[part.name], part) for key, part in parts.items()}), plain
    whole = {key: file.tensor(key) for key in plain.values() if key not in parts}
    cut = {key: file.tensor(part.name).chunk(part.count)[part.index] for key, part in parts.items()}
    return ChangedTensors(file.path, whole | cut, file.metadata), plain


def composed(file: WeightFile, names: Names) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the network's weights that are composed of what the file holds, each with memory of its own."""
    for name, item in names.items():
        if isinstance(item, Transposed):
            yield name, file.tensor(item.name).T.contiguous()
        elif isinstance(item, Joined):
            yield name, _joined(file, item)


def shape_of(item: Item, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of a weight by the shapes of a file's tensors."""
    if isinstance(item, Part):
        rows, *others = shapes[item.name]
        return (rows // item.count, *others)
    if isinstance(item, Transposed):
        return shapes[item.name][::-1]
    if isinstance(item, Joined):
        parts = [shape_of(part, shapes) for part in item.items]
        return (sum(part[0] for part in parts), *parts[0][1:])
    return shapes[item]


def _joined(file: WeightFile, item: Joined) -> torch.Tensor:
    """Return the parts of tensors as one weight. Each tensor is read once, as files of packed weights unpack it."""
    wholes = {name: file.tensor(name) for name in dict.fromkeys(_source(part) for part in item.items)}
    return torch.cat([_part_of(wholes[_source(part)], part) for part in item.items])


def _source(item: str | Part) -> str:
    return item if isinstance(item, str) else item.name


def _part_of(whole: torch.Tensor, item: str | Part) -> torch.Tensor:
    if isinstance(item, str):
        return whole
    rows = whole.shape[0] // item.count
    return whole.narrow(0, item.index * rows, rows)


def _place_of(whole: TensorPlace, part: Part) -> TensorPlace:
    rows, *others = whole.shape
    num_bytes = whole.num_bytes // part.count
    return TensorPlace(whole.dtype, (rows // part.count, *others), whole.start + part.index * num_bytes, num_bytes)


def open_weights(path: Path) -> WeightFile:
    """Open a file of weights. Raises `BadModelFile` when the file is not whole, or holds anything but weights."""
    if path.suffix.lower() in SAFETENSORS_ENDINGS and find_part(path) is not None:
        return SafetensorsFile(path)
    if is_gguf(path):
        return GgufFile(path)
    return PickleFile(path) if is_pickled(path) else SafetensorsFile(path)


def all_tensors(file: WeightFile) -> dict[str, torch.Tensor]:
    """Return all tensors by name; those of a mapped file take memory only as they are read."""
    return dict(tensors_of(file, {name: name for name in file.tensors}))


def tensors_of(file: WeightFile, names: Mapping[str, str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (key, tensor of the file by its name there), in that order, with readahead from disk."""
    if not isinstance(file, MappedFile):
        for key, name in names.items():
            yield key, file.tensor(name)
        return
    with file.reading_ahead(names.values()) as ahead:
        for key, name in names.items():
            place = file.tensors[name]
            ahead.wait_for(place.start + place.num_bytes)
            yield key, file.tensor(name)


def is_pickled(path: Path) -> bool:
    """Return True if the content is a pickle; never for a file with the extension of safetensors."""
    if path.suffix.lower() in SAFETENSORS_ENDINGS:
        return False
    with path.open("rb") as file:
        return file.read(2) in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def is_indexed(path: Path) -> bool:
    """Return True if names and shapes can be read without the weights, as in all files but older pickles."""
    return not is_pickled(path) or is_zip(path)
