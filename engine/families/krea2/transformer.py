"""The transformer of Krea 2 (Krea 2026): one stream of text and image, whose text is fused from many layers.

The inputs of several layers of a language model are fused token by token: two blocks attend from layer to layer, a
projection mixes the layers, two blocks attend from token to token. Text and image then are one sequence. Blocks
share one modulation of the time, to which each adds a table of its own. Attention has fewer keys than queries (Ainslie
et al. 2023, arXiv 2305.13245) and is gated (Qiu et al. 2025, arXiv 2505.06708), feed-forward layers are gated too
(Shazeer 2020, arXiv 2002.05202). Places are rotations on three axes: image, row, column; all tokens of a text have
the first place. `B` batch, `C` channels, `h w` latent cells, `N` layers of the language model, `L` tokens of text, `T`
tokens of text and image, `D` width. Module names are those of the original checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches["post_input"]` has
functions of the streams before the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.families.flux.transformer import TIME_FACTOR
from darkroom.engine.families.lumina2.transformer import image_places
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import CentredRmsNorm
from darkroom.engine.layers.patches import PATCH, image_of, pad_to_patches, patches_of
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    Modulator,
    ResidualNorm,
    RotaryHeads,
    Stretches,
)
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

HEAD_WIDTH = 128  # of the blocks of the stream
AXES = (32, 48, 48)  # channels of a head that rotate by image, row and column
THETA = 1000.0
NUM_FUSION_BLOCKS = 2  # of either kind
TIME_ZERO_METHOD = "index_timestep_zero"  # of reference images: they are seen as if their time was 0
MARK = "txtfusion.projector.weight"
FUSION, BLOCK = "txtfusion.layerwise_blocks.0", "blocks.0"


@dataclass(frozen=True, slots=True)
class FusionConfig:
    """Configuration of the text's fusion: how many layers of which width it reads, and its blocks."""

    num_layers: int
    width: int
    heads: int
    key_heads: int
    inner_width: int

    @property
    def head_width(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True, slots=True)
class Krea2Config:
    """Configuration of the network."""

    width: int
    key_heads: int
    inner_width: int
    num_blocks: int
    text: FusionConfig
    in_channels: int = 16
    time_width: int = 256

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH

    @property
    def context_dim(self) -> int:
        """Width of a token of the conditioning: all layers side by side."""
        return self.text.num_layers * self.text.width


def krea2_config(shapes: Shapes) -> Krea2Config:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, patch_width = shapes["first.weight"]
    text_head = shapes[f"{FUSION}.attn.qknorm.qnorm.scale"][0]
    return Krea2Config(
        width=width,
        key_heads=shapes[f"{BLOCK}.attn.wk.weight"][0] // HEAD_WIDTH,
        inner_width=shapes[f"{BLOCK}.mlp.gate.weight"][0],
        num_blocks=count_children(shapes, "blocks"),
        text=FusionConfig(
            num_layers=shapes[MARK][1],
            width=shapes[f"{FUSION}.prenorm.scale"][0],
            heads=shapes[f"{FUSION}.attn.wq.weight"][0] // text_head,
            key_heads=shapes[f"{FUSION}.attn.wk.weight"][0] // text_head,
            inner_width=shapes[f"{FUSION}.mlp.gate.weight"][0],
        ),
        in_channels=patch_width // PATCH**2,
        time_width=shapes["tmlp.0.weight"][1],
    )


# --- layers ----------------------------------------------------------------------------------------------------------


