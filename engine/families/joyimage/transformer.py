"""The transformer of JoyAI-Image (JD 2026, https://github.com/jdopensource/JoyAI-Image-Edit), of any width and depth.

All blocks have two streams, one for images and one for the text. Reference images follow the image that is generated
in its stream, each at frames of its own. Positions are rotations (Su et al. 2021, arXiv 2104.09864) by frame, row and
column; the text has none. The time modulates all blocks alike, each adds a table of its own. `B` batch, `C` channels,
`F h w` latent cells, `T` tokens of images, `L` of text, `D` hidden size, `H` heads. Module names are those of the
published checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions by `("double_block", index)`, called with the block's inputs and `{"original_block": ...}`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.wan.transformer import video_places
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import BlockFunction
from darkroom.engine.layers.feed_forward import FeedForward
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import PATCH, pad_to_patches, tokens_of
from darkroom.engine.layers.rotary import AXES, rotations
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedResidual,
    ResidualNorm,
    RotaryHeads,
)
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

HEAD_DIM = sum(AXES)
TIME_DIM = 256
PATCHES = (1, PATCH, PATCH)
MODULATIONS = 6
MARK = "double_blocks.0.attn.img_attn_qkv.weight"
FIRST, TEXT = "img_in.weight", "condition_embedder.text_embedder.linear_1.weight"

Streams = tuple[torch.Tensor, torch.Tensor]  # images [B, T, D] and text [B, L, D]


@dataclass(frozen=True, slots=True)
class JoyImageConfig:
    """Configuration of the network. Channels are those of the latent."""

    hidden_size: int = 4096
    num_layers: int = 40
    context_dim: int = 4096
    intermediate_size: int = 16384
    in_channels: int = 16

    @property
    def heads(self) -> int:
        return self.hidden_size // HEAD_DIM


def joyimage_config(shapes: Shapes) -> JoyImageConfig:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    hidden_size, in_channels = shapes[FIRST][:2]
    return JoyImageConfig(
        hidden_size=hidden_size,
        num_layers=count_children(shapes, "double_blocks"),
        context_dim=shapes[TEXT][1],
        intermediate_size=shapes["double_blocks.0.img_mlp.net.0.proj.weight"][0],
        in_channels=in_channels,
    )


def grid_of(latent: torch.Tensor) -> tuple[int, int, int]:
    """Return the frames, rows and columns of patches of a latent [B, C, F, h, w]."""
    frames, rows, columns = latent.shape[2:]
    return frames, -(-rows // PATCH), -(-columns // PATCH)


def positions_of(grids: Sequence[tuple[int, int, int]], device: torch.device) -> torch.Tensor:
    """Return the positions [1, T, 3] of the patches of images of these frames, rows and columns, in their order.

    Frames count on from image to image, rows and columns begin anew.
    """
    parts, first = [], 0
    for frames, rows, columns in grids:
        parts.append(video_places(frames, rows, columns, device=device, first_frame=first))
        first += frames
    return torch.cat(parts, dim=1)


class Modulation(nn.Module):
    """`forward(time [B, 6, D])` -> shift, scale, gate of attention, and of the feed-forward layers, [B, 1, D] each."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.modulate_table = nn.Parameter(torch.zeros(1, MODULATIONS, hidden_size))

    def forward(self, time: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.modulate_table.to(time) + time).chunk(MODULATIONS, dim=1)


