"""Weights from a file into a network that was built without memory (torch's meta device).

Each weight is copied from the mapped file into place in one block of memory of the wanted type, or stays a view of the
file: nothing is held twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from enum import Enum

import torch
from torch import nn

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.mapped_file import MappedFile
from darkroom.engine.formats.quantised.packed_layers import prepare
from darkroom.engine.formats.quantised.quantised_file import QuantisedFile
from darkroom.engine.formats.weight_file import Names, WeightFile, composed, shape_of, with_parts
from darkroom.engine.formats.weight_source import SOURCE_ATTRIBUTE, FileWeights


class Destination(Enum):
    """Device on which a network computes, which decides when its weights are read and in what layout."""

    RAM = "ram"  # the processor, with memory of their own, filled at once
    DEVICE = "device"  # they are read when they are brought there
    SIMULATED_DEVICE = "simulated device"  # likewise, and lie as for the processor, which computes: to the same bits

    @property
    def is_processor(self) -> bool:
        return self is not Destination.DEVICE


def fill(
    network: nn.Module,
    file: WeightFile,
    names: Names,
    dtype: torch.dtype | Callable[[str], torch.dtype],
    *,
    to: Destination = Destination.RAM,
    through: torch.dtype | None = None,
    keep: Collection[torch.dtype] = (),
) -> None:
    """Give every weight of a network that has none (meta device) its values from the file, as `dtype`.

    `dtype` may be a function of the weight's name. Where weights are copied they are rounded to `through` first, unless
    that is None.

    Quantised weights of layers stay packed, as views of a mapped file on every device; so do weights that the file has
    in one of the types `keep`, which are cast as they compute.

    For a device a mapped file is not read: its weights become views of it where they lie there as they are wanted, and
    the others keep none; the network's `weight_source` gives them. Raises `BadModelFile` for a weight that is missing
    or of another shape; other tensors of the file are left alone.
    """
    dtype_of: Callable[[str], torch.dtype] = dtype if callable(dtype) else lambda name: dtype
    packed: frozenset[str] = frozenset()
    if isinstance(file, QuantisedFile):
        prepared = prepare(network, file, names, dtype_of)
        file, names, packed = prepared.file, prepared.names, prepared.codes
        dtype_of = _types(prepared.types, dtype_of)
        for name, values in prepared.values.items():
            set_weight(network, name, values.view(network.get_parameter(name).shape))
    for name, weight in composed(file, names):
        expected = tuple(network.get_parameter(name).shape)
        if tuple(weight.shape) != expected:
            raise BadModelFile(file.path.name, f"{name!r} of shape {list(weight.shape)}", f"shape {list(expected)}")
        set_weight(network, name, (weight if through is None else weight.to(through)).to(dtype_of(name)))
    file, names = with_parts(file, names)
    wanted: dict[str, torch.Tensor] = {name: weight for name, weight in network.named_parameters() if weight.is_meta}
    wanted |= {name: buffer for name, buffer in network.named_buffers() if name in packed}
    _check(file, wanted, names)
    kept = {name: file.tensors[names[name]].dtype for name in wanted if name not in packed}
    kept = {name: dtype for name, dtype in kept.items() if dtype in keep}
    packed, dtype_of = packed | kept.keys(), _types(kept, dtype_of)
    layouts = {name: _layout(weight, dtype_of(name), to) for name, weight in wanted.items()}
    is_mapped = isinstance(file, MappedFile)
    later = is_mapped and to is not Destination.RAM
    source = FileWeights(file, names, layouts, copies=not later, through=None if later else through, packed=packed)
    views = {name: source.view(name) for name in wanted if source.is_view(name)}
    found = views if later else views | dict(source.read(wanted.keys() - views.keys()))
    for name in wanted:
        set_weight(network, name, found.get(name, layouts[name]))
    if is_mapped:
        setattr(network, SOURCE_ATTRIBUTE, source)
    network.eval()


def set_weight(network: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Make a tensor the weight (or buffer) of that name."""
    path, _, attribute = name.rpartition(".")
    owner = network.get_submodule(path)
    is_buffer = attribute in owner._buffers
    setattr(owner, attribute, tensor if is_buffer else nn.Parameter(tensor, requires_grad=False))


def _types(own: Mapping[str, torch.dtype], others: Callable[[str], torch.dtype]) -> Callable[[str], torch.dtype]:
    return lambda name: own[name] if name in own else others(name)


def _layout(weight: torch.Tensor, dtype: torch.dtype, to: Destination) -> torch.Tensor:
    """Return a weight of the meta device in the type and layout it is kept in."""
    shaped = torch.empty(weight.shape, dtype=dtype, device="meta")
    is_last = wants_channels_last(dtype, on_processor=to.is_processor) and weight.ndim == 4
    return shaped.contiguous(memory_format=torch.channels_last) if is_last else shaped


def check_tensors(network: nn.Module, file: WeightFile, names: Names) -> None:
    """Raise `BadModelFile` for the first weight of an empty network that the file lacks or has in another shape.

    Only names and shapes are read. Weights that have values already are not looked at. Quantised values may be stored
    in another shape of as many.
    """
    packed = set(file.packed) if isinstance(file, QuantisedFile) else set()
    wanted = {name: weight for name, weight in network.named_parameters() if weight.is_meta}
    _check_names(file, wanted, names)
    shapes = file.shapes  # made anew at each access
    for name, weight in wanted.items():
        item, expected = names[name], tuple(weight.shape)
        shape = shape_of(item, shapes)
        if isinstance(item, str) and item in packed and math.prod(shape) == math.prod(expected):
            continue
        if shape != expected and _squeezed(shape) != _squeezed(expected):
            tensor = item if isinstance(item, str) else name
            raise BadModelFile(file.path.name, f"{tensor!r} of shape {list(shape)}", f"shape {list(expected)}")


def _check_names(file: WeightFile, wanted: Mapping[str, torch.Tensor], names: Names) -> None:
    missing = [name for name in wanted if name not in names]
    if missing:
        found = f"{len(wanted) - len(missing)} of {len(wanted)} weights; {missing[0]!r} is missing"
        raise BadModelFile(file.path.name, found, "all of them")


def _check(file: WeightFile, wanted: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> None:
    _check_names(file, wanted, names)
    for name, weight in wanted.items():
        shape = file.tensors[names[name]].shape
        if shape != tuple(weight.shape) and _squeezed(shape) != _squeezed(tuple(weight.shape)):
            raise BadModelFile(file.path.name, f"{name!r} of shape {list(shape)}", f"shape {list(weight.shape)}")


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Remove trailing ones: a linear layer may be stored as a 1x1 convolution, and the other way round."""
    while len(shape) > 2 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def wants_channels_last(dtype: torch.dtype, *, on_processor: bool) -> bool:
    """Return True where convolutions of this type are faster with channels innermost.

    Those of 16 bits are, on CPU and GPU alike. On a processor float32 ones are, too, because cells are gathered without
    being torn apart (see `engine/layers/basic.py`): a UNet of 860 million weights at 256x256 on two cores with
    AVX-512 takes 1.02 s instead of 1.2 s.
    """
    return dtype in (torch.bfloat16, torch.float16) or (on_processor and dtype == torch.float32)
