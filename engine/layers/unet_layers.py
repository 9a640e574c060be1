"""Layers of the UNet of latent diffusion (`unet.py`), and what describes each of them as data.

`B` batch, `C` channels, `h w` latent cells, `T` tokens, `D` their width, `E` width of the time embedding. Module names
are those of the original checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Conv2d, GroupNorm, Linear, linear
from darkroom.engine.layers.call_options import CallOptions

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ConvSpec:
    in_channels: int
    out_channels: int


@dataclass(frozen=True, slots=True)
class ResSpec:
    """A residual block. `is_temporal`: it also convolves along the frames of a video."""

    in_channels: int
    out_channels: int
    is_temporal: bool = False


@dataclass(frozen=True, slots=True)
class TransformerSpec:
    """A stack of transformer blocks.

    `attends_context_only`: both attentions of a block read the context, none the image itself. `is_temporal`: each
    block is followed by one that attends along the frames of a video.
    """

    channels: int
    depth: int
    context_dim: int
    uses_linear: bool = False
    attends_context_only: bool = False
    is_temporal: bool = False


@dataclass(frozen=True, slots=True)
class DownSpec:
    channels: int
    out_channels: int


@dataclass(frozen=True, slots=True)
class UpSpec:
    channels: int
    out_channels: int


LayerSpec = ConvSpec | ResSpec | TransformerSpec | DownSpec | UpSpec
BlockSpec = tuple[LayerSpec, ...]


def timestep_embedding(timesteps: torch.Tensor, width: int, max_period: float = 10000.0) -> torch.Tensor:
    """Embed timesteps as sinusoids of falling frequency, cosines first: [B] -> [B, width].

    Vaswani et al. 2017, arXiv 1706.03762.
    """
    half = width // 2
    steps = torch.arange(half, dtype=torch.float32, device=timesteps.device)
    angles = timesteps[:, None].float() * torch.exp(-math.log(max_period) * steps / half)[None]
    embedding = torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)
    return functional.pad(embedding, (0, width % 2))


class ResBlock(nn.Module):
    def __init__(self, spec: ResSpec, embedding_width: int) -> None:
        super().__init__()
        self.channels, self.out_channels = spec.in_channels, spec.out_channels
        self.in_layers = nn.Sequential(
            GroupNorm(32, spec.in_channels),
            nn.SiLU(),
            Conv2d(spec.in_channels, spec.out_channels, 3, padding=1),
        )
        self.emb_layers = nn.Sequential(nn.SiLU(), Linear(embedding_width, spec.out_channels))
        self.out_layers = nn.Sequential(
            GroupNorm(32, spec.out_channels),
            nn.SiLU(),
            nn.Identity(),  # a dropout in training; it keeps the convolution's name
            Conv2d(spec.out_channels, spec.out_channels, 3, padding=1),
        )
        same = spec.in_channels == spec.out_channels
        self.skip_connection = nn.Identity() if same else Conv2d(spec.in_channels, spec.out_channels, 1)

    def forward(self, x: torch.Tensor, emb: torch.Tensor) -> torch.Tensor:
        h = self.in_layers(x)
        h = h + self.emb_layers(emb)[:, :, None, None]
        out: torch.Tensor = self.skip_connection(x) + self.out_layers(h)
        return out


class Downsample(nn.Module):
    def __init__(self, spec: DownSpec) -> None:
        super().__init__()
        self.op = Conv2d(spec.channels, spec.out_channels, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.op(x)
        return out


class Upsample(nn.Module):
    def __init__(self, spec: UpSpec) -> None:
        super().__init__()
        self.conv = Conv2d(spec.channels, spec.out_channels, 3, padding=1)

    def forward(self, x: torch.Tensor, output_shape: Sequence[int] | None = None) -> torch.Tensor:
        """Enlarge to twice the size, or to `output_shape`, that of the skip connection (odd sizes)."""
        size = (x.shape[2] * 2, x.shape[3] * 2) if output_shape is None else (output_shape[2], output_shape[3])
        out: torch.Tensor = self.conv(functional.interpolate(x, size=size, mode="nearest"))
        return out


class Geglu(nn.Module):
    """Gated GELU (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.proj = Linear(width, inner * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.proj(x).chunk(2, dim=-1)
        opened = functional.gelu(gate)
        out: torch.Tensor = value * opened if torch.is_grad_enabled() else opened.mul_(value)  # new memory is slow
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(Geglu(width, width * 4), nn.Identity(), Linear(width * 4, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x)
        return out


class CrossAttention(nn.Module):
    def __init__(self, width: int, context_dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.dim_head = heads, width // heads
        self.to_q = Linear(width, width, bias=False)
        self.to_k = Linear(context_dim, width, bias=False)
        self.to_v = Linear(context_dim, width, bias=False)
        self.to_out = nn.Sequential(Linear(width, width))

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor | None = None,
        value: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        transformer_options: CallOptions | None = None,
    ) -> torch.Tensor:
        """Compute attention; self-attention without `context`.

        Values come from `value`, or from the source of the keys.
        """
        context = x if context is None else context
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context if value is None else value)
        out: torch.Tensor = self.to_out(
            optimized_attention(q, k, v, self.heads, mask, transformer_options=transformer_options)
        )
        return out


class BasicTransformerBlock(nn.Module):
    """A transformer block. With `has_input_ff` a feed-forward layer comes before the first attention.

    With `attends_context_only` the first attention reads the context, too. The attributes have ComfyUI's names, for
    nodes that put a forward of their own in this one's place.
    """

    switch_temporal_ca_to_sa = False
    is_res = True
    attn_precision = None

    def __init__(
        self,
        width: int,
        context_dim: int,
        heads: int,
        *,
        attends_context_only: bool = False,
        has_input_ff: bool = False,
    ) -> None:
        super().__init__()
        self.disable_self_attn = attends_context_only
        self.ff_in: FeedForward | bool = False
        if has_input_ff:
            self.norm_in = nn.LayerNorm(width)
            self.ff_in = FeedForward(width)
        self.attn1 = CrossAttention(width, context_dim if attends_context_only else width, heads)
        self.ff = FeedForward(width)
        self.attn2 = CrossAttention(width, context_dim, heads)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.n_heads, self.d_head = heads, width // heads

    def forward(
        self, x: torch.Tensor, context: torch.Tensor | None = None, transformer_options: Options | None = None
    ) -> torch.Tensor:
        """Return `x` [B, h*w, C] after attention to itself and to `context` [B, T, D]."""
        options = transformer_options or {}
        patches = options.get("patches", {})
        replaced = options.get("patches_replace", {})
        extra = {key: value for key, value in options.items() if key not in ("patches", "patches_replace")}
        extra |= {"n_heads": self.n_heads, "dim_head": self.d_head, "attn_precision": None}
        block = options.get("block")
        place = None if block is None else (block[0], block[1], options.get("block_index", 0))

        if not isinstance(self.ff_in, bool):
            x = self.ff_in(self.norm_in(x)) + x
        first = context if self.disable_self_attn else None
        x = self._attend("attn1", self.attn1, self.norm1(x), first, patches, replaced, (place, block), extra) + x
        for patch in patches.get("middle_patch", ()):
            x = patch(x, extra)
        x = self._attend("attn2", self.attn2, self.norm2(x), context, patches, replaced, (place, block), extra) + x
        out: torch.Tensor = self.ff(self.norm3(x)) + x
        return out

    def _attend(
        self,
        name: str,
        attn: CrossAttention,
        n: torch.Tensor,
        context: torch.Tensor | None,
        patches: CallOptions,
        replaced: CallOptions,
        places: tuple[object, object],
        extra: Options,
    ) -> torch.Tensor:
        """Compute one attention with the nodes' patches before it, in its place, and after it."""
        value = None
        if f"{name}_patch" in patches:
            context = n if context is None and name == "attn1" else context
            value = context
            for patch in patches[f"{name}_patch"]:
                n, context, value = patch(n, context, value, extra)
        replacements = replaced.get(name, {})
        replacement = next((replacements[place] for place in places if place in replacements), None)
        if replacement is None:
            n = attn(n, context=context, value=value, transformer_options=extra)
        else:
            context = n if context is None else context
            value = context if value is None else value
            n = attn.to_out(replacement(attn.to_q(n), attn.to_k(context), attn.to_v(value), extra))
        for patch in patches.get(f"{name}_output_patch", ()):
            n = patch(n, extra)
        return n


class SpatialTransformer(nn.Module):
    def __init__(self, spec: TransformerSpec, heads: int) -> None:
        super().__init__()
        self.norm = GroupNorm(32, spec.channels, eps=1e-6)
        self.use_linear = spec.uses_linear
        self.proj_in = _projection(spec)
        self.transformer_blocks = nn.ModuleList(
            BasicTransformerBlock(
                spec.channels, spec.context_dim, heads, attends_context_only=spec.attends_context_only
            )
            for _ in range(spec.depth)
        )
        self.proj_out = _projection(spec)

    def forward(
        self, x: torch.Tensor, context: torch.Tensor | None = None, transformer_options: Options | None = None
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        options["activations_shape"] = list(x.shape)
        batch, channels, height, width = x.shape
        tokens: torch.Tensor = self.proj_in(self.norm(x).flatten(2).transpose(1, 2))  # [B, h*w, C]
        for index, block in enumerate(self.transformer_blocks):
            options["block_index"] = index
            tokens = block(tokens, context=context, transformer_options=options)
        tokens = self.proj_out(tokens)
        return x + tokens.transpose(1, 2).reshape(batch, channels, height, width)


class TokenConvolution(nn.Conv2d):
    """A 1x1 convolution of tokens [B, T, C]: the same linear map for every cell, without a second change of layout."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(input, self.weight.flatten(1), self.bias)


def _projection(spec: TransformerSpec) -> nn.Module:
    if spec.uses_linear:
        return Linear(spec.channels, spec.channels)
    return TokenConvolution(spec.channels, spec.channels, 1)
