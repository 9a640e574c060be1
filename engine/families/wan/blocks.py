"""Layers of Wan's transformers: attention, blocks, the last layer, tokens of an image encoder.

`B` batch, `T` tokens, `D` width, `N` noise levels of an item.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from darkroom.engine.families.wan.config import (
    HEAD_WIDTH,
    IMAGE_NORM_EPS,
    NORM_EPS,
    NUM_MODULATIONS,
    WanConfig,
)
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import PATCH
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, Gelu, ResidualNorm, RotaryHeads
from darkroom.engine.layers.unet_layers import Options

# Tokens of self-attention behind the norm, rotations, transformer options -> the addition to the tokens
Attend = Callable[[torch.Tensor, torch.Tensor, Options | None], torch.Tensor]


class Float32Conv3d(nn.Conv3d):
    """A convolution that computes in float32 from weights of any type, and gives the type of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.float()
        out: torch.Tensor = self._conv_forward(x.float(), self.weight.float(), bias)
        return out.to(x.dtype)


def spread(parts: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Repeat the vectors of noise levels [B, N, D] for each token [B, T, D], in order; one level stays as it is."""
    levels = parts.shape[1]
    if levels in (1, num_tokens):
        return parts
    times = -(-num_tokens // levels)
    return parts.repeat_interleave(times, dim=1)[:, :num_tokens]


class Attention(nn.Module):
    """Attention of tokens among each other, or over those of a text; norms are of all heads together."""

    def __init__(self, width: int, context_width: int | None = None) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        given = width if context_width is None else context_width
        self.q, self.k, self.v, self.o = (
            Linear(width, width),
            Linear(given, width),
            Linear(given, width),
            Linear(width, width),
        )
        self.norm_q, self.norm_k = RmsNorm(width), RmsNorm(width)
        self.rotary_heads = RotaryHeads(token_dim=1, num_heads=self.heads)

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, pe: torch.Tensor | None, options: Options | None
    ) -> torch.Tensor:
        """Return [B, T, D]. `pe` are the rotations [1, T, 1, 64, 2, 2] of both sides' places, None for no places."""
        q, k = self.rotary_heads([(self.q(x), self.norm_q)], [(self.k(context), self.norm_k)], pe)
        attended = optimized_attention(
            q.flatten(2), k.flatten(2), self.v(context), self.heads, transformer_options=options
        )
        out: torch.Tensor = self.o(attended)
        return out


class SelfAttention(Attention):
    """Attention of a video's tokens among each other, whose output patches may change."""

    def heads_of(self, x: torch.Tensor, pe: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the queries, keys [B, T, H, 128] and values [B, T, D] of tokens."""
        q, k = self.rotary_heads([(self.q(x), self.norm_q)], [(self.k(x), self.norm_k)], pe)
        return q, k, self.v(x)

    def among_each_other(self, x: torch.Tensor, pe: torch.Tensor, options: Options | None) -> torch.Tensor:
        """Return [B, T, D] of tokens at the places of the rotations [1, T, 1, 64, 2, 2]."""
        q, k, v = self.heads_of(x, pe)
        attended = optimized_attention(q.flatten(2), k.flatten(2), v, self.heads, transformer_options=options)
        return self.closed(attended, q, k, options)

    def closed(self, attended: torch.Tensor, q: torch.Tensor, k: torch.Tensor, options: Options | None) -> torch.Tensor:
        """Return the output [B, T, D] of attention, behind the patches of it."""
        for patch in (options or {}).get("patches", {}).get("attn1_patch", ()):
            attended = patch({"x": attended, "q": q, "k": k, "transformer_options": options})
        out: torch.Tensor = self.o(attended)
        return out


class PromptAttention(Attention):
    """Attention to the text's tokens; a network that reads images attends to theirs too, by further layers."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__(config.width)
        self.reads_image = config.image_dim > 0
        if self.reads_image:
            self.k_img, self.v_img = Linear(config.width, config.width), Linear(config.width, config.width)
            self.norm_k_img = RmsNorm(config.width)

    def attend(
        self, x: torch.Tensor, context: torch.Tensor, image_tokens: int | None, options: Options | None
    ) -> torch.Tensor:
        """Return [B, T, D]. The first `image_tokens` of `context` are an image's; with None all are both."""
        if not self.reads_image:
            return self.forward(x, context, None, options)
        image, text = context[:, :image_tokens], context[:, image_tokens:]
        if image_tokens is None:
            text = context
        q, k = self.rotary_heads([(self.q(x), self.norm_q)], [(self.k(text), self.norm_k)], None)
        q, k = q.flatten(2), k.flatten(2)
        k_img = self.norm_k_img(self.k_img(image))
        seen = optimized_attention(q, k_img, self.v_img(image), self.heads, transformer_options=options)
        read = optimized_attention(q, k, self.v(text), self.heads, transformer_options=options)
        out: torch.Tensor = self.o(read + seen)
        return out


class WanBlock(nn.Module):
    attention_type: type[SelfAttention] = SelfAttention

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        width, inner = config.width, config.inner_width
        self.self_attn, self.cross_attn = self.attention_type(width), PromptAttention(config)
        self.norm3 = nn.LayerNorm(width, eps=NORM_EPS)
        self.ffn = nn.Sequential(Linear(width, inner), Gelu("tanh"), Linear(inner, width))
        self.modulation = nn.Parameter(torch.empty(1, NUM_MODULATIONS, width))
        self.adaptive_norm, self.residual = AdaptiveNorm(eps=NORM_EPS, is_joined=True), GatedResidual(is_joined=True)
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor,
        vec: torch.Tensor,
        pe: torch.Tensor,
        options: Options | None,
        image_tokens: int | None = None,
        attend: Attend | None = None,
    ) -> torch.Tensor:
        """Return [B, T, D]. `vec` is [B, N, 6, D], `attend` takes the place of self-attention."""
        shift, scale, gate, *second = (self.modulation.to(x).unsqueeze(0) + vec).unbind(2)  # each [B, N, D]
        tokens = x.shape[1]
        normed = self.adaptive_norm(x, spread(scale, tokens), spread(shift, tokens))
        attended = (attend or self.self_attn.among_each_other)(normed, pe, options)
        x, normed = self.residual_norm(x, attended, spread(gate, tokens), None, None, norm=self.norm3)
        change = self.cross_attn.attend(normed, context, image_tokens, options)
        x, change = self.with_more(x, change, options)
        patches = (options or {}).get("patches", {}).get("attn2_patch", ())
        if patches:
            x = x + change
            for patch in patches:
                x = patch({"x": x, "transformer_options": options})
            normed = self.adaptive_norm(x, spread(second[1], tokens), spread(second[0], tokens))
        else:
            x, normed = self.residual_norm(x, change, None, spread(second[1], tokens), spread(second[0], tokens))
        out: torch.Tensor = self.residual(x, self.ffn(normed), spread(second[2], tokens))
        return out

    def with_more(
        self, x: torch.Tensor, change: torch.Tensor, options: Options | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens and what is yet to be added to them, after what else a block attends to: nothing here."""
        return x, change


class WanHead(nn.Module):
    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.head = Linear(config.width, PATCH**2 * config.out_channels)
        self.modulation = nn.Parameter(torch.empty(1, 2, config.width))
        self.adaptive_norm = AdaptiveNorm(eps=NORM_EPS, is_joined=True)

    def forward(self, x: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
        """Return patches [B, T, 4 * C], channels innermost. `vec` is [B, N, D]."""
        shift, scale = (self.modulation.to(x).unsqueeze(0) + vec.unsqueeze(2)).unbind(2)
        tokens = x.shape[1]
        out: torch.Tensor = self.head(self.adaptive_norm(x, spread(scale, tokens), spread(shift, tokens)))
        return out


class ImageProjection(nn.Module):
    """Tokens of an image encoder -> tokens of the network. Those of a first and a last image have places."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        given = config.image_dim
        self.proj = nn.Sequential(
            nn.LayerNorm(given, eps=IMAGE_NORM_EPS), Linear(given, given), nn.GELU(), Linear(given, config.width),
            nn.LayerNorm(config.width, eps=IMAGE_NORM_EPS),
        )  # fmt: skip
        if config.image_places:
            self.emb_pos = nn.Parameter(torch.empty(1, config.image_places, given))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "emb_pos"):
            tokens = tokens[:, : self.emb_pos.shape[1]]
            tokens = tokens + self.emb_pos[:, : tokens.shape[1]].to(tokens)
        out: torch.Tensor = self.proj(tokens)
        return out
