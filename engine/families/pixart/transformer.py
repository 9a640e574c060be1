"""The transformer of PixArt (Chen et al. 2023, arXiv 2310.00426; 2024, arXiv 2403.04692), of any width and depth.

Blocks attend to the image, then to the prompt; one layer makes the modulations of all blocks from the time, to which
each block adds a table of its own. `B` batch, `C` channels, `h w` latent cells, `T` tokens, `D` width. Module names are
those of the original checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.filled import filled
from darkroom.engine.layers.patches import PATCH, image_channels_last, tokens_of
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, Gelu, ResidualNorm
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

HEAD_WIDTH = 72
TIME_WIDTH = 256  # of the sinusoids of time and sizes
CELL_PX = 8
BASE_CELLS = 64  # a side: the sizes at which networks were trained are multiples of it
NORM_EPS = 1e-6
NUM_SIZE_PARTS = 3  # of the vector of sizes: height, width, aspect ratio
MARK = "t_block.1.weight"
CAPTIONS = "y_embedder.y_proj.fc1.weight"
SIZES = "ar_embedder.mlp.0.weight"
DROPPED = "y_embedder.y_embedding"  # files of the diffusers library lack it; it is not read when an image is drawn
NUM_CAPTIONS = 300
PLACES = "pos_embed"  # [1, patches, D] of files that hold the places of their size


@dataclass(frozen=True, slots=True)
class PixArtConfig:
    """Configuration of the network.

    `reads_sizes`: it was trained with the image's size and aspect ratio. `interpolation` scales places down, None by
    the size of the latent.
    """

    width: int
    num_blocks: int
    context_dim: int
    reads_sizes: bool = False
    interpolation: float | None = None
    in_channels: int = 4
    out_channels: int = 8  # noise, and a variance that is not used
    inner_width: int = 0
    num_captions: int = 300

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def pixart_config(shapes: Shapes) -> PixArtConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises LookupError for a missing tensor.
    """
    width, context_dim = shapes[CAPTIONS]
    side = None if PLACES not in shapes else math.isqrt(shapes[PLACES][1]) * PATCH
    return PixArtConfig(
        width=width,
        num_blocks=count_children(shapes, "blocks"),
        context_dim=context_dim,
        reads_sizes=SIZES in shapes,
        interpolation=None if side is None else float(side // BASE_CELLS or side / BASE_CELLS),
        in_channels=shapes["x_embedder.proj.weight"][1],
        out_channels=shapes["final_layer.linear.weight"][0] // PATCH**2,
        inner_width=shapes["blocks.0.mlp.fc1.weight"][0],
        num_captions=shapes[DROPPED][0] if DROPPED in shapes else NUM_CAPTIONS,
    )


def sinusoids(places: torch.Tensor, width: int) -> torch.Tensor:
    """Return sines, then cosines of places [T]: [T, width]."""
    steps = torch.arange(width // 2, device=places.device, dtype=places.dtype) / (width / 2.0)
    angles = places[:, None] * (1.0 / 10000**steps)[None]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def square_places(rows: int, columns: int, width: int, interpolation: float | None, like: torch.Tensor) -> torch.Tensor:
    """Return the places [1, T, D] of an image's patches, whose shorter and longer sides count alike.

    Sizes are rounded to multiples of 64 cells, at least one.
    """
    cells = (rows * PATCH + columns * PATCH) // 2
    multiple = max(1, round(cells / BASE_CELLS))
    scale = float(multiple) if interpolation is None else interpolation
    base = multiple * BASE_CELLS // PATCH
    down = torch.arange(rows, device=like.device, dtype=like.dtype) / (rows / base) / scale
    across = torch.arange(columns, device=like.device, dtype=like.dtype) / (columns / base) / scale
    row, column = torch.meshgrid(down, across, indexing="ij")
    return torch.cat([sinusoids(column.flatten(), width // 2), sinusoids(row.flatten(), width // 2)], dim=1)[None]


class Embedder(nn.Module):
    """Sinusoids of numbers, through two layers: [B] -> [B, D]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(TIME_WIDTH, width), nn.SiLU(), Linear(width, width))

    def forward(self, numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        out: torch.Tensor = self.mlp(timestep_embedding(numbers, TIME_WIDTH).to(dtype))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int, out: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = Linear(width, inner), Linear(inner, out)
        self.activation = Gelu("tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(self.activation(self.fc1(x)))
        return out


class CaptionEmbedder(nn.Module):
    """The layers that read the prompt. `y_embedding` stood for dropped prompts in training, and is not used."""

    def __init__(self, config: PixArtConfig) -> None:
        super().__init__()
        self.y_proj = FeedForward(config.context_dim, config.width, config.width)
        self.y_embedding = nn.Parameter(torch.empty(config.num_captions, config.context_dim))

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.y_proj(context)
        return out


class PatchEmbedder(nn.Module):
    def __init__(self, config: PixArtConfig) -> None:
        super().__init__()
        self.proj = Conv2d(config.in_channels, config.width, PATCH, stride=PATCH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches: torch.Tensor = self.proj(x)  # [B, D, h / 2, w / 2]
        return tokens_of(patches)


class ImageAttention(nn.Module):
    def __init__(self, config: PixArtConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = Linear(config.width, 3 * config.width)
        self.proj = Linear(config.width, config.width)

    def forward(self, x: torch.Tensor, options: Options | None) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        out: torch.Tensor = self.proj(optimized_attention(q, k, v, self.heads, transformer_options=options))
        return out


class PromptAttention(nn.Module):
    def __init__(self, config: PixArtConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.q_linear = Linear(config.width, config.width)
        self.kv_linear = Linear(config.width, 2 * config.width)
        self.proj = Linear(config.width, config.width)

    def forward(self, x: torch.Tensor, context: torch.Tensor, options: Options | None) -> torch.Tensor:
        k, v = self.kv_linear(context).chunk(2, dim=-1)
        attended = optimized_attention(self.q_linear(x), k, v, self.heads, transformer_options=options)
        out: torch.Tensor = self.proj(attended)
        return out


class PixArtBlock(nn.Module):
    def __init__(self, config: PixArtConfig) -> None:
        super().__init__()
        self.attn = ImageAttention(config)
        self.cross_attn = PromptAttention(config)
        self.mlp = FeedForward(config.width, config.inner_width or 4 * config.width, config.width)
        self.scale_shift_table = nn.Parameter(torch.empty(6, config.width))
        self.adaptive_norm, self.residual = AdaptiveNorm(eps=NORM_EPS), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, time: torch.Tensor, options: Options | None
    ) -> torch.Tensor:
        """Return the image's tokens [B, T, D]. `time` is [B, 6, D]."""
        parts = (self.scale_shift_table[None].to(x) + time).chunk(6, dim=1)
        x = self.residual(x, self.attn(self.adaptive_norm(x, parts[1], parts[0]), options), parts[2])
        x, normed = self.residual_norm(x, self.cross_attn(x, context, options), None, parts[4], parts[3])
        out: torch.Tensor = self.residual(x, self.mlp(normed), parts[5])
        return out


class FinalLayer(nn.Module):
    def __init__(self, config: PixArtConfig) -> None:
        super().__init__()
        self.linear = Linear(config.width, PATCH * PATCH * config.out_channels)
        self.scale_shift_table = nn.Parameter(torch.empty(2, config.width))
        self.adaptive_norm = AdaptiveNorm(eps=NORM_EPS)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        shift, scale = (self.scale_shift_table[None].to(x) + time[:, None]).chunk(2, dim=1)
        out: torch.Tensor = self.linear(self.adaptive_norm(x, scale, shift))
        return out


class PixArtTransformer(nn.Module):
    """`forward(x [B, C, h, w], timesteps [B], context [B, T, D])` -> the noise `[B, C, h, w]`.

    `c_size` [B, 2] is the height and width in pixels, `c_ar` [B, 1] the height by the width, for networks that read
    sizes; without them those of the latent count. Built without weights being drawn when a `torch.device("meta")`
    context is open.
    """

    is_wrapped = False

    def __init__(self, config: PixArtConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.t_block = nn.Sequential(nn.SiLU(), Linear(config.width, 6 * config.width))
        self.x_embedder = PatchEmbedder(config)
        self.t_embedder = Embedder(config.width)
        self.y_embedder = CaptionEmbedder(config)
        if config.reads_sizes:
            self.csize_embedder, self.ar_embedder = (Embedder(config.width // NUM_SIZE_PARTS) for _ in range(2))
        self.blocks = nn.ModuleList(PixArtBlock(config) for _ in range(config.num_blocks))
        self.final_layer = FinalLayer(config)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.final_layer.linear.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        c_size: torch.Tensor | None = None,
        c_ar: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        """Return the predicted noise. Raises ValueError for a latent of odd height or width."""
        height, width = x.shape[-2:]
        if height % PATCH or width % PATCH:
            raise ValueError(
                f"latent: its sides are not multiples of the patch; got {width} x {height} cells, expected even "
                f"numbers (images in steps of {PATCH * CELL_PX} pixels)"
            )
        rows, columns = height // PATCH, width // PATCH
        tokens = self.x_embedder(x) + square_places(rows, columns, self.config.width, self.config.interpolation, x)
        time = self.t_embedder(timesteps, x.dtype)
        if self.config.reads_sizes:
            time = time + self._sizes(x, c_size, c_ar)
        text = self.y_embedder(context)
        parts = self.t_block(time).view(x.shape[0], 6, -1)
        for block in self.blocks:
            tokens = block(tokens, text, parts, transformer_options)
        out: torch.Tensor = self.final_layer(tokens, time)  # [B, T, 4 * C]
        return image_channels_last(out, height, width)[:, : self.config.in_channels]

    def _sizes(self, x: torch.Tensor, size: torch.Tensor | None, aspect: torch.Tensor | None) -> torch.Tensor:
        """Return the embedded size and aspect ratio of the image [B, D]."""
        batch, _, height, width = x.shape
        own_size = [height * CELL_PX, width * CELL_PX]
        size = filled(own_size, device=x.device, dtype=x.dtype)[None] if size is None else size
        aspect = filled([height / width], device=x.device, dtype=x.dtype)[None] if aspect is None else aspect
        of_size = self.csize_embedder(size.expand(batch, -1).flatten(), x.dtype).view(batch, -1)
        of_aspect = self.ar_embedder(aspect.expand(batch, -1).flatten(), x.dtype).view(batch, -1)
        return torch.cat([of_size, of_aspect], dim=1)
