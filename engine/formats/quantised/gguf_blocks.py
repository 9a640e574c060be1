"""Values of the block formats of ggml (github.com/ggml-org/ggml, ggml-quants.c): small integers and shared scales.

`N` blocks; a block of 32 values has one scale (and for `_1` an offset), the `K` formats have blocks of 256 values in
groups with a scale each, which are small integers themselves. Each function takes blocks as uint8 `[N, bytes]` and
returns values `[N, values of a block]`. The arithmetic is done in `dtype`: float32 gives the bits of ggml's own,
float16 those of ComfyUI-GGUF's default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import torch

Unpack = Callable[[torch.Tensor, torch.dtype], torch.Tensor]
GROUP = 256  # values of a block of a K format

# The steps of the four-bit types that are not evenly spaced.
UNEVEN_STEPS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _number(blocks: torch.Tensor, start: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the float16 number at a byte of each block [N, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).to(dtype)


def _shifted(packed: torch.Tensor, bits: int, run: int) -> torch.Tensor:
    """Return the fields of `bits` bits of bytes [N, b] as [N, values].

    All lowest fields of `run` bytes come first, then all next ones, then the next bytes'.
    """
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device).view(1, 1, -1, 1)
    fields: torch.Tensor = (packed.reshape(len(packed), -1, 1, run) >> shifts) & (2**bits - 1)
    return fields.reshape(len(packed), -1)


def _bits_in_order(packed: torch.Tensor) -> torch.Tensor:
    """Return the bits of bytes [N, b], lowest first, as [N, 8 b]."""
    return _shifted(packed, 1, 1)


def _signed(values: torch.Tensor, zero: int) -> torch.Tensor:
    """Return small unsigned integers as int8, `zero` as 0."""
    return values.to(torch.int8) - zero


def _q8_0(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _number(blocks, 0, dtype) * blocks[:, 2:].contiguous().view(torch.int8)


def _q4_0(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _number(blocks, 0, dtype) * _signed(_shifted(blocks[:, 2:], 4, 16), 8)


def _q4_1(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _number(blocks, 0, dtype) * _shifted(blocks[:, 4:], 4, 16) + _number(blocks, 2, dtype)


def _q5_0(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    values = _shifted(blocks[:, 6:], 4, 16) | _bits_in_order(blocks[:, 2:6]) << 4
    return _number(blocks, 0, dtype) * _signed(values, 16)


def _q5_1(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    values = _shifted(blocks[:, 8:], 4, 16) | _bits_in_order(blocks[:, 4:8]) << 4
    return _number(blocks, 0, dtype) * values + _number(blocks, 2, dtype)


def _scales_and_minima(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the eight scales and eight minima of six bits each [N, 8] of twelve bytes [N, 12]."""
    first, second, rest = packed.reshape(len(packed), 3, 4).unbind(1)
    scales = torch.cat([first & 63, rest & 15 | first >> 2 & 48], 1)
    minima = torch.cat([second & 63, rest >> 4 | second >> 2 & 48], 1)
    return scales, minima


def _with_minima(blocks: torch.Tensor, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Scale values [N, 256] by a block's head of two numbers and twelve bytes of scales and minima."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    scale = (_number(blocks, 0, dtype) * scales).unsqueeze(2)  # [N, 8, 1]
    minimum = (_number(blocks, 2, dtype) * minima).unsqueeze(2)
    return (scale * values.reshape(len(blocks), 8, -1) - minimum).reshape(len(blocks), GROUP)


def _q4_k(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _with_minima(blocks, _shifted(blocks[:, 16:], 4, 32), dtype)


def _q5_k(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    values = _shifted(blocks[:, 48:], 4, 32) | _shifted(blocks[:, 16:48], 1, 32) << 4
    return _with_minima(blocks, values, dtype)


def _q6_k(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    values = _signed(_shifted(blocks[:, :128], 4, 64) | _shifted(blocks[:, 128:192], 2, 32) << 4, 32)
    scales = blocks[:, 192:208].contiguous().view(torch.int8)
    scale = (_number(blocks, 208, dtype) * scales.to(dtype)).unsqueeze(2)  # [N, 16, 1]
    return (scale * values.reshape(len(blocks), 16, -1)).reshape(len(blocks), GROUP)


def _q3_k(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    is_lower = _shifted(blocks[:, :32], 1, 32) ^ 1  # where the mask's bit is not set the value is four less
    values = _shifted(blocks[:, 32:96], 2, 32).to(torch.int8) - (is_lower << 2).to(torch.int8)
    scales = _signed(_shifted(blocks[:, 96:104], 4, 8) | _shifted(blocks[:, 104:108], 2, 4) << 4, 32)
    scale = (_number(blocks, 108, dtype) * scales).unsqueeze(2)  # [N, 16, 1]
    return (scale * values.reshape(len(blocks), 16, -1)).reshape(len(blocks), GROUP)


def _q2_k(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    packed = blocks[:, :16]
    scale = (_number(blocks, 80, dtype) * (packed & 15)).unsqueeze(2)  # [N, 16, 1]
    minimum = (_number(blocks, 82, dtype) * (packed >> 4)).unsqueeze(2)
    values = _shifted(blocks[:, 16:80], 2, 32).reshape(len(blocks), 16, -1)
    return (scale * values - minimum).reshape(len(blocks), GROUP)


@cache
def _uneven_steps(device: torch.device) -> torch.Tensor:
    """Return the steps where they are read: a copy in each call of a layer would wait for the device."""
    return torch.tensor(UNEVEN_STEPS, dtype=torch.int8, device=device)


def _uneven(values: torch.Tensor) -> torch.Tensor:
    return _uneven_steps(values.device)[values.long()]


def _iq4_nl(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _number(blocks, 0, dtype) * _uneven(_shifted(blocks[:, 2:], 4, 16))


def _iq4_xs(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    low, high = _shifted(blocks[:, 4:8], 4, 1), _shifted(blocks[:, 2:4], 2, 1)
    scale = (_number(blocks, 0, dtype) * _signed(low | high << 4, 32).to(dtype)).unsqueeze(2)  # [N, 8, 1]
    values = _uneven(_shifted(blocks[:, 8:], 4, 16)).reshape(len(blocks), 8, -1)
    return (scale * values).reshape(len(blocks), GROUP)


UNPACK: Mapping[str, Unpack] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q2_K": _q2_k, "Q3_K": _q3_k,
    "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs,
}  # fmt: skip
