"""Sparse attention as nodes set it: by noise levels, numbers of tokens and blocks.

Networks whose tokens have no layout attend so through ComfyUI's `optimized_attention_override`, by tiles of tokens that
follow each other. `B` batch, `T` tokens, `H` heads, `W` channels of a head, `D` of all heads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.options import Options
from darkroom.engine.layers.block_sparse_attention import Tiles, block_sparse_attention, tiles_in_order

HEAD_DIM = 128  # of the networks that are trained for it; ComfyUI's kernels have no other
LAST_BLOCK = 1 << 20
MAX_KEPT = 4  # orders of tokens: of the sides of guidance, say
NUMBERS = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")

AttentionOverride = Callable[..., torch.Tensor]


def block_ranges(text: str) -> tuple[range, ...]:
    """Return the blocks that a text names by numbers and ranges: `0, 1, 47-49`. Other characters separate them."""
    found = [
        [min(int(number[:9]), LAST_BLOCK) for number in match.groups() if number] for match in NUMBERS.finditer(text)
    ]
    return tuple(range(min(item), max(item) + 1) for item in found)


@dataclass(frozen=True, slots=True)
class SparseSchedule:
    """Noise levels from `highest` to `lowest`, `min_tokens`, and blocks that always attend to all tokens."""

    highest: float
    lowest: float
    min_tokens: int
    dense_blocks: Sequence[range] = ()

    def is_sparse(self, options: Options, num_tokens: int, block_index: int | None) -> bool:
        """Return True where attention of so many tokens is sparse. A block without a number is none of the dense."""
        sigmas: torch.Tensor | None = options.get("sigmas")
        if sigmas is not None and not self.lowest <= float(on_host(sigmas)[0]) <= self.highest:
            return False
        return num_tokens >= self.min_tokens and not any(block_index in blocks for blocks in self.dense_blocks)


class SparseOverride:
    """An `optimized_attention_override`: each tile attends to `share` of the tiles in full and to means of the others.

    Masked attention, attention over other tokens and heads of another size than `HEAD_DIM` stay as they are.
    `previous` is the override that another node has set, if any.
    """

    def __init__(self, schedule: SparseSchedule, share: float, previous: AttentionOverride | None = None) -> None:
        self._schedule, self._share, self._previous = schedule, share, previous
        self._tiles: dict[tuple[int, str], Tiles] = {}  # by number of tokens and device

    def __deepcopy__(self, memo: object) -> SparseOverride:
        """Return itself: clones of a MODEL share the orders of tokens."""
        return self

    def __call__(
        self,
        function: AttentionOverride,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        heads: int,
        mask: torch.Tensor | None = None,
        attn_precision: torch.dtype | None = None,
        skip_reshape: bool = False,
        skip_output_reshape: bool = False,
        **more: Any,
    ) -> torch.Tensor:
        """Return attention as `optimized_attention` does."""
        options: Options = more.get("transformer_options") or {}
        num_tokens, head_dim = (q.shape[2], q.shape[3]) if skip_reshape else (q.shape[1], q.shape[2] // heads)
        is_fit = mask is None and head_dim == HEAD_DIM and q.shape == k.shape == v.shape
        if not is_fit or not self._schedule.is_sparse(options, num_tokens, options.get("block_index")):
            called = function if self._previous is None else self._previous
            first = () if self._previous is None else (function,)
            return called(
                *first, q, k, v, heads, mask=mask, attn_precision=attn_precision, skip_reshape=skip_reshape,
                skip_output_reshape=skip_output_reshape, **more,
            )  # fmt: skip
        if skip_reshape:
            q, k, v = (item.transpose(1, 2) for item in (q, k, v))
        else:
            q, k, v = (item.view(*item.shape[:2], heads, head_dim) for item in (q, k, v))
        out = block_sparse_attention(q, k, v, self._of(num_tokens, q.device), self._share, more.get("scale"))
        return out.transpose(1, 2) if skip_output_reshape else out.flatten(2)

    def _of(self, num_tokens: int, device: torch.device) -> Tiles:
        key = (num_tokens, str(device))
        if key not in self._tiles:
            self._tiles = dict(list(self._tiles.items())[1 - MAX_KEPT :])
            self._tiles[key] = tiles_in_order(num_tokens).to(device)
        return self._tiles[key]
