"""The transformer of Wan 2.1 (Wan Team 2025, arXiv 2503.20314, section 4.2) for text to video, of any width and depth.

Blocks of self-attention over all patches of a video and cross-attention to the text. Places are rotations (Su et al.
2021, arXiv 2104.09864) by frame, row and column. `B` batch, `C` channels, `F` latent frames, `h w` latent cells, `T`
tokens, `D` width, `H` heads. Module names are those of the original checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions by `("double_block", index)`, called with the block's inputs and `{"original_block": ...}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from engine.architectures.attention import optimized_attention
from engine.architectures.block_calls import BlockFunction
from engine.architectures.latent_unet_layers import Options
from engine.architectures.latent_unet_shapes import Shapes, count_children
from engine.architectures.layers import Linear
from engine.architectures.norms import RmsNorm
from engine.architectures.patches import PATCH
from engine.architectures.rotary import rotated, rotations
from engine.architectures.sinusoids import sinusoids_of_powers

HEAD_WIDTH = 128
AXES = (44, 42, 42)  # channels of a head that rotate by frame, row and column
TIME_WIDTH = 256  # of the sinusoids of the time
NORM_EPS = 1e-6
NUM_MODULATIONS = 6

MARK = "head.modulation"
FIRST = "patch_embedding.weight"


@dataclass(frozen=True, slots=True)
class VideoTransformerConfig:
    """Configuration of the network. Channels are those of the latent."""

    width: int
    num_blocks: int
    inner_width: int
    context_dim: int = 4096
    in_channels: int = 16
    out_channels: int = 16

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def video_transformer_config(shapes: Shapes) -> VideoTransformerConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    return VideoTransformerConfig(
        width=shapes[MARK][-1],
        num_blocks=count_children(shapes, "blocks"),
        inner_width=shapes["blocks.0.ffn.0.weight"][0],
        context_dim=shapes["text_embedding.0.weight"][1],
        in_channels=shapes[FIRST][1],
        out_channels=shapes["head.head.weight"][0] // PATCH**2,
    )


def video_places(frames: int, rows: int, columns: int) -> torch.Tensor:
    """Return the places [1, frames * rows * columns, 3] of a video's patches."""
    axes = torch.meshgrid(torch.arange(frames), torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.stack(axes, dim=-1).flatten(0, 2)[None].float()


class Attention(nn.Module):
    """Attention of tokens among each other, or over those of a text; norms are of all heads together."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.q, self.k, self.v, self.o = (Linear(width, width) for _ in range(4))
        self.norm_q, self.norm_k = RmsNorm(width), RmsNorm(width)

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, pe: torch.Tensor | None, options: Options | None
    ) -> torch.Tensor:
        """Return [B, T, D]. `pe` are the rotations [1, T, 1, 64, 2, 2] of both sides' places, None for no places."""
        q, k = self.norm_q(self.q(x)), self.norm_k(self.k(context))
        if pe is not None:
            q, k = (rotated(item.unflatten(-1, (self.heads, HEAD_WIDTH)), pe).flatten(2) for item in (q, k))
        attended = optimized_attention(q, k, self.v(context), self.heads, transformer_options=options)
        out: torch.Tensor = self.o(attended)
        return out


def _normed(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Normalise `x` [B, T, D] and apply shift and scale [B, 1, D]."""
    return torch.addcmul(shift, functional.layer_norm(x, x.shape[-1:], eps=NORM_EPS), 1 + scale)


class VideoBlock(nn.Module):
    def __init__(self, config: VideoTransformerConfig) -> None:
        super().__init__()
        width, inner = config.width, config.inner_width
        self.self_attn, self.cross_attn = Attention(width), Attention(width)
        self.norm3 = nn.LayerNorm(width, eps=NORM_EPS)
        self.ffn = nn.Sequential(Linear(width, inner), nn.GELU(approximate="tanh"), Linear(inner, width))
        self.modulation = nn.Parameter(torch.empty(1, NUM_MODULATIONS, width))

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, vec: torch.Tensor, pe: torch.Tensor, options: Options | None
    ) -> torch.Tensor:
        """Return [B, T, D]. `vec` is [B, 1, 6, D]."""
        shift, scale, gate, *second = (self.modulation.to(x).unsqueeze(0) + vec).unbind(2)  # each [B, 1, D]
        normed = _normed(x, shift, scale)
        x = torch.addcmul(x, self.self_attn(normed, normed, pe, options), gate)
        x = x + self.cross_attn(self.norm3(x), context, None, options)
        return torch.addcmul(x, self.ffn(_normed(x, second[0], second[1])), second[2])


class VideoHead(nn.Module):
    def __init__(self, config: VideoTransformerConfig) -> None:
        super().__init__()
        self.head = Linear(config.width, PATCH**2 * config.out_channels)
        self.modulation = nn.Parameter(torch.empty(1, 2, config.width))

    def forward(self, x: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
        """Return patches [B, T, 4 * C], channels innermost. `vec` is [B, D]."""
        shift, scale = (self.modulation.to(x) + vec[:, None]).chunk(2, dim=1)
        out: torch.Tensor = self.head(_normed(x, shift, scale))
        return out


class VideoTransformer(nn.Module):
    """`forward(x [B, in, F, h, w], timesteps [B], context [B, T, context_dim])` -> `[B, out, F, h, w]`.

    Built without weights being drawn when a `torch.device("meta")` context is open.
    """

    def __init__(self, config: VideoTransformerConfig) -> None:
        super().__init__()
        width = config.width
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = (1, PATCH, PATCH)
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.patch_embedding = nn.Conv3d(config.in_channels, width, self.patch_size, stride=self.patch_size)
        self.text_embedding = nn.Sequential(
            Linear(config.context_dim, width), nn.GELU(approximate="tanh"), Linear(width, width)
        )
        self.time_embedding = nn.Sequential(Linear(TIME_WIDTH, width), nn.SiLU(), Linear(width, width))
        self.time_projection = nn.Sequential(nn.SiLU(), Linear(width, width * NUM_MODULATIONS))
        self.blocks = nn.ModuleList(VideoBlock(config) for _ in range(config.num_blocks))
        self.head = VideoHead(config)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.patch_embedding.weight.dtype

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
        options = {} if transformer_options is None else transformer_options
        height, width = x.shape[-2:]
        padded = functional.pad(x, (0, -width % PATCH, 0, -height % PATCH, 0, 0), mode="circular")
        cells = self.patch_embedding(padded)  # [B, D, F, rows, columns]
        grid = cells.shape[2:]
        vec = self.time_embedding(sinusoids_of_powers(timesteps, TIME_WIDTH).to(cells.dtype))  # [B, D]
        shared = {
            "txt": self.text_embedding(context),
            "vec": self.time_projection(vec).view(vec.shape[0], 1, NUM_MODULATIONS, -1),
            "pe": rotations(video_places(*grid).to(x.device), AXES).transpose(1, 2),
            "transformer_options": options,
        }
        replaced = options.get("patches_replace", {}).get("dit", {})
        img = cells.flatten(2).transpose(1, 2)
        for index, block in enumerate(self.blocks):
            original = _as_function(block)
            replacement = replaced.get(("double_block", index))
            inputs = {"img": img, **shared}
            out = original(inputs) if replacement is None else replacement(inputs, {"original_block": original})
            img = out["img"]
        patches: torch.Tensor = self.head(img, vec).view(-1, *grid, PATCH, PATCH, self.config.out_channels)
        video = patches.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)  # [B, C, F, h, w]
        return video[..., :height, :width]


def _as_function(block: nn.Module) -> BlockFunction:
    """Return a block in the form in which custom nodes call it."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"img": block(args["img"], args["txt"], args["vec"], args["pe"], args["transformer_options"])}

    return original
