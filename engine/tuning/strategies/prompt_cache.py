"""Keys and values of cross-attention computed once per prompt instead of in every step.

The tokens of a prompt do not change while it is sampled, so the projections of them by the transformer blocks of a UNet
do not either. The same product is computed once, so the bits are those of the plain path. In a batch of several runs
each run's are computed from its own rows and joined in each step, so that they do not depend on its company.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import torch

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.call_options import CallOptions
from darkroom.engine.layers.unet_layers import BasicTransformerBlock, CrossAttention
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import (
    PROMPTS_OF_ROWS,
    PromptRows,
    SamplingUse,
    Strategy,
    Undo,
    custom_code,
    has_own_forward,
    offloaded,
    replace_forwards,
)

MAX_PROMPTS = 4  # of one network at a time: combinations of conditions that are evaluated together
EVALUATIONS_A_RUN = 2  # of a run in a batch, each of other conditions

Projected = tuple[torch.Tensor, torch.Tensor]


class PromptCache(Strategy):
    """Keys and values of cross-attention once per prompt."""

    name = "prompt_cache"
    quality = Quality.EXACT
    about = "cross-attention keys and values are computed once per prompt"
    conflicts = frozenset({"cuda_graph", "step_graph"})

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
    plain = CrossAttention.forward
    known: OrderedDict[Hashable, Projected] = OrderedDict()  # the least recently used first

    def projected(key: Hashable | None, tokens: torch.Tensor, most: int) -> Projected:
        if key is None:
            return attention.to_k(tokens), attention.to_v(tokens)
        found = known.get(key)
        if found is None:
            while len(known) >= most:
                known.popitem(last=False)
            found = known[key] = (attention.to_k(tokens), attention.to_v(tokens))
        known.move_to_end(key)
        return found

    def forward(
        x: torch.Tensor,
        context: torch.Tensor | None = None,
        value: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        transformer_options: CallOptions | None = None,
    ) -> torch.Tensor:
        options = transformer_options or {}
        if context is None or value is not None:
            return plain(attention, x, context, value, mask, transformer_options)
        parts: Sequence[PromptRows] = options.get(PROMPTS_OF_ROWS) or ()
        if parts:
            k, v = _joined(projected, parts, context)
        else:
            key = prompt_key(options, context)
            if key is None:
                return plain(attention, x, context, value, mask, transformer_options)
            k, v = projected(key, context, MAX_PROMPTS)
        mixed = optimized_attention(attention.to_q(x), k, v, attention.heads, mask, transformer_options=options)
        out: torch.Tensor = attention.to_out(mixed)
        return out

    return forward


def _joined(
    projected: Callable[[Hashable | None, torch.Tensor, int], Projected],
    parts: Sequence[PromptRows],
    context: torch.Tensor,
) -> Projected:
    """Return keys and values of a batch's rows [B, T, D], each run's of its own rows; the last row is the padding's."""
    sizes = [part.num_rows for part in parts]
    missing = context.shape[0] - sum(sizes)
    most = max(MAX_PROMPTS, EVALUATIONS_A_RUN * len(parts))
    found = [
        projected(prompt_key({"uuids": part.uuids, "cond_or_uncond": part.sides}, tokens), tokens, most)
        for part, tokens in zip(parts, torch.split(context, [*sizes, missing]), strict=False)
    ]
    k, v = ([*items, *[items[-1][-1:]] * missing] for items in zip(*found, strict=True))
    return torch.cat(k), torch.cat(v)


def prompt_key(options: CallOptions, context: torch.Tensor) -> Hashable | None:
    """Return a key of the conditions that make up a context [B, T, D]; None where they are not known.

    A condition's `uuid` is drawn anew for each sampling run, and names one content on each side of the guidance.
    """
    uuids, sides = options.get("uuids"), options.get("cond_or_uncond")
    if not uuids or not sides or len(uuids) != len(sides) or None in uuids or context.shape[0] % len(uuids):
        return None
    return tuple(uuids), tuple(sides), tuple(context.shape), context.dtype
