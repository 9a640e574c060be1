"""The transformer of Wan 2.1 and 2.2 (Wan Team 2025, arXiv 2503.20314, section 4.2), of any width and depth.

Blocks of self-attention over all patches of a video and cross-attention to the text, and to an image where the network
reads what an image encoder saw. Places are rotations (Su et al. 2021, arXiv 2104.09864) by frame, row and column. Each
latent frame may have a noise level of its own. Networks that read more than that are classes of their own beside this
file. `B` batch, `C` channels, `F` latent frames, `h w` latent cells, `T` tokens, `D` width, `H` heads, `N` noise levels
of an item. Module names are those of the original checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions by `("double_block", index)`, called with the block's inputs and `{"original_block": ...}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.block_calls import BlockFunction
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import PATCH, tokens_of
from darkroom.engine.layers.rope_options import ROPE_OPTIONS, axis_positions
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.sinusoids import sinusoids_of_powers
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, Gelu, ResidualNorm, RotaryHeads
from darkroom.engine.layers.unet_layers import Options

HEAD_WIDTH = 128
AXES = (44, 42, 42)  # channels of a head that rotate by frame, row and column
TIME_WIDTH = 256  # of the sinusoids of the time
NORM_EPS, IMAGE_NORM_EPS = 1e-6, 1e-5
NUM_MODULATIONS = 6

MARK = "head.modulation"
FIRST = "patch_embedding.weight"
OF_IMAGE = "blocks.0.cross_attn.k_img.weight"
REFERENCE = "ref_conv.weight"

# Weights that stay float32 in every type of the network, as ComfyUI keeps them: their layers compute in it.
FLOAT32_ENDS = tuple(
    f".{layer}.{weight}" for layer in ("patch_embedding", "vace_patch_embedding") for weight in ("weight", "bias")
)

Inputs = Mapping[str, Any]


class Float32Conv3d(nn.Conv3d):
    """A convolution that computes in float32 from weights of any type, and gives the type of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.float()
        out: torch.Tensor = self._conv_forward(x.float(), self.weight.float(), bias)
        return out.to(x.dtype)


@dataclass(frozen=True, slots=True)
class WanConfig:
    """Configuration of the network. Channels are those of the latent.

    `image_dim` is the width of an image encoder's tokens, 0 for a network that reads none; `image_places` is the
    number of tokens that have places of their own, those of a first and a last image. `reference_channels` are those
    of a reference image's latent, 0 for a network without.
    """

    width: int
    num_blocks: int
    inner_width: int
    context_dim: int = 4096
    in_channels: int = 16
    out_channels: int = 16
    image_dim: int = 0
    image_places: int = 0
    reference_channels: int = 0

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def wan_config(shapes: Shapes) -> WanConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    nothing = (0, 0, 0)
    return WanConfig(
        width=shapes[MARK][-1],
        num_blocks=count_children(shapes, "blocks"),
        inner_width=shapes["blocks.0.ffn.0.weight"][0],
        context_dim=shapes["text_embedding.0.weight"][1],
        in_channels=shapes[FIRST][1],
        out_channels=shapes["head.head.weight"][0] // PATCH**2,
        image_dim=shapes["img_emb.proj.1.weight"][1] if OF_IMAGE in shapes else 0,
        image_places=shapes.get("img_emb.emb_pos", nothing)[1],
        reference_channels=shapes.get(REFERENCE, nothing)[1],
    )


def video_places(
    frames: int,
    rows: int,
    columns: int,
    *,
    device: torch.device,
    first_frame: int = 0,
    options: Mapping[str, object] | None = None,
) -> torch.Tensor:
    """Return the places [1, frames * rows * columns, 3] of a video's patches; `options` may scale and shift them."""
    axes = torch.meshgrid(
        axis_positions(frames, "t", options, device, first=first_frame),
        axis_positions(rows, "y", options, device),
        axis_positions(columns, "x", options, device),
        indexing="ij",
    )
    return torch.stack(axes, dim=-1).flatten(0, 2)[None]


def rotations_at(places: torch.Tensor) -> torch.Tensor:
    """Return the rotations [1, T, 1, 64, 2, 2] of tokens at places [1, T, 3]."""
    return rotations(places, AXES).transpose(1, 2)


def patched(x: torch.Tensor) -> torch.Tensor:
    """Return a video [B, C, F, h, w] with rows and columns wrapped around to whole patches."""
    height, width = x.shape[-2:]
    return functional.pad(x, (0, -width % PATCH, 0, -height % PATCH, 0, 0), mode="circular")


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
    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        width, inner = config.width, config.inner_width
        self.self_attn, self.cross_attn = Attention(width), PromptAttention(config)
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
    ) -> torch.Tensor:
        """Return [B, T, D]. `vec` is [B, N, 6, D]."""
        shift, scale, gate, *second = (self.modulation.to(x).unsqueeze(0) + vec).unbind(2)  # each [B, N, D]
        tokens = x.shape[1]
        normed = self.adaptive_norm(x, spread(scale, tokens), spread(shift, tokens))
        attended = self.self_attn(normed, normed, pe, options)
        x, normed = self.residual_norm(x, attended, spread(gate, tokens), None, None, norm=self.norm3)
        change = self.cross_attn.attend(normed, context, image_tokens, options)
        x, change = self.with_more(x, change, options)
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


@dataclass(slots=True)
class VideoTokens:
    """A video on its way through the blocks.

    `img` [B, T, D]; `levels` [B, N], the noise levels; `pe`, the rotations of all tokens; `first` and `grid`, where the
    video's own tokens begin and their frames, rows and columns.
    """

    img: torch.Tensor
    levels: torch.Tensor
    pe: torch.Tensor
    grid: tuple[int, int, int]
    first: int = 0


