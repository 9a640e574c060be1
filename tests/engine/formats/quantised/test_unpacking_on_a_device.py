"""Unpacking on a device reads nothing of the host's: it is a part of what may be recorded as a CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from darkroom.engine.formats.gguf_file import BLOCK_TYPES
from darkroom.engine.formats.quantised.bitsandbytes import FourBitPacking
from darkroom.engine.formats.quantised.comfy_quant import IntegerPacking, Mxfp8Packing, Nvfp4Packing
from darkroom.engine.formats.quantised.gguf_blocks import UNPACK
from darkroom.engine.formats.quantised.gguf_packing import BLOCK_BYTES, GgufPacking
from darkroom.engine.formats.quantised.packing import Packing

ROWS, COLUMNS = 128, 256
SHAPE = torch.Size((ROWS, COLUMNS))
BLOCK_VALUES = {name: num_values for name, num_values, _ in BLOCK_TYPES.values()}


class DeviceAlone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises where an operation reads a tensor of the host, but for single numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for item in tree_leaves((args, kwargs or {})):
            if isinstance(item, torch.Tensor) and item.device.type == "cpu" and item.ndim:
                raise AssertionError(f"{func} reads a tensor of the host")
        return func(*args, **(kwargs or {}))


def on_meta(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def gguf(kind: str) -> tuple[Packing, torch.Tensor, Mapping[str, torch.Tensor]]:
    num_bytes = COLUMNS // BLOCK_VALUES[kind] * BLOCK_BYTES[kind]
    return GgufPacking(SHAPE, kind=kind), on_meta((ROWS, num_bytes), torch.uint8), {}


FORMS: Mapping[str, tuple[Packing, torch.Tensor, Mapping[str, torch.Tensor]]] = {
    "nvfp4": (
        Nvfp4Packing(SHAPE), on_meta((ROWS, COLUMNS // 2), torch.uint8),
        {"weight_scale": on_meta((ROWS, COLUMNS // 16), torch.float8_e4m3fn),
         "weight_scale_2": on_meta((), torch.float32)},
    ),
    "mxfp8": (
        Mxfp8Packing(SHAPE), on_meta((ROWS, COLUMNS), torch.float8_e4m3fn),
        {"weight_scale": on_meta((ROWS, COLUMNS // 32), torch.uint8)},
    ),
    "int8_rotated": (
        IntegerPacking(SHAPE, rotation=64), on_meta((ROWS, COLUMNS), torch.int8),
        {"weight_scale": on_meta((ROWS, 1), torch.float32)},
    ),
    "nf4": (
        FourBitPacking(SHAPE, nested_block=256), on_meta((ROWS * COLUMNS // 2, 1), torch.uint8),
        {"weight_quant_map": on_meta((16,), torch.float32),
         "weight_absmax": on_meta((ROWS * COLUMNS // 64,), torch.uint8),
         "weight_nested_quant_map": on_meta((256,), torch.float32),
         "weight_nested_absmax": on_meta((ROWS * COLUMNS // 64 // 256,), torch.float32)},
    ),
    **{kind: gguf(kind) for kind in UNPACK},
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_unpacking_reads_nothing_of_the_host(name: str) -> None:
    packing, codes, scales = FORMS[name]
    values = on_meta(tuple(SHAPE), torch.bfloat16)
    packing.unpack(codes, scales, values)  # tables that it needs are there from now on
    with DeviceAlone():  # type: ignore[no-untyped-call]
        packing.unpack(codes, scales, values)
