"""Layers of a network made ready for packed weights, before they are filled from a quantised file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.quantised.packing import PackedTensor
from darkroom.engine.formats.quantised.quantised_file import QuantisedFile
from darkroom.engine.formats.weight_file import Item, Joined, Names, Part, WeightFile, composed

PACKINGS = "packings"  # `engine/memory/offload/packing.py`
PACKABLE = (nn.Linear, nn.Conv2d, nn.Conv3d)  # layers that read their weight nowhere but in `forward`


@dataclass(frozen=True, slots=True)
class PackedNames:
    """Weights left to fill: the file, names in it, and the types of what stays as it is stored.

    `codes` are the names in the network of codes and scales, `values` the weights that are unpacked already.
    """

    file: WeightFile
    names: Names
    codes: frozenset[str]
    types: Mapping[str, torch.dtype]
    values: Mapping[str, torch.Tensor]


def prepare(
    network: nn.Module, file: QuantisedFile, names: Names, dtype_of: Callable[[str], torch.dtype]
) -> PackedNames:
    """Give the layers of a network (meta device) their packings and buffers for scales.

    Quantised weights of other layers, and parts of quantised tensors, become values at once. Raises `BadModelFile` for
    values of another shape than the layer's weight.
    """
    wanted = {name for name, _ in network.named_parameters()}
    plain: dict[str, Item] = {}
    codes: set[str] = set()
    types: dict[str, torch.dtype] = {}
    values: dict[str, torch.Tensor] = {}
    for name, item in names.items():
        if name not in wanted:
            plain[name] = item
            continue
        path, _, attribute = name.rpartition(".")
        layer = network.get_submodule(path)
        sources = list(_sources(item))
        packed = next((file.packed[source] for source in sources if source in file.packed), None)
        if packed is None:
            plain[name] = item
        elif isinstance(item, str) and attribute == "weight" and _can_pack(layer, packed):
            own = _pack(file, layer, packed, name)
            plain |= own
            codes |= own.keys()
            types |= {key: _type_of(network, key) for key in own}
        else:
            values[name] = _values(file, name, item).to(dtype_of(name))
    return PackedNames(file.file, plain, frozenset(codes), types, values)


def has_packed_weights(network: nn.Module) -> bool:
    """Return True where any layer of a network has packed weights."""
    return any(PACKINGS in layer.__dict__ for layer in network.modules())


def _can_pack(layer: nn.Module, packed: PackedTensor) -> bool:
    if layer._buffers:
        return False
    return isinstance(layer, PACKABLE) or (isinstance(layer, nn.Embedding) and packed.packing.is_by_rows)


def _pack(file: QuantisedFile, layer: nn.Module, packed: PackedTensor, name: str) -> dict[str, str]:
    """Make a layer's weight packed; return the names of codes and scales in the file."""
    weight, path = layer.get_parameter("weight"), name.removesuffix("weight")
    if weight.numel() != packed.packing.shape.numel():
        found = f"{name!r} of shape {list(packed.packing.shape)}"
        raise BadModelFile(file.path.name, found, f"shape {list(weight.shape)}")
    place = file.file.tensors[packed.codes]
    stored = torch.empty(place.shape, dtype=packed.stored or place.dtype, device="meta")
    layer.weight = nn.Parameter(stored, requires_grad=False)
    for buffer, part in packed.scales.items():
        scale = file.file.tensors[part]
        layer.register_buffer(buffer, torch.empty(scale.shape, dtype=scale.dtype, device="meta"), persistent=False)
    setattr(layer, PACKINGS, {"weight": packed.packing_in(file.file).of_shape(weight.shape)})
    return {name: packed.codes} | {path + buffer: part for buffer, part in packed.scales.items()}


def _type_of(network: nn.Module, name: str) -> torch.dtype:
    path, _, attribute = name.rpartition(".")
    dtype: torch.dtype = getattr(network.get_submodule(path), attribute).dtype
    return dtype


def _sources(item: Item) -> Iterator[str]:
    """Yield the names of the tensors of the file that an item is made of."""
    if isinstance(item, Joined):
        for part in item.items:
            yield from _sources(part)
    else:
        yield item if isinstance(item, str) else item.name


def _values(file: QuantisedFile, name: str, item: Item) -> torch.Tensor:
    if isinstance(item, str):
        return file.tensor(item)
    if isinstance(item, Part):
        return file.tensor(item.name).chunk(item.count)[item.index]
    return next(values for _, values in composed(file, {name: item}))