class JointAttention(nn.Module):
    """Self-attention over images and text together, each with its own projections."""

    def __init__(self, config: JoyImageConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.img_attn_qkv, self.txt_attn_qkv = Linear(size, 3 * size), Linear(size, 3 * size)
        self.img_attn_q_norm, self.img_attn_k_norm = RmsNorm(HEAD_DIM), RmsNorm(HEAD_DIM)
        self.txt_attn_q_norm, self.txt_attn_k_norm = RmsNorm(HEAD_DIM), RmsNorm(HEAD_DIM)
        self.img_attn_proj, self.txt_attn_proj = Linear(size, size), Linear(size, size)
        self.rotary_heads = RotaryHeads(token_dim=1)

    def forward(self, img: torch.Tensor, txt: torch.Tensor, pe: torch.Tensor, options: Options | None) -> Streams:
        """Return images [B, T, D] and text [B, L, D]. `pe` [1, T, 1, 64, 2, 2] rotates the images' tokens."""
        q, k, v = self._heads(self.img_attn_qkv(img))
        text_q, text_k, text_v = self._heads(self.txt_attn_qkv(txt))
        q, k = self.rotary_heads([(q, self.img_attn_q_norm)], [(k, self.img_attn_k_norm)], pe)
        text_q, text_k = self.rotary_heads([(text_q, self.txt_attn_q_norm)], [(text_k, self.txt_attn_k_norm)], None)
        q, k, v = (torch.cat(part, dim=1) for part in ((q, text_q), (k, text_k), (v, text_v)))  # [B, T + L, H, 128]
        attended = optimized_attention(
            q.flatten(2), k.flatten(2), v.flatten(2), q.shape[2], transformer_options=options
        )
        num_tokens = img.shape[1]
        return self.img_attn_proj(attended[:, :num_tokens]), self.txt_attn_proj(attended[:, num_tokens:])

    def _heads(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return queries, keys and values [B, T, H, 128] of their product [B, T, 3 * D]."""
        return x.view(*x.shape[:2], 3, -1, HEAD_DIM).unbind(2)


class JoyImageBlock(nn.Module):
    def __init__(self, config: JoyImageConfig) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.img_mod, self.txt_mod = Modulation(size), Modulation(size)
        self.img_mlp, self.txt_mlp = FeedForward(size, inner), FeedForward(size, inner)
        self.attn = JointAttention(config)
        self.adaptive_norm, self.residual = AdaptiveNorm(), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self, img: torch.Tensor, txt: torch.Tensor, vec: torch.Tensor, pe: torch.Tensor, options: Options | None
    ) -> Streams:
        """Return images [B, T, D] and text [B, L, D]. `vec` is the time [B, 6, D]."""
        shift, scale, gate, *inner = self.img_mod(vec)
        txt_shift, txt_scale, txt_gate, *txt_inner = self.txt_mod(vec)
        image, text = self.attn(
            self.adaptive_norm(img, scale, shift), self.adaptive_norm(txt, txt_scale, txt_shift), pe, options
        )
        img, normed = self.residual_norm(img, image, gate, inner[1], inner[0])
        img = self.residual(img, self.img_mlp(normed), inner[2])
        txt, normed = self.residual_norm(txt, text, txt_gate, txt_inner[1], txt_inner[0])
        return img, self.residual(txt, self.txt_mlp(normed), txt_inner[2])


class TwoLayers(nn.Module):
    """Two matrices with an activation between them."""

    def __init__(self, in_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = Linear(in_dim, hidden_size), Linear(hidden_size, hidden_size)


class ConditionEmbedder(nn.Module):
    """`forward(times [B], context [B, L, D'])` -> the time [B, 6, D] and the text [B, L, D]."""

    def __init__(self, config: JoyImageConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.time_embedder, self.text_embedder = TwoLayers(TIME_DIM, size), TwoLayers(config.context_dim, size)
        self.time_proj = Linear(size, MODULATIONS * size)

    def forward(self, times: torch.Tensor, context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        time, text = self.time_embedder, self.text_embedder
        waves = timestep_embedding(times, TIME_DIM).to(context.dtype)
        embedded = time.linear_2(functional.silu(time.linear_1(waves)))
        modulations = self.time_proj(functional.silu(embedded)).unflatten(1, (MODULATIONS, -1))
        return modulations, text.linear_2(functional.gelu(text.linear_1(context), approximate="tanh"))


class JoyImageTransformer(nn.Module):
    """`forward(x [B, C, F, h, w], timesteps [B], context [B, L, D'])` -> its prediction `[B, C, F, h, w]`.

    `ref_latents` are reference images [1 or B, C, F', h', w'], whose tokens follow those of `x`.
    """

    def __init__(self, config: JoyImageConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = PATCH
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        size = config.hidden_size
        self.img_in = nn.Conv3d(config.in_channels, size, PATCHES, stride=PATCHES)
        self.condition_embedder = ConditionEmbedder(config)
        self.double_blocks = nn.ModuleList(JoyImageBlock(config) for _ in range(config.num_layers))
        self.norm_out = AdaptiveNorm()
        self.proj_out = Linear(size, config.in_channels * math.prod(PATCHES))

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.img_in.weight.dtype

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
        **kwargs: object,
    ) -> torch.Tensor:
        """Predict; there is no `y` and no `control` for it."""
        options = {} if transformer_options is None else transformer_options
        images = [x, *ref_latents]
        tokens = [tokens_of(self.img_in(pad_to_patches(image, PATCH))) for image in images]
        img = torch.cat([item.expand(x.shape[0], -1, -1) for item in tokens], dim=1)
        vec, txt = self.condition_embedder(timesteps, context)
        pe = rotations(positions_of([grid_of(image) for image in images], x.device)).transpose(1, 2)
        img = self._blocks(img, txt, vec, pe, options)
        predicted: torch.Tensor = self.proj_out(self.norm_out(img[:, : tokens[0].shape[1]]))
        return self._latent(predicted, x)

    def _blocks(
        self, img: torch.Tensor, txt: torch.Tensor, vec: torch.Tensor, pe: torch.Tensor, options: Options
    ) -> torch.Tensor:
        """Return the images' tokens [B, T, D] after all blocks."""
        replaced = options.get("patches_replace", {}).get("dit", {})
        for index, block in enumerate(self.double_blocks):
            replacement = replaced.get(("double_block", index))
            if replacement is None:
                img, txt = block(img, txt, vec, pe, options)
            else:
                given = {"img": img, "txt": txt, "vec": vec, "pe": pe, "transformer_options": options}
                out = replacement(given, {"original_block": _as_function(block)})
                img, txt = out["img"], out["txt"]
        return img

    def _latent(self, tokens: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return patches [B, T, 4 * C], channels innermost, as a latent of the size of `like` [B, C, F, h, w]."""
        frames, rows, columns = grid_of(like)
        cells = tokens.view(-1, frames, rows, columns, PATCH, PATCH, self.in_channels)
        latent = cells.permute(0, 6, 1, 2, 4, 3, 5).reshape(-1, self.in_channels, frames, rows * PATCH, columns * PATCH)
        return latent[..., : like.shape[-2], : like.shape[-1]]


def _as_function(block: nn.Module) -> BlockFunction:
    """Return a block in the form in which custom nodes call it."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        img, txt = block(args["img"], args["txt"], args["vec"], args["pe"], args.get("transformer_options"))
        return {"img": img, "txt": txt}

    return original
