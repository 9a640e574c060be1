"""Attention of the networks: torch's scaled dot product, and the way custom nodes replace it.

`B` batch, `T` tokens, `D` width of all heads together.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.layers.call_options import CallOptions

KERNEL_OPTION = "attention_kernel"
"""Transformer option with a kernel to use where there is no mask and no node's own attention."""

AttentionKernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Queries, keys and values [B, H, T, d] -> [B, H, T, d]."""

MOST_AT_ONCE = 1 << 15  # of a batch; CUDA starts at most twice as many blocks along that side


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    heads: int,
    mask: torch.Tensor | None = None,
    *,
    is_causal: bool = False,
    slices: int = 1,
    kernel: AttentionKernel | None = None,
) -> torch.Tensor:
    """Compute attention of `q` [B, T, D] over `k` and `v` [B, S, D] -> [B, T, D]. `mask` is added to the scores.

    With `slices` it is computed for that many groups of queries one after the other, which takes less memory. `kernel`
    computes what is neither masked nor sliced.
    """
    batch, _, width = q.shape
    q, k, v = (item.view(batch, -1, heads, width // heads).transpose(1, 2) for item in (q, k, v))
    if mask is not None and mask.ndim == 3:
        mask = mask.unsqueeze(1)
    if slices > 1 and not is_causal:
        out = _sliced(q, k, v, mask, slices)
    elif kernel is not None and mask is None and not is_causal and batch <= MOST_AT_ONCE:
        out = kernel(q, k, v)
    else:
        out = _attend(q, k, v, mask, is_causal=is_causal)
    return out.transpose(1, 2).reshape(batch, -1, width)


def _sliced(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, slices: int) -> torch.Tensor:
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
    step = -(-q.shape[2] // slices)
    for start in range(0, q.shape[2], step):
        rows = slice(start, start + step)
        part = mask if mask is None or mask.shape[-2] == 1 else mask[..., rows, :]
        out[:, :, rows] = _attend(q[:, :, rows], k, v, part)
    return out


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, *, is_causal: bool = False
) -> torch.Tensor:
    """Call torch's attention for as much of the batch at a time as the GPU's kernels accept.

    Nodes that attend along time make every cell of an image an item of the batch.
    """
    if q.shape[0] <= MOST_AT_ONCE:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
    for start in range(0, q.shape[0], MOST_AT_ONCE):
        items = slice(start, start + MOST_AT_ONCE)
        part = mask if mask is None or mask.ndim < 4 or mask.shape[0] == 1 else mask[items]
        out[items] = scaled_dot_product_attention(q[items], k[items], v[items], attn_mask=part, is_causal=is_causal)
    return out


def optimized_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    heads: int,
    mask: torch.Tensor | None = None,
    attn_precision: torch.dtype | None = None,
    skip_reshape: bool = False,
    skip_output_reshape: bool = False,
    transformer_options: CallOptions | None = None,
) -> torch.Tensor:
    """Compute `attention` with the parameters that custom nodes use.

    With `skip_reshape` the inputs are `[B, heads, T, D / heads]`; with `skip_output_reshape` the result is. A node's
    `optimized_attention_override` in `transformer_options` is called with this function and its arguments instead.
    """
    options = transformer_options or {}
    override: Callable[..., torch.Tensor] | None = options.get("optimized_attention_override")
    if override is not None:
        inner = {key: value for key, value in options.items() if key != "optimized_attention_override"}
        return override(
            optimized_attention, q, k, v, heads, mask=mask, attn_precision=attn_precision, skip_reshape=skip_reshape,
            skip_output_reshape=skip_output_reshape, transformer_options=inner,
        )  # fmt: skip
    if not skip_reshape and not skip_output_reshape:
        slices, kernel = options.get("attention_slices", 1), options.get(KERNEL_OPTION)
        return attention(q, k, v, heads, mask, slices=slices, kernel=kernel)
    if not skip_reshape:
        q, k, v = (item.view(item.shape[0], -1, heads, item.shape[-1] // heads).transpose(1, 2) for item in (q, k, v))
    if mask is not None and mask.ndim == 3:
        mask = mask.unsqueeze(1)
    out = _attend(q, k, v, mask)
    return out if skip_output_reshape else out.transpose(1, 2).flatten(2)
