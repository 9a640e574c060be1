"""Queries, keys and values of self-attention by one matrix product instead of three.

The joined weight is made of the weights with their patches, and kept while these are the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear, linear
from darkroom.engine.layers.call_options import CallOptions
from darkroom.engine.layers.unet_layers import BasicTransformerBlock, CrossAttention
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import (
    SamplingUse,
    Strategy,
    Undo,
    computes_as_stored,
    custom_code,
    has_own_forward,
    offloaded,
    replace_forwards,
)

FREE_SHARE = 0.5  # of the free memory that the joined weights may take


class FusedQkv(Strategy):
    """One matrix product for queries, keys and values of self-attention."""

    name = "fused_qkv"
    quality = Quality.SAME
    makes_tensors = True
    about = "queries, keys and values of self-attention come from one matrix product"
    is_size_sensitive = True
    conflicts = frozenset({"compiled_blocks"})

    def unfit(self, use: SamplingUse) -> str | None:
        found = custom_code(use) or offloaded(use)
        if found is not None:
            return found
        attentions = _attentions(use)
        if not attentions:
            return "the network has no self-attention of this kind"
        num_bytes = sum(3 * attention.to_q.weight.nbytes for attention in attentions)
        if num_bytes > use.patcher.free_bytes() * FREE_SHARE:
            return "too little memory for the joined weights"
        return None

    def apply(self, use: SamplingUse) -> Undo:
        attentions = _attentions(use)
        sources = [layer.weight for attention in attentions for layer in _projections(attention)]
        made = use.evaluation.made.of(self.name, sources, lambda: [_joined(attention) for attention in attentions])
        return replace_forwards(
            [
                (attention, _fused(attention, joined))
                for attention, joined in zip(attentions, made, strict=True)
                if joined is not None
            ]
        )


def _attentions(use: SamplingUse) -> list[CrossAttention]:
    return [
        block.attn1
        for block in use.network.modules()
        if isinstance(block, BasicTransformerBlock) and not block.disable_self_attn and _can_join(use, block.attn1)
    ]


def _can_join(use: SamplingUse, attention: CrossAttention) -> bool:
    layers = _projections(attention)
    return (
        type(attention) is CrossAttention
        and not has_own_forward(attention)
        and all(type(layer) is Linear and not has_own_forward(layer) and layer.bias is None for layer in layers)
        and len({layer.weight.shape for layer in layers}) == 1
        and all(computes_as_stored(use, layer) for layer in layers)
    )


def _projections(attention: CrossAttention) -> tuple[Linear, Linear, Linear]:
    return attention.to_q, attention.to_k, attention.to_v


def _joined(attention: CrossAttention) -> torch.Tensor:
    return torch.cat([layer.weight for layer in _projections(attention)])  # [3D, D]


def _fused(attention: CrossAttention, joined: torch.Tensor) -> Callable[..., torch.Tensor]:
    plain = CrossAttention.forward

    def forward(
        x: torch.Tensor,
        context: torch.Tensor | None = None,
        value: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        transformer_options: CallOptions | None = None,
    ) -> torch.Tensor:
        if context is not None or value is not None or x.dtype != joined.dtype:
            return plain(attention, x, context, value, mask, transformer_options)
        q, k, v = (part.contiguous() for part in linear(x, joined).chunk(3, dim=-1))
        mixed = optimized_attention(q, k, v, attention.heads, mask, transformer_options=transformer_options)
        out: torch.Tensor = attention.to_out(mixed)
        return out

    return forward
