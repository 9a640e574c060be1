"""Keys and values of cross-attention computed once per prompt instead of in every step.

The tokens of a prompt do not change while it is sampled, so the projections of them by the transformer blocks of a UNet
do not either. The same product is computed once, so the bits are those of the plain path.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from engine.architectures.attention import optimized_attention
from engine.architectures.call_options import CallOptions
from engine.architectures.latent_unet_layers import BasicTransformerBlock, CrossAttention
from engine.tuning.quality import Quality
from engine.tuning.strategy import (
    SamplingUse,
    Strategy,
    Undo,
    custom_code,
    has_own_forward,
    offloaded,
    replace_forwards,
)

MAX_PROMPTS = 4  # of one network at a time: combinations of conditions that are evaluated together

Projected = tuple[torch.Tensor, torch.Tensor]


class PromptCache(Strategy):
    """Keys and values of cross-attention once per prompt."""

    name = "prompt_cache"
    quality = Quality.EXACT
    about = "cross-attention keys and values are computed once per prompt"
    conflicts = frozenset({"cuda_graph"})

    def unfit(self, use: SamplingUse) -> str | None:
        found = custom_code(use) or offloaded(use)
        if found is None and not _attentions(use):
            return "the network has no cross-attention of this kind"
        return found

    def apply(self, use: SamplingUse) -> Undo:
        return replace_forwards([(attention, _cached(attention)) for attention in _attentions(use)])


def _attentions(use: SamplingUse) -> list[CrossAttention]:
    return [
        block.attn2
        for block in use.network.modules()
        if type(block) is BasicTransformerBlock
        and type(block.attn2) is CrossAttention
        and not has_own_forward(block.attn2)
    ]


def _cached(attention: CrossAttention) -> Callable[..., torch.Tensor]:
    known: dict[Hashable, Projected] = {}
    plain = CrossAttention.forward

    def forward(
        x: torch.Tensor,
        context: torch.Tensor | None = None,
        value: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        transformer_options: CallOptions | None = None,
    ) -> torch.Tensor:
        key = None if context is None or value is not None else prompt_key(transformer_options or {}, context)
        if key is None:
            return plain(attention, x, context, value, mask, transformer_options)
        q = attention.to_q(x)
        found = known.get(key)
        if found is None:
            if len(known) >= MAX_PROMPTS:
                del known[next(iter(known))]
            found = known[key] = (attention.to_k(context), attention.to_v(context))
        k, v = found
        mixed = optimized_attention(q, k, v, attention.heads, mask, transformer_options=transformer_options)
        out: torch.Tensor = attention.to_out(mixed)
        return out

    return forward


def prompt_key(options: CallOptions, context: torch.Tensor) -> Hashable | None:
    """Return a key of the conditions that make up a context [B, T, D]; None where they are not known.

    A condition's `uuid` is drawn anew for each sampling run, and names one content on each side of the guidance.
    """
    uuids, sides = options.get("uuids"), options.get("cond_or_uncond")
    if not uuids or not sides or len(uuids) != len(sides) or None in uuids or context.shape[0] % len(uuids):
        return None
    return tuple(uuids), tuple(sides), tuple(context.shape), context.dtype
