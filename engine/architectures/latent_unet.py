"""The UNet of latent diffusion (Rombach et al. 2022, arXiv 2112.10752), of any width and depth.

What the network consists of is data (`UnetConfig`, read from tensor shapes by `engine/checkpoints`); module names are
those of the original checkpoints. `B` batch, `C` channels, `h w` latent cells, `T` tokens, `D` their width, `E` width
of the time embedding.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): they find `block`,
`block_index`, `transformer_index`, `original_shape`, `activations_shape` in it, and put functions under `patches`
(`attn1_patch`, `attn2_output_patch`, `input_block_patch`...) and `patches_replace` (`attn1`, `attn2` by block).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from engine.architectures.attention import optimized_attention
from engine.architectures.layers import Conv2d, Linear, linear

Options = dict[str, Any]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConvSpec:
    in_channels: int
    out_channels: int


@dataclass(frozen=True, slots=True)
class ResSpec:
    in_channels: int
    out_channels: int


@dataclass(frozen=True, slots=True)
class TransformerSpec:
    channels: int
    depth: int
    context_dim: int
    uses_linear: bool = False


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


@dataclass(frozen=True, slots=True)
class UnetConfig:
    """Configuration of every layer of every block. `head_channels` None means `num_heads` heads at every width.

    `label_dim` is the width of the label vector that is embedded beside the time, 0 for networks without labels.
    """

    in_channels: int
    out_channels: int
    model_channels: int
    input_blocks: tuple[BlockSpec, ...]
    middle_block: BlockSpec
    output_blocks: tuple[BlockSpec, ...]
    num_heads: int = 8
    head_channels: int | None = None
    label_dim: int = 0

    @property
    def context_dim(self) -> int:
        """Width of the context tokens; 0 without a transformer."""
        blocks = (*self.input_blocks, self.middle_block, *self.output_blocks)
        return next((spec.context_dim for block in blocks for spec in block if isinstance(spec, TransformerSpec)), 0)

    def heads(self, channels: int) -> int:
        return self.num_heads if self.head_channels is None else channels // self.head_channels


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
            nn.GroupNorm(32, spec.in_channels),
            nn.SiLU(),
            Conv2d(spec.in_channels, spec.out_channels, 3, padding=1),
        )
        self.emb_layers = nn.Sequential(nn.SiLU(), Linear(embedding_width, spec.out_channels))
        self.out_layers = nn.Sequential(
            nn.GroupNorm(32, spec.out_channels),
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
        out: torch.Tensor = value * functional.gelu(gate)
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
        transformer_options: Mapping[str, Any] | None = None,
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
    # What ComfyUI's block can be besides, for nodes that put a forward of their own in this one's place.
    ff_in = disable_self_attn = switch_temporal_ca_to_sa = False
    is_res = True
    attn_precision = None

    def __init__(self, width: int, context_dim: int, heads: int) -> None:
        super().__init__()
        self.attn1 = CrossAttention(width, width, heads)
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

        x = self._attend("attn1", self.attn1, self.norm1(x), None, patches, replaced, (place, block), extra) + x
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
        patches: Mapping[str, Any],
        replaced: Mapping[str, Any],
        places: tuple[Any, Any],
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
        self.norm = nn.GroupNorm(32, spec.channels, eps=1e-6)
        self.use_linear = spec.uses_linear
        self.proj_in = _projection(spec)
        self.transformer_blocks = nn.ModuleList(
            BasicTransformerBlock(spec.channels, spec.context_dim, heads) for _ in range(spec.depth)
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


class TimestepEmbedSequential(nn.Sequential):
    """Layers of one block, each called with the inputs it needs of time, context and size."""

    def forward(  # type: ignore[override]
        self,
        x: torch.Tensor,
        emb: torch.Tensor,
        context: torch.Tensor | None = None,
        transformer_options: Options | None = None,
        output_shape: Sequence[int] | None = None,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        for layer in self:
            if isinstance(layer, ResBlock):
                x = layer(x, emb)
            elif isinstance(layer, SpatialTransformer):
                x = layer(x, context, options)
                if "transformer_index" in options:
                    options["transformer_index"] += 1
            elif isinstance(layer, Upsample):
                x = layer(x, output_shape)
            else:
                x = self._plain(layer, x, emb, context, options, output_shape)
        return x

    def _plain(
        self,
        layer: nn.Module,
        x: torch.Tensor,
        emb: torch.Tensor,
        context: torch.Tensor | None,
        options: Options,
        output_shape: Sequence[int] | None,
    ) -> torch.Tensor:
        for kind, handler in options.get("patches", {}).get("forward_timestep_embed_patch", ()):
            if isinstance(layer, kind):
                handled: torch.Tensor = handler(layer, x, emb, context, options, output_shape, None, None, None)
                return handled
        out: torch.Tensor = layer(x)
        return out


class UnetModel(nn.Module):
    """`forward(x [B, in, h, w], timesteps [B], context [B, T, D], y [B, label_dim])` -> `[B, out, h, w]`.

    `control` holds lists of additions by place (`input`, `middle`, `output`), taken from their ends. Built without
    weights being drawn when a `torch.device("meta")` context is open.
    """

    def __init__(self, config: UnetConfig) -> None:
        super().__init__()
        self.config = config
        self.model_channels = config.model_channels
        self.in_channels = config.in_channels
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        width = config.model_channels * 4
        self.time_embed = nn.Sequential(Linear(config.model_channels, width), nn.SiLU(), Linear(width, width))
        if config.label_dim:
            self.label_emb = label_embedding(config.label_dim, width)
        self.input_blocks = nn.ModuleList(build_block(spec, config, width) for spec in config.input_blocks)
        self.middle_block = build_block(config.middle_block, config, width)
        self.output_blocks = nn.ModuleList(build_block(spec, config, width) for spec in config.output_blocks)
        self.out = nn.Sequential(
            nn.GroupNorm(32, config.model_channels),
            nn.SiLU(),
            Conv2d(config.model_channels, config.out_channels, 3, padding=1),
        )

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.time_embed.get_parameter("0.weight").dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor | None = None,
        y: torch.Tensor | None = None,
        control: dict[str, list[torch.Tensor | None]] | None = None,
        transformer_options: Options | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        options["original_shape"] = list(x.shape)
        options["transformer_index"] = 0
        patches = options.get("patches", {})

        emb = self.time_embed(timestep_embedding(timesteps, self.model_channels).to(x.dtype))  # [B, E]
        for patch in patches.get("emb_patch", ()):
            emb = patch(emb, self.model_channels, options)
        if self.config.label_dim:
            emb = emb + self.label_emb(y)  # y [B, label_dim]

        h, skips = x, []
        for index, block in enumerate(self.input_blocks):
            options["block"] = ("input", index)
            h = _add_control(block(h, emb, context, options), control, "input")
            for patch in patches.get("input_block_patch", ()):
                h = patch(h, options)
            skips.append(h)
            for patch in patches.get("input_block_patch_after_skip", ()):
                h = patch(h, options)

        options["block"] = ("middle", 0)
        h = _add_control(self.middle_block(h, emb, context, options), control, "middle")

        for index, block in enumerate(self.output_blocks):
            options["block"] = ("output", index)
            skip = _add_control(skips.pop(), control, "output")
            for patch in patches.get("output_block_patch", ()):
                h, skip = patch(h, skip, options)
            h = torch.cat([h, skip], dim=1)
            h = block(h, emb, context, options, skips[-1].shape if skips else None)
        out: torch.Tensor = self.out(h)
        return out


def label_embedding(label_dim: int, width: int) -> nn.Sequential:
    """Build the embedding of a label vector [B, label_dim] -> [B, width], under the names of the original files."""
    return nn.Sequential(nn.Sequential(Linear(label_dim, width), nn.SiLU(), Linear(width, width)))


def build_block(specs: BlockSpec, config: UnetConfig, embedding_width: int) -> TimestepEmbedSequential:
    """Build the layers of one block from its configuration."""
    return TimestepEmbedSequential(*(_layer(spec, config, embedding_width) for spec in specs))


def _layer(spec: LayerSpec, config: UnetConfig, embedding_width: int) -> nn.Module:
    match spec:
        case ConvSpec():
            return Conv2d(spec.in_channels, spec.out_channels, 3, padding=1)
        case ResSpec():
            return ResBlock(spec, embedding_width)
        case TransformerSpec():
            return SpatialTransformer(spec, config.heads(spec.channels))
        case DownSpec():
            return Downsample(spec)
        case UpSpec():
            return Upsample(spec)


def _add_control(h: torch.Tensor, control: dict[str, list[torch.Tensor | None]] | None, place: str) -> torch.Tensor:
    additions = None if control is None else control.get(place)
    if not additions:
        return h
    addition = additions.pop()
    if addition is None:
        return h
    if not _fits(addition.shape, h.shape):  # one made for another network; ComfyUI draws without it, too
        log.warning("a control of shape %s does not fit %s and is left out", list(addition.shape), list(h.shape))
        return h
    return h + addition.to(h.dtype)  # a T2I-Adapter is float32


def _fits(shape: torch.Size, target: torch.Size) -> bool:
    """Return True if a tensor can be added to one of the target's shape."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size in (1, wanted) for size, wanted in pairs)