class WanTransformer(nn.Module):
    """`forward(x [B, in, F, h, w], timesteps [B] or [B, F], context [B, T, context_dim])` -> `[B, out, F, h, w]`.

    `clip_fea` [B, P, image_dim] is what an image encoder saw, `reference_latent` [B, C, h, w] a reference image,
    `time_dim_concat` [B, C, f, h, w] further frames behind the video. Built without weights being drawn when a
    `torch.device("meta")` context is open.
    """

    block_type: type[WanBlock] = WanBlock

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        width = config.width
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = (1, PATCH, PATCH)
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.patch_embedding = Float32Conv3d(config.in_channels, width, self.patch_size, stride=self.patch_size)
        self.text_embedding = nn.Sequential(
            Linear(config.context_dim, width), nn.GELU(approximate="tanh"), Linear(width, width)
        )
        self.time_embedding = nn.Sequential(Linear(TIME_WIDTH, width), nn.SiLU(), Linear(width, width))
        self.time_projection = nn.Sequential(nn.SiLU(), Linear(width, width * NUM_MODULATIONS))
        self.blocks = nn.ModuleList(self.block_type(config) for _ in range(config.num_blocks))
        self.head = WanHead(config)
        self.img_emb = ImageProjection(config) if config.image_dim else None
        self.ref_conv = None
        if config.reference_channels:
            self.ref_conv = Conv2d(config.reference_channels, width, PATCH, stride=PATCH)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.head.modulation.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        clip_fea: torch.Tensor | None = None,
        time_dim_concat: torch.Tensor | None = None,
        **inputs: Any,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        frames, height, width = x.shape[2:]
        padded = patched(x)
        if time_dim_concat is not None:
            padded = torch.cat([padded, patched(time_dim_concat)], dim=2)
        tokens = self.tokens_of(padded, timesteps, {**inputs, ROPE_OPTIONS: options.get(ROPE_OPTIONS)})
        time = self.time_embedding(sinusoids_of_powers(tokens.levels.flatten(), TIME_WIDTH).to(tokens.img.dtype))
        time = time.view(x.shape[0], -1, time.shape[-1])  # [B, N, D]
        text, image_tokens = self._read(context, clip_fea)
        vec = self.time_projection(time).view(*time.shape[:2], NUM_MODULATIONS, -1)
        shared = {"txt": text, "vec": vec, "pe": tokens.pe, "transformer_options": options}
        img = self.through_blocks(tokens, shared, image_tokens, inputs)
        count = math.prod(tokens.grid)
        patches: torch.Tensor = self.head(img, time)[:, tokens.first : tokens.first + count]
        patches = patches.view(-1, *tokens.grid, PATCH, PATCH, self.config.out_channels)
        video = patches.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)  # [B, C, F, h, w]
        return video[:, :, :frames, :height, :width]

    def embedded(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Return the patches [B, D, F, rows, columns] of a video of whole patches."""
        cells: torch.Tensor = self.patch_embedding(x)
        return cells

    def tokens_of(self, x: torch.Tensor, timesteps: torch.Tensor, inputs: Inputs) -> VideoTokens:
        """Return the tokens of a video of whole patches, and of a reference image before them."""
        cells = self.embedded(x, inputs)
        frames, rows, columns = cells.shape[2:]
        levels = timesteps.view(x.shape[0], -1)
        img = tokens_of(cells)
        reference: torch.Tensor | None = inputs.get("reference_latent")
        if self.ref_conv is None or reference is None:
            pe = rotations_at(video_places(frames, rows, columns, device=x.device, options=inputs))
            return VideoTokens(img, levels, pe, (frames, rows, columns))
        before = self.ref_conv(reference).flatten(2).transpose(1, 2)
        pe = rotations_at(video_places(frames + 1, rows, columns, device=x.device, options=inputs))
        joined = torch.cat([before, img], dim=1)
        return VideoTokens(joined, levels, pe, (frames, rows, columns), first=before.shape[1])

    def _read(self, context: torch.Tensor, clip_fea: torch.Tensor | None) -> tuple[torch.Tensor, int | None]:
        """Return the tokens of image and text [B, S, D], and how many of them are the image's."""
        text: torch.Tensor = self.text_embedding(context)
        if clip_fea is None:
            return text, None
        if self.img_emb is not None:
            text = torch.cat([self.img_emb(clip_fea), text], dim=1)
        return text, clip_fea.shape[-2]

    def through_blocks(
        self, tokens: VideoTokens, shared: dict[str, Any], image_tokens: int | None, inputs: Inputs
    ) -> torch.Tensor:
        """Return the tokens [B, T, D] behind all blocks."""
        img = tokens.img
        memory = self.beside_blocks(tokens, shared, inputs)
        replaced = shared["transformer_options"].get("patches_replace", {}).get("dit", {})
        for index, block in enumerate(self.blocks):
            original = _as_function(block, image_tokens)
            replacement = replaced.get(("double_block", index))
            given = {"img": img, **shared}
            out = original(given) if replacement is None else replacement(given, {"original_block": original})
            img = self.after_block(index, out["img"], tokens, memory)
        return img

    def beside_blocks(self, tokens: VideoTokens, shared: dict[str, Any], inputs: Inputs) -> Any:
        """Return the values of the inputs that `after_block` needs: none here."""
        return None

    def after_block(self, index: int, img: torch.Tensor, tokens: VideoTokens, memory: Any) -> torch.Tensor:
        """Return the tokens behind a block with what the network reads beside the video: as they are here."""
        return img


def _as_function(block: nn.Module, image_tokens: int | None) -> BlockFunction:
    """Return a block in the form in which custom nodes call it."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        img = block(args["img"], args["txt"], args["vec"], args["pe"], args["transformer_options"], image_tokens)
        return {"img": img}

    return original