class QueryKeyNorms(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qnorm, self.knorm = CentredRmsNorm(width), CentredRmsNorm(width)


class GatedLayers(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (Linear(width, inner, bias=False) for _ in range(2))
        self.down = Linear(inner, width, bias=False)
        self.activation = GatedActivation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.activation(self.gate(x), self.up(x)))
        return out


class GatedAttention(nn.Module):
    """Attention whose result is gated by its input."""

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.head_width = heads, key_heads, width // heads
        self.wq, self.gate, self.wo = (Linear(width, width, bias=False) for _ in range(3))
        self.wk, self.wv = (Linear(width, key_heads * self.head_width, bias=False) for _ in range(2))
        self.qknorm = QueryKeyNorms(self.head_width)
        self.rotary_heads, self.activation = RotaryHeads(), GatedActivation("sigmoid")

    def forward(self, x: torch.Tensor, pe: torch.Tensor | None, options: Options | None) -> torch.Tensor:
        """Return [B, T, D]. `pe` rotates queries and keys (`rotations`)."""
        q, k, v = self._split(self.wq(x), self.heads), *(self._split(w(x), self.key_heads) for w in (self.wk, self.wv))
        q, k = self.rotary_heads([(q, self.qknorm.qnorm)], [(k, self.qknorm.knorm)], pe)
        shared = self.heads // self.key_heads
        if shared > 1:
            k, v = (item.repeat_interleave(shared, dim=1) for item in (k, v))
        attended = optimized_attention(q, k, v, self.heads, skip_reshape=True, transformer_options=options)
        out: torch.Tensor = self.wo(self.activation(self.gate(x), attended))
        return out

    def _split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(*x.shape[:2], heads, self.head_width).transpose(1, 2)  # [B, heads, T, W]


class BlockLayers(nn.Module):
    """The layers of a block, with a norm before attention and one before the feed-forward layers."""

    def __init__(self, width: int, heads: int, key_heads: int, inner: int) -> None:
        super().__init__()
        self.prenorm, self.postnorm = CentredRmsNorm(width), CentredRmsNorm(width)
        self.attn = GatedAttention(width, heads, key_heads)
        self.mlp = GatedLayers(width, inner)
        self.adaptive_norm, self.residual = AdaptiveNorm("none"), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)


class FusionBlock(BlockLayers):
    """A block that nothing modulates and in which tokens have no places."""

    def forward(self, x: torch.Tensor, options: Options | None) -> torch.Tensor:
        attended = self.attn(self.prenorm(x), None, options)
        x, normed = self.residual_norm(x, attended, None, None, norm=self.postnorm)
        out: torch.Tensor = self.residual(x, self.mlp(normed))
        return out


class TextFusion(nn.Module):
    """`forward(text [B, L, N, W])` -> [B, L, W]: what the layers of a language model read, fused."""

    def __init__(self, config: FusionConfig) -> None:
        super().__init__()
        self.layerwise_blocks, self.refiner_blocks = (
            nn.ModuleList(
                FusionBlock(config.width, config.heads, config.key_heads, config.inner_width)
                for _ in range(NUM_FUSION_BLOCKS)
            )
            for _ in range(2)
        )
        self.projector = Linear(config.num_layers, 1, bias=False)

    def forward(self, text: torch.Tensor, options: Options | None) -> torch.Tensor:
        layers: torch.Tensor = text.flatten(0, 1)  # [B * L, N, W]
        for block in self.layerwise_blocks:
            layers = block(layers, options)
        tokens: torch.Tensor = self.projector(layers.transpose(1, 2)).view(*text.shape[:2], -1)  # [B, L, W]
        for block in self.refiner_blocks:
            tokens = block(tokens, options)
        return tokens


