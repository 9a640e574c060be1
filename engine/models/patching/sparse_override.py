"""Sparse attention of any network, through ComfyUI's `optimized_attention_override`.

Tiles are of tokens that follow each other. `B` batch, `T` tokens, `H` heads, `W` channels of a head, `D` of all heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from darkroom.engine.diffusion.options import Options
from darkroom.engine.diffusion.sparse_schedule import SparseSchedule
from darkroom.engine.layers.block_sparse_attention import KeptTiles, block_sparse_attention, tiles_in_order

HEAD_DIM = 128  # of the networks that are trained for it; ComfyUI's kernels have no other

AttentionOverride = Callable[..., torch.Tensor]


class SparseOverride:
    """An `optimized_attention_override`: each tile attends to `share` of the tiles in full and to means of the others.

    Masked attention, attention over other tokens and heads of another size than `HEAD_DIM` stay as they are.
    `previous` is the override that another node has set, if any.
    """

    def __init__(self, schedule: SparseSchedule, share: float, previous: AttentionOverride | None = None) -> None:
        self._schedule, self._share, self._previous = schedule, share, previous
        self._tiles = KeptTiles()

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
        tiles = self._tiles.find(num_tokens, q.device, lambda: tiles_in_order(num_tokens))
        out = block_sparse_attention(q, k, v, tiles, self._share, more.get("scale"))
        return out.transpose(1, 2) if skip_output_reshape else out.flatten(2)
