"""Block formats of GGUF against other implementations.

`gguf_blocks.safetensors` has six blocks of each type with random bytes and small scales, and their values: float32 as
`gguf.quants.dequantize` of the Python package gguf 0.19.0 gives them, float16 and bfloat16 as ComfyUI-GGUF's
`dequantize` (torch) does.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from darkroom.engine.formats.gguf_file import BLOCK_TYPES
from darkroom.engine.formats.quantised.gguf_blocks import UNPACK

REFERENCE = load_file(Path(__file__).with_name("gguf_blocks.safetensors"))


def test_every_type_of_blocks_can_be_unpacked() -> None:
    assert {name for name, _, _ in BLOCK_TYPES.values()} == UNPACK.keys()


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16), ids=str)
@pytest.mark.parametrize("kind", UNPACK)
def test_values_have_the_bits_of_other_implementations(kind: str, dtype: torch.dtype) -> None:
    blocks = REFERENCE[f"{kind}.blocks"]
    values = UNPACK[kind](blocks, dtype)
    expected = REFERENCE[f"{kind}.{str(dtype).removeprefix('torch.')}"]
    assert values.dtype == dtype
    assert torch.equal(values.reshape(expected.shape), expected)


@pytest.mark.parametrize("kind", UNPACK)
def test_blocks_have_the_size_that_the_file_reader_expects(kind: str) -> None:
    (block_values, block_bytes) = next((values, size) for name, values, size in BLOCK_TYPES.values() if name == kind)
    assert REFERENCE[f"{kind}.blocks"].shape == (6, block_bytes)
    assert REFERENCE[f"{kind}.float32"].shape[-1] == block_values
