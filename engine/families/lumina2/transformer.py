"""The transformer of Lumina-Image 2.0 (Qin et al. 2025, arXiv 2503.21758) and of Z-Image (Cai et al. 2025, 2511.22699).

Blocks that refine text and image by themselves are followed by blocks for both in one sequence. Norms stand on both
sides of attention and feed-forward layers, and the time scales and gates what lies between them. Places are rotations
(Su et al. 2021, arXiv 2104.09864) on three axes: token of the text, row, column. `B` batch, `C` channels, `h w` latent
cells, `L` tokens of text, `T` tokens of text and image, `D` width, `H` heads. Module names are those of the original
checkpoints. The output is the noise minus the image, as other flow networks give it.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches["noise_refiner"]` and
`patches["double_block"]` have functions of the image's tokens behind each block of the kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import PATCH, image_channels_last, pad_to_patches, patches_channels_last
from darkroom.engine.layers.rope_options import axis_positions
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

SINUSOID_WIDTH = 256  # of the time
LAST_NORM_EPS = 1e-6
PAD_MULTIPLE = 32  # tokens
MARK = "noise_refiner.0.attention.k_norm.weight"
TIME_LAYER = "layers.0.adaLN_modulation.0.weight"  # the first of a block's modulation where no SiLU comes before it
PAD_TOKEN = "cap_pad_token"
POOLED = "clip_text_pooled_proj.0.weight"  # of networks that read a pooled output beside the time
FLOAT32_EPS = 2.0**-23


@dataclass(frozen=True, slots=True)
class Lumina2Config:
    """Configuration of the network.

    `axes` are the channels of a head that rotate by each axis, with angles from `theta`. The time, times `time_factor`,
    is embedded by a layer of `time_inner` into `time_width`; with `activates_time` blocks pass it through SiLU. With
    `pads_tokens` text and image are filled up to multiples of 32 tokens. `has_last_norm`: the file has the factors of
    a norm that nothing uses. `query_eps` None is the least difference from 1 of the computed type. A patch has
    `patch` cells a side.
    """

    width: int
    heads: int
    key_heads: int
    inner_width: int
    num_layers: int
    context_dim: int
    time_width: int
    time_inner: int
    num_refiners: int = 2
    in_channels: int = 16
    axes: tuple[int, int, int] = (32, 32, 32)
    theta: float = 10000.0
    time_factor: float = 1.0
    activates_time: bool = True
    pads_tokens: bool = False
    has_last_norm: bool = False
    query_eps: float | None = None
    patch: int = PATCH

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def lumina2_config(shapes: Shapes) -> Lumina2Config:
    """Return the configuration of the network with these tensors (names without prefix).

    One whose blocks do not pass the time through SiLU is Z-Image's, with its axes of places and unit of time.
    """
    width, in_width = shapes["x_embedder.weight"]
    rows = shapes["layers.0.attention.qkv.weight"][0]
    (head_width,) = shapes[MARK]
    heads = shapes["layers.0.attention.out.weight"][1] // head_width
    time_width, time_inner = shapes["t_embedder.mlp.2.weight"]
    is_plain = TIME_LAYER in shapes
    return Lumina2Config(
        width=width,
        heads=heads,
        key_heads=(rows // head_width - heads) // 2,
        inner_width=shapes["layers.0.feed_forward.w1.weight"][0],
        num_layers=count_children(shapes, "layers"),
        context_dim=shapes["cap_embedder.1.weight"][1],
        time_width=time_width,
        time_inner=time_inner,
        num_refiners=count_children(shapes, "noise_refiner"),
        in_channels=in_width // PATCH**2,
        axes=(32, 48, 48) if is_plain else (32, 32, 32),
        theta=256.0 if is_plain else 10000.0,
        time_factor=1000.0 if is_plain else 1.0,
        activates_time=not is_plain,
        pads_tokens=PAD_TOKEN in shapes,
        has_last_norm="norm_final.weight" in shapes,
        query_eps=FLOAT32_EPS if is_plain else None,
    )


def text_places(num_tokens: int, first: int, device: torch.device) -> torch.Tensor:
    """Return the places [1, L, 3] of a text, from `first` on the first axis."""
    places = torch.zeros(1, num_tokens, 3, device=device)
    places[..., 0] = torch.arange(first, first + num_tokens, device=device)
    return places


def image_places(
    rows: int, columns: int, index: int, device: torch.device, options: Options | None = None
) -> torch.Tensor:
    """Return the places [1, rows * columns, 3] of an image, at `index` of the first axis.

    The transformer options may scale and shift rows and columns.
    """
    places = torch.zeros(rows, columns, 3, device=device)
    places[..., 0] = index
    places[..., 1] = axis_positions(rows, "y", options, device)[:, None]
    places[..., 2] = axis_positions(columns, "x", options, device)[None, :]
    return places.flatten(0, 1).unsqueeze(0)


# --- layers ----------------------------------------------------------------------------------------------------------


class JointAttention(nn.Module):
    def __init__(self, config: Lumina2Config) -> None:
        super().__init__()
        width = config.head_width
        self.heads, self.key_heads, self.head_width = config.heads, config.key_heads, width
        self.qkv = Linear(config.width, (config.heads + 2 * config.key_heads) * width, bias=False)
        self.out = Linear(config.heads * width, config.width, bias=False)
        self.q_norm, self.k_norm = (RmsNorm(width, config.query_eps) for _ in range(2))
        self.rotary_heads = RotaryHeads(token_dim=1)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None, pe: torch.Tensor, options: Options | None
    ) -> torch.Tensor:
        """Return [B, T, D]. `mask` [B, 1, 1, T] is added to the scores, `pe` rotates (`rotations`)."""
        heads = self.qkv(x).view(*x.shape[:2], -1, self.head_width)
        q, k, v = torch.split(heads, [self.heads, self.key_heads, self.key_heads], dim=2)
        q, k = self.rotary_heads([(q, self.q_norm)], [(k, self.k_norm)], pe.transpose(1, 2))
        q, k, v = (item.transpose(1, 2) for item in (q, k, v))  # [B, heads, T, W]
        shared = self.heads // self.key_heads
        if shared > 1:
            k, v = (item.repeat_interleave(shared, dim=1) for item in (k, v))
        attended = optimized_attention(q, k, v, self.heads, mask=mask, skip_reshape=True, transformer_options=options)
        out: torch.Tensor = self.out(attended)
        return out


class FeedForward(nn.Module):
    def __init__(self, config: Lumina2Config) -> None:
        super().__init__()
        self.w1, self.w3 = (Linear(config.width, config.inner_width, bias=False) for _ in range(2))
        self.w2 = Linear(config.inner_width, config.width, bias=False)
        self.activation = GatedActivation(clamps_product=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.w2(self.activation(self.w1(x), self.w3(x)))
        return out


class JointBlock(nn.Module):
    """A block with norms on both sides of attention and feed-forward layers, modulated by the time or by nothing."""

    def __init__(self, config: Lumina2Config, *, is_modulated: bool = True) -> None:
        super().__init__()
        self.attention = JointAttention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm1, self.attention_norm2, self.ffn_norm1, self.ffn_norm2 = (
            RmsNorm(config.width, 1e-5) for _ in range(4)
        )
        self.adaptive_norm, self.residual = (
            AdaptiveNorm("none"),
            GatedResidual(has_tanh=True, clamps_change=is_modulated),
        )
        self.residual_norm = ResidualNorm(GatedResidual(has_tanh=True, clamps_change=True), self.adaptive_norm)
        if is_modulated:
            layer = Linear(config.time_width, 4 * config.width)
            self.adaLN_modulation = nn.Sequential(nn.SiLU(), layer) if config.activates_time else nn.Sequential(layer)

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None,
        pe: torch.Tensor,
        time: Modulator | None = None,
        options: Options | None = None,
    ) -> torch.Tensor:
        """Return [B, T, D]. A modulated block needs `time` [B, time width], or one for each stretch of tokens."""
        scale = gate = inner_scale = inner_gate = None
        if time is not None:
            scale, gate, inner_scale, inner_gate = self._modulators(time)
        attended = self.attention(self.adaptive_norm(x, scale, norm=self.attention_norm1), mask, pe, options)
        x, normed = self.residual_norm(
            x, attended, gate, inner_scale, change_norm=self.attention_norm2, norm=self.ffn_norm1
        )
        out: torch.Tensor = self.residual(x, self.feed_forward(normed), inner_gate, self.ffn_norm2)
        return out

    def _modulators(self, time: Modulator) -> Sequence[Modulator]:
        """Return scale and gate of attention, then of the feed-forward layers."""
        if isinstance(time, Stretches):
            parts = (self.adaLN_modulation(part).unsqueeze(1).chunk(4, dim=2) for part in time.parts)
            return [Stretches(time.lengths, values) for values in zip(*parts, strict=True)]
        made: torch.Tensor = self.adaLN_modulation(time)
        return made.unsqueeze(1).chunk(4, dim=2)


class TimeEmbedder(nn.Module):
    def __init__(self, config: Lumina2Config) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            Linear(SINUSOID_WIDTH, config.time_inner), nn.SiLU(), Linear(config.time_inner, config.time_width)
        )

    def forward(self, time: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        out: torch.Tensor = self.mlp(timestep_embedding(time, SINUSOID_WIDTH).to(dtype))
        return out


class FinalLayer(nn.Module):
    def __init__(self, config: Lumina2Config) -> None:
        super().__init__()
        self.linear = Linear(config.width, config.patch**2 * config.in_channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(config.time_width, config.width))
        self.adaptive_norm = AdaptiveNorm(eps=LAST_NORM_EPS)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.adaptive_norm(x, self.adaLN_modulation(time).unsqueeze(1)))
        return out


# --- network ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drawn:
    """The image that is generated: its latent [B, C, h, w] of whole patches, its time and rotations.

    `clean` is the time of tokens of references, as `time` [B, time width]. `pe` [1, 1, T, pairs, 2, 2] are those of its
    tokens alone.
    """

    padded: torch.Tensor
    time: torch.Tensor
    clean: torch.Tensor
    pe: torch.Tensor

    def times(self, lengths: tuple[int, int]) -> Modulator:
        """Return the times of so many tokens of references, and of others behind them."""
        return Stretches(lengths, (self.clean, self.time)) if lengths[0] else self.time

    def given(self, image: torch.Tensor) -> dict[str, object]:
        """Return the inputs that a patch reads for the image's tokens before its blocks, [B, T, D]."""
        return {"img_input": image, "pe": self.pe, "vec": self.time, "x": self.padded}