class ModulationTable(nn.Module):
    """The table `lin` that a block adds to the modulation which all blocks share."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.lin = nn.Parameter(torch.empty(shape))

    def forward(self, vec: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = vec + self.lin.to(vec.dtype)
        return out


class StreamBlock(BlockLayers):
    """A block modulated by the time."""

    def __init__(self, config: Krea2Config) -> None:
        super().__init__(config.width, config.heads, config.key_heads, config.inner_width)
        self.mod = ModulationTable(6 * config.width)

    def forward(self, x: torch.Tensor, vec: Modulator, pe: torch.Tensor, options: Options | None) -> torch.Tensor:
        """Return [B, T, D]. `vec` is [B, 1, 6 * D] for all tokens, or for each of several stretches."""
        scale, shift, gate, inner_scale, inner_shift, inner_gate = self._modulators(vec)
        attended = self.attn(self.adaptive_norm(x, scale, shift, self.prenorm), pe, options)
        x, normed = self.residual_norm(x, attended, gate, inner_scale, inner_shift, norm=self.postnorm)
        out: torch.Tensor = self.residual(x, self.mlp(normed), inner_gate)
        return out

    def _modulators(self, vec: Modulator) -> Sequence[Modulator]:
        """Return scale, shift and gate of the attention, then of the feed-forward layers."""
        if isinstance(vec, Stretches):
            tables = zip(*(self.mod(part).chunk(6, dim=-1) for part in vec.parts), strict=True)
            return [Stretches(vec.lengths, parts) for parts in tables]
        parts: tuple[torch.Tensor, ...] = self.mod(vec).chunk(6, dim=-1)
        return parts


class LastLayer(nn.Module):
    def __init__(self, config: Krea2Config) -> None:
        super().__init__()
        self.norm = CentredRmsNorm(config.width)
        self.linear = Linear(config.width, PATCH * PATCH * config.in_channels)
        self.modulation = ModulationTable(2, config.width)
        self.adaptive_norm = AdaptiveNorm("none")

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        scale, shift = self.modulation(time).chunk(2, dim=1)  # [B, 1, D] each
        out: torch.Tensor = self.linear(self.adaptive_norm(x, scale, shift, self.norm))
        return out


# --- network ---------------------------------------------------------------------------------------------------------


class Krea2Transformer(nn.Module):
    """`forward(x [B, C, 1, h, w], timesteps [B], context [B, L, N * W])` -> `[B, C, 1, h, w]`.

    `ref_latents` are reference images [B, C, 1, h, w], seen behind the image with the next indices where
    `ref_latents_method` says how: `index_timestep_zero` at time 0, every other at the image's time. Built without
    weights being drawn when a `torch.device("meta")` context is open.
    """

    def __init__(self, config: Krea2Config) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = PATCH
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        width, text_width = config.width, config.text.width
        self.first = Linear(config.in_channels * PATCH * PATCH, width)
        self.blocks = nn.ModuleList(StreamBlock(config) for _ in range(config.num_blocks))
        self.tmlp = nn.Sequential(Linear(config.time_width, width), nn.GELU("tanh"), Linear(width, width))
        self.txtfusion = TextFusion(config.text)
        self.txtmlp = nn.Sequential(
            CentredRmsNorm(text_width), Linear(text_width, width), nn.GELU("tanh"), Linear(width, width)
        )
        self.last = LastLayer(config)
        self.tproj = nn.Sequential(nn.GELU("tanh"), Linear(width, 6 * width))

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.first.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        ref_latents: Sequence[torch.Tensor] = (),
        ref_latents_method: str | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        padded = pad_to_patches(_flat(x), PATCH)
        seen = [] if ref_latents_method is None else [pad_to_patches(_flat(item), PATCH) for item in ref_latents]
        layers = context.view(*context.shape[:2], self.config.text.num_layers, -1)
        streams = {
            "img": self.first(torch.cat([patches_of(item) for item in (padded, *seen)], dim=1)),
            "txt": self.txtmlp(self.txtfusion(layers, options)),
            "img_ids": torch.cat([_places(item, index) for index, item in enumerate((padded, *seen))], dim=1),
            "txt_ids": torch.zeros(x.shape[0], context.shape[1], len(AXES), device=x.device),
            "transformer_options": options,
        }
        for patch in options.get("patches", {}).get("post_input", ()):
            streams = {**streams, **patch(streams)}
        text, image = streams["txt"], streams["img"]
        pe = rotations(torch.cat([streams["txt_ids"], streams["img_ids"]], dim=1), AXES, THETA)
        tokens = torch.cat([text, image], dim=1)
        first = text.shape[1]
        drawn = slice(first, first + patches_of(padded).shape[1])
        time = self._time(timesteps, x.dtype)
        vec: Modulator = self.tproj(time)
        if seen and ref_latents_method == TIME_ZERO_METHOD:
            at_zero = self.tproj(self._time(torch.zeros_like(timesteps), x.dtype))
            vec = Stretches((drawn.stop, tokens.shape[1] - drawn.stop), (self.tproj(time), at_zero))
        for block in self.blocks:
            tokens = block(tokens, vec, pe, options)
        out = image_of(self.last(tokens[:, drawn], time), padded, self.config.in_channels)
        return out[..., : x.shape[-2], : x.shape[-1]].reshape(x.shape)

    def _time(self, timesteps: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the time embedded [B, 1, D]."""
        sinusoids = timestep_embedding(timesteps * TIME_FACTOR, self.config.time_width)
        out: torch.Tensor = self.tmlp(sinusoids.to(dtype).unsqueeze(1))
        return out


def _flat(latent: torch.Tensor) -> torch.Tensor:
    """Return the latent [B, C, 1, h, w] of an image without its frame: [B, C, h, w]."""
    return latent.flatten(1, 2) if latent.ndim == 5 else latent


def _places(latent: torch.Tensor, index: int) -> torch.Tensor:
    places = image_places(latent.shape[-2] // PATCH, latent.shape[-1] // PATCH, index, latent.device)
    return places.expand(latent.shape[0], -1, -1)
