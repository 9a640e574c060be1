"""`comfy.ldm.flux.math`: rotary positions (Su et al. 2021, arXiv 2104.09864) as rotations of pairs.

`B` batch, `H` heads, `T` tokens, `D` channels of a head; frequencies are [..., T, D / 2, 2, 2], a matrix for a pair.
"""

from __future__ import annotations

import torch

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.call_options import CallOptions


def rope(pos: torch.Tensor, dim: int, theta: int) -> torch.Tensor:
    """Return the rotations of positions [B, T] as [B, T, dim / 2, 2, 2], float32."""
    steps = torch.linspace(0, (dim - 2) / dim, steps=dim // 2, dtype=torch.float64, device=pos.device)
    angles = pos.to(torch.float32)[..., None] * (1.0 / theta**steps)
    cos, sin = angles.cos(), angles.sin()
    matrices = torch.stack([cos, -sin, sin, cos], dim=-1)
    return matrices.reshape(*angles.shape, 2, 2).to(torch.float32)


def apply_rope1(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    """Rotate the neighbouring pairs of channels of [B, H, T, D]."""
    pairs = x.to(freqs_cis.dtype).reshape(*x.shape[:-1], -1, 1, 2)
    if pairs.shape[2] != 1 and freqs_cis.shape[2] != 1:
        freqs_cis = freqs_cis[:, :, : pairs.shape[2]]
    rotated = freqs_cis[..., 0] * pairs[..., 0] + freqs_cis[..., 1] * pairs[..., 1]
    return rotated.reshape(x.shape).to(x.dtype)


def apply_rope(xq: torch.Tensor, xk: torch.Tensor, freqs_cis: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return apply_rope1(xq, freqs_cis), apply_rope1(xk, freqs_cis)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pe: torch.Tensor | None,
    mask: torch.Tensor | None = None,
    transformer_options: CallOptions | None = None,
) -> torch.Tensor:
    """Attend with rotated queries and keys: three of [B, H, T, D] -> [B, T, H * D]."""
    if pe is not None:
        q, k = apply_rope(q, k, pe)
    return optimized_attention(q, k, v, q.shape[1], mask, skip_reshape=True, transformer_options=transformer_options)