class Lumina2Transformer(nn.Module):
    """`forward(x [B, C, h, w], timesteps [B], context [B, L, D])` -> `[B, C, h, w]`.

    All L tokens of the text are read, whatever mask came with it. Built without weights being drawn when a
    `torch.device("meta")` context is open.
    """

    def __init__(self, config: Lumina2Config) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = config.patch
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.x_embedder = Linear(config.patch**2 * config.in_channels, config.width)
        self.noise_refiner = nn.ModuleList(JointBlock(config) for _ in range(config.num_refiners))
        self.context_refiner = nn.ModuleList(JointBlock(config, is_modulated=False) for _ in range(config.num_refiners))
        self.t_embedder = TimeEmbedder(config)
        self.cap_embedder = nn.Sequential(RmsNorm(config.context_dim, 1e-5), Linear(config.context_dim, config.width))
        self.layers = nn.ModuleList(JointBlock(config) for _ in range(config.num_layers))
        if config.has_last_norm:
            self.norm_final = RmsNorm(config.width, 1e-5)
        self.add_head()
        if config.pads_tokens:
            self.x_pad_token, self.cap_pad_token = (nn.Parameter(torch.empty(1, config.width)) for _ in range(2))

    def add_head(self) -> None:
        """Add the layers behind the blocks."""
        self.final_layer = FinalLayer(self.config)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.x_embedder.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        height, width = x.shape[-2:]
        padded = pad_to_patches(x, self.patch_size)
        time = self.time_of(timesteps, x.dtype)
        text, text_places, after = self.embedded_text(context)
        text_pe = self.rotations(text_places)
        text = self.refined_text(text, text_pe, transformer_options)
        image, places = self.embedded_image(padded, after, transformer_options)
        drawn = Drawn(padded, time, time, self.rotations(places))
        image = self.refined_image(image, drawn.pe, drawn, text, transformer_options)
        pe = torch.cat([text_pe, drawn.pe], dim=2)
        out = self.through(torch.cat([text, image], dim=1), pe, drawn, image, transformer_options)
        return -self.image_of(out, drawn)[..., :height, :width]

    def time_of(self, timesteps: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the embedded time [B, time width]."""
        out: torch.Tensor = self.t_embedder((1.0 - timesteps) * self.config.time_factor, dtype)
        return out

    def embedded_text(self, context: torch.Tensor, after: int = 0) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return a text [B, L, D], its positions [1, L, 3] behind `after` on the first axis, and the one behind it."""
        text = self.cap_embedder(context)
        first = after
        if self.config.pads_tokens:
            text, first = filled_up(text, self.cap_pad_token), after + 1
        return text, text_places(text.shape[1], first, text.device), first + text.shape[1]

    def refined_text(self, text: torch.Tensor, pe: torch.Tensor, options: Options | None) -> torch.Tensor:
        """Return the text [B, L, D] behind its own blocks."""
        for block in self.context_refiner:
            text = block(text, None, pe, options=options)
        return text

    def embedded_image(
        self, padded: torch.Tensor, index: int, options: Options | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return an image [B, T, D] and its positions [1, T, 3]. Filling tokens have the place of no text or row."""
        image = self.x_embedder(patches_channels_last(padded, self.patch_size))
        rows, columns = (side // self.patch_size for side in padded.shape[-2:])
        places = image_places(rows, columns, index, padded.device, options)
        if self.config.pads_tokens:
            image = filled_up(image, self.x_pad_token)
            places = functional.pad(places, (0, 0, 0, image.shape[1] - places.shape[1]))
        return image, places

    def refined_image(
        self, image: torch.Tensor, pe: torch.Tensor, drawn: Drawn, text: torch.Tensor, options: Options | None
    ) -> torch.Tensor:
        """Return images [B, T, D] behind their own blocks. The one that is generated is last."""
        first = image.shape[1] - drawn.pe.shape[2]
        patches = {} if options is None else options.get("patches", {})
        given = {
            **drawn.given(image[:, first:]), "txt": text, "transformer_options": options, "block_type": "noise_refiner",
        }  # fmt: skip
        lengths = (first, image.shape[1] - first)
        for number, block in enumerate(self.noise_refiner):
            image = block(image, None, pe, drawn.times(lengths), options)
            for patch in patches.get("noise_refiner", ()):
                out = patch({**given, "img": image[:, first:], "block_index": number})
                image = torch.cat([image[:, :first], out["img"]], dim=1) if "img" in out else image
        return image

    def through(
        self,
        tokens: torch.Tensor,
        pe: torch.Tensor,
        drawn: Drawn,
        image: torch.Tensor,
        options: Options | None,
        num_clean: int = 0,
    ) -> torch.Tensor:
        """Return the tokens [B, T, D] of the generated image, the last of those given, behind all blocks.

        `num_clean` tokens before the others are those of references.
        """
        num_drawn = drawn.pe.shape[2]
        first = tokens.shape[1] - num_drawn
        options_of_patches = {} if options is None else options
        given = {**drawn.given(image[:, -num_drawn:]), "transformer_options": options_of_patches}
        time = drawn.times((num_clean, tokens.shape[1] - num_clean))
        for index, layer in enumerate(self.layers):
            tokens = layer(tokens, None, pe, time, options)
            for patch in options_of_patches.get("patches", {}).get("double_block", ()):
                inputs = {**given, "img": tokens[:, first:], "txt": tokens[:, :first], "block_index": index}
                out = patch(inputs)
                tokens = torch.cat([out.get("txt", inputs["txt"]), out.get("img", inputs["img"])], dim=1)
        return tokens[:, first:]

    def image_of(self, tokens: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        """Return the generated image [B, C, h, w], of whole patches, from its tokens and those that fill it up."""
        height, width = drawn.padded.shape[-2:]
        num_patches = height * width // self.patch_size**2
        out = self.final_layer(tokens[:, :num_patches], drawn.time)
        return image_channels_last(out, height, width, self.patch_size)

    def rotations(self, places: torch.Tensor) -> torch.Tensor:
        """Return the rotations [1, 1, T, pairs, 2, 2] of positions [1, T, 3]."""
        return rotations(places, self.config.axes, self.config.theta)


def filled_up(tokens: torch.Tensor, filling: torch.Tensor, multiple: int = PAD_MULTIPLE) -> torch.Tensor:
    """Return tokens [B, T, D] with `filling` [1, D] behind them, up to a multiple of that many tokens."""
    missing = -tokens.shape[1] % multiple
    behind = filling.to(tokens).expand(tokens.shape[0], missing, -1)
    return torch.cat([tokens, behind], dim=1) if missing else tokens
