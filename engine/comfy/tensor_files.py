"""Tensors that a pack read from a file itself, in the form of an open file of weights.

ComfyUI-GGUF (github.com/city96/ComfyUI-GGUF) reads quantised tensors as a subclass of `torch.Tensor` with two further
attributes: `tensor_type`, the format's number of the type, and `tensor_shape`, the shape of the values. They stay
packed here as those of the engine's own reader do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.gguf_file import BLOCK_TYPES, KNOWN, PLAIN_TYPES
from darkroom.engine.formats.quantised.gguf_packing import GgufPacking
from darkroom.engine.formats.quantised.packing import PackedTensor
from darkroom.engine.formats.quantised.quantised_file import QuantisedFile
from darkroom.engine.formats.weight_file import ChangedTensors, WeightFile


def as_file(
    name: str,
    tensors: Mapping[str, Any],
    arithmetic: torch.dtype | None = torch.float16,
    metadata: Mapping[str, str] | None = None,
) -> WeightFile:
    """Return tensors by name as a file of the name `name`; what is no tensor is left out.

    `arithmetic` is the type that quantised values are computed in, None the one they are wanted in. Raises
    `BadModelFile` for a type of blocks that is not known.
    """
    found: dict[str, torch.Tensor] = {}
    packed: dict[str, PackedTensor] = {}
    for key, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        kind = getattr(tensor, "tensor_type", None)
        data = tensor.data.as_subclass(torch.Tensor)
        if kind is None:
            found[key] = data
            continue
        shape = torch.Size(int(size) for size in tensor.tensor_shape)  # type: ignore[attr-defined]
        if int(kind) in PLAIN_TYPES:
            found[key] = data.view(PLAIN_TYPES[int(kind)]).view(shape)
        elif int(kind) in BLOCK_TYPES:
            found[key] = data
            packed[key] = PackedTensor(GgufPacking(shape, kind=BLOCK_TYPES[int(kind)][0], arithmetic=arithmetic), key)
        else:
            raise BadModelFile(name, f"{key!r} of type {getattr(kind, 'name', kind)}", f"one of the types {KNOWN}")
    file = ChangedTensors(Path(name), found, metadata or {})
    return QuantisedFile(file, packed, label="tensors of a GGUF file") if packed else file
