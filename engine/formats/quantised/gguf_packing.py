"""Packing of the quantised tensors of GGUF files: rows of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch

from darkroom.engine.formats.gguf_file import BLOCK_TYPES
from darkroom.engine.formats.quantised.gguf_blocks import UNPACK
from darkroom.engine.formats.quantised.packing import Packing, row_parts

NUMBER_BYTES = 4
BLOCK_BYTES = {name: num_bytes for name, _, num_bytes in BLOCK_TYPES.values()}


@dataclass(frozen=True)
class GgufPacking(Packing):
    """Blocks of `kind`, as uint8 [rows, bytes of a row]; numbers of torch's own types where that is empty.

    `arithmetic` is the type that values are computed in, None the one they are wanted in. ComfyUI-GGUF's default is
    float16, whatever the model computes in. With `heads` the two halves of the rows of each head are interleaved.
    """

    kind: str = "Q8_0"
    arithmetic: torch.dtype | None = torch.float16
    heads: int = 0

    @property
    def is_by_rows(self) -> bool:
        return not self.heads

    @property
    def working_bytes(self) -> int:
        return super().working_bytes + (self.shape.numel() * NUMBER_BYTES if self.heads else 0)

    def of_heads(self, heads: int) -> Self:
        """Return the packing of rows that lie so for that many heads."""
        return replace(self, heads=heads)

    def unpack(self, codes: torch.Tensor, scales: Mapping[str, torch.Tensor], values: torch.Tensor) -> None:
        is_direct = values.is_contiguous() and not self.heads
        flat = values if is_direct else torch.empty(values.shape, dtype=values.dtype, device=values.device)
        if self.kind:
            self._unpack_blocks(codes, flat.view(len(codes), -1))
        else:
            flat.copy_(codes.view(flat.shape))
        if self.heads:
            flat = flat.view(self.heads, -1, 2, *flat.shape[1:]).transpose(1, 2).reshape(flat.shape)
        if flat is not values:
            values.copy_(flat)

    def _unpack_blocks(self, codes: torch.Tensor, rows: torch.Tensor) -> None:
        unpack, block_bytes = UNPACK[self.kind], BLOCK_BYTES[self.kind]
        dtype = self.arithmetic or rows.dtype
        for part in row_parts(rows):
            blocks = codes[part].reshape(-1, block_bytes)
            rows[part] = unpack(blocks, dtype).view(-1, rows.shape[1])
