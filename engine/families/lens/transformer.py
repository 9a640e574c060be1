"""The transformer of Lens (Microsoft 2026), of any width and depth: two streams that read four layers of GPT-OSS.

Each layer of the text has its own norm, then a projection joins them. Positions are rotations (Su et al. 2021, arXiv
2104.09864) by frame, row and column, which are counted from the middle of the image; the text continues on all axes
where the longer side ends. `B` batch, `C` channels, `h w` latent cells, `T` tokens of the image, `L` of the text, `D`
hidden size, `N` layers of the text. Module names are those of the published checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions by `("double_block", index)`, called with the block's inputs and `{"original_block": ...}`;
`patches["post_input"]` functions of the streams before the blocks, `patches["double_block"]` behind each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.flux.transformer import TIME_FACTOR
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import BlockFunction, Control
from darkroom.engine.layers.feed_forward import GatedFeedForward
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedResidual,
    ResidualNorm,
    RotaryHeads,
)
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

AXES = (8, 28, 28)  # channels of a head that rotate by frame, row and column
HEAD_DIM = sum(AXES)
TIME_DIM = 256
HEAD_EPS, TEXT_EPS = 1e-5, 1e-5
MARK, GATED = "transformer_blocks.0.attn.norm_added_q.weight", "transformer_blocks.0.img_mlp.w1.weight"
TEXT_NORM = "txt_norm.0.weight"

Streams = tuple[torch.Tensor, torch.Tensor]  # image [B, T, D] and text [B, L, D]


@dataclass(frozen=True, slots=True)
class LensConfig:
    """Configuration of the network, which reads `num_text_layers` layers of width `text_dim`."""

    hidden_size: int = 1536
    intermediate_size: int = 4096
    num_layers: int = 48
    in_channels: int = 128
    text_dim: int = 2880
    num_text_layers: int = 4

    @property
    def heads(self) -> int:
        return self.hidden_size // HEAD_DIM

    @property
    def context_dim(self) -> int:
        """Width of a token of the conditioning: all layers side by side."""
        return self.text_dim * self.num_text_layers


def lens_config(shapes: Shapes) -> LensConfig:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    hidden_size, in_channels = shapes["img_in.weight"]
    return LensConfig(
        hidden_size=hidden_size,
        intermediate_size=shapes[GATED][0],
        num_layers=count_children(shapes, "transformer_blocks"),
        in_channels=in_channels,
        text_dim=shapes[TEXT_NORM][0],
        num_text_layers=count_children(shapes, "txt_norm"),
    )


def positions_of(rows: int, columns: int, num_text: int, device: torch.device) -> torch.Tensor:
    """Return the positions [1, T + L, 3] of an image's cells and of a text's tokens behind them."""
    down, across = (torch.arange(side, device=device) - (side - side // 2) for side in (rows, columns))
    grid = torch.meshgrid(down, across, indexing="ij")
    image = torch.stack([torch.zeros_like(grid[0]), *grid], dim=-1).flatten(0, 1)
    first = max(rows // 2, columns // 2)
    text = torch.arange(first, first + num_text, device=device)[:, None].expand(-1, 3)
    return torch.cat([image, text])[None]


class TimeEmbedder(nn.Module):
    """The sinusoids of the times [B] of 0..1 through two layers -> [B, D]."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        layers = {"linear_1": Linear(TIME_DIM, hidden_size), "linear_2": Linear(hidden_size, hidden_size)}
        self.timestep_embedder = nn.ModuleDict(layers)

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        waves = timestep_embedding(TIME_FACTOR * times.to(dtype), TIME_DIM).to(dtype)
        first = functional.silu(self.timestep_embedder["linear_1"](waves))
        out: torch.Tensor = self.timestep_embedder["linear_2"](first)
        return out


class JointAttention(nn.Module):
    """Self-attention over image and text together, each with its own projections."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.heads = hidden_size // HEAD_DIM
        self.norm_q, self.norm_k, self.norm_added_q, self.norm_added_k = (RmsNorm(HEAD_DIM, HEAD_EPS) for _ in range(4))
        self.img_qkv, self.txt_qkv = (Linear(hidden_size, 3 * hidden_size) for _ in range(2))
        self.to_out = nn.ModuleList([Linear(hidden_size, hidden_size)])
        self.to_add_out = Linear(hidden_size, hidden_size)
        self.rotary_heads = RotaryHeads(token_dim=1)

    def forward(self, img: torch.Tensor, txt: torch.Tensor, pe: torch.Tensor, options: Options | None) -> Streams:
        """Return image and text. `pe` [1, T + L, 1, 32, 2, 2] rotates the image's tokens, then the text's."""
        q, k, v = self.img_qkv(img).view(*img.shape[:2], 3, self.heads, HEAD_DIM).unbind(2)  # [B, T, H, 64] each
        text_q, text_k, text_v = self.txt_qkv(txt).view(*txt.shape[:2], 3, self.heads, HEAD_DIM).unbind(2)
        q, k = self.rotary_heads(
            [(q, self.norm_q), (text_q, self.norm_added_q)], [(k, self.norm_k), (text_k, self.norm_added_k)], pe
        )
        v = torch.cat([v, text_v], dim=1)
        attended = optimized_attention(
            q.flatten(2), k.flatten(2), v.flatten(2), self.heads, transformer_options=options
        )
        num_tokens = img.shape[1]
        return self.to_out[0](attended[:, :num_tokens]), self.to_add_out(attended[:, num_tokens:])


class LensBlock(nn.Module):
    def __init__(self, config: LensConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.attn = JointAttention(size)
        self.img_mod, self.txt_mod = (nn.Sequential(nn.SiLU(), Linear(size, 6 * size)) for _ in range(2))
        self.img_norm1, self.img_norm2, self.txt_norm1, self.txt_norm2 = (RmsNorm(size) for _ in range(4))
        self.img_mlp, self.txt_mlp = (GatedFeedForward(config.hidden_size, config.intermediate_size) for _ in range(2))
        self.adaptive_norm, self.residual = AdaptiveNorm("none"), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self, img: torch.Tensor, txt: torch.Tensor, vec: torch.Tensor, pe: torch.Tensor, options: Options | None
    ) -> Streams:
        """Return image [B, T, D] and text [B, L, D]. `vec` is the time [B, D]."""
        shift, scale, gate, *inner = self.img_mod(vec)[:, None].chunk(6, dim=-1)
        txt_shift, txt_scale, txt_gate, *txt_inner = self.txt_mod(vec)[:, None].chunk(6, dim=-1)
        image, text = self.attn(
            self.adaptive_norm(img, scale, shift, self.img_norm1),
            self.adaptive_norm(txt, txt_scale, txt_shift, self.txt_norm1),
            pe,
            options,
        )
        img, normed = self.residual_norm(img, image, gate, inner[1], inner[0], norm=self.img_norm2)
        img = self.residual(img, self.img_mlp(normed), inner[2])
        txt, normed = self.residual_norm(txt, text, txt_gate, txt_inner[1], txt_inner[0], norm=self.txt_norm2)
        return img, self.residual(txt, self.txt_mlp(normed), txt_inner[2])


class LastNorm(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = Linear(hidden_size, 2 * hidden_size)
        self.adaptive_norm = AdaptiveNorm()

    def forward(self, x: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
        scale, shift = self.linear(functional.silu(vec))[:, None].chunk(2, dim=-1)
        out: torch.Tensor = self.adaptive_norm(x, scale, shift)
        return out


class LensTransformer(nn.Module):
    """`forward(x [B, C, h, w], timesteps [B], context [B, L, N * D'])` -> its prediction `[B, C, h, w]`.

    The text may have no tokens. `control` holds a list `input` of additions to the image by block.
    """

    def __init__(self, config: LensConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = 1
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        size = config.hidden_size
        self.time_text_embed = TimeEmbedder(size)
        self.txt_norm = nn.ModuleList(RmsNorm(config.text_dim, TEXT_EPS) for _ in range(config.num_text_layers))
        self.txt_in = Linear(config.context_dim, size)
        self.img_in = Linear(config.in_channels, size)
        self.transformer_blocks = nn.ModuleList(LensBlock(config) for _ in range(config.num_layers))
        self.norm_out = LastNorm(size)
        self.proj_out = Linear(size, config.in_channels)

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
        control: Control | None = None,
        transformer_options: Options | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        """Predict; there is no `y` for it."""
        options = {} if transformer_options is None else transformer_options
        batch, _, rows, columns = x.shape
        img, txt = self.img_in(x.flatten(2).transpose(1, 2)), self._text(context)
        for patch in options.get("patches", {}).get("post_input", ()):
            changed = patch({"img": img, "txt": txt, "transformer_options": options})
            img, txt = changed["img"], changed["txt"]
        vec = self.time_text_embed(timesteps, img.dtype)
        pe = rotations(positions_of(rows, columns, txt.shape[1], x.device), AXES).transpose(1, 2)
        img = self._blocks(img, txt, {"vec": vec, "pe": pe}, x, options, control)
        out: torch.Tensor = self.proj_out(self.norm_out(img, vec))
        return out.transpose(1, 2).reshape(batch, -1, rows, columns)

    def _text(self, context: torch.Tensor) -> torch.Tensor:
        layers = context.chunk(self.config.num_text_layers, dim=-1)
        normed = [norm(layer) for norm, layer in zip(self.txt_norm, layers, strict=True)]
        out: torch.Tensor = self.txt_in(torch.cat(normed, dim=-1))
        return out

    def _blocks(
        self,
        img: torch.Tensor,
        txt: torch.Tensor,
        shared: dict[str, Any],
        x: torch.Tensor,
        options: Options,
        control: Control | None,
    ) -> torch.Tensor:
        """Return the image's tokens [B, T, D] after all blocks."""
        replaced = options.get("patches_replace", {}).get("dit", {})
        patches = options.get("patches", {}).get("double_block", ())
        additions = [] if control is None else control.get("input", [])
        for index, block in enumerate(self.transformer_blocks):
            replacement = replaced.get(("double_block", index))
            if replacement is None:
                img, txt = block(img, txt, shared["vec"], shared["pe"], options)
            else:
                given = {"img": img, "txt": txt, **shared, "attn_mask": None, "transformer_options": options}
                out = replacement(given, {"original_block": _as_function(block)})
                img, txt = out["img"], out["txt"]
            for patch in patches:
                out = patch({"img": img, "txt": txt, "x": x, "block_index": index, "transformer_options": options})
                img, txt = out["img"], out["txt"]
            addition = additions[index] if index < len(additions) else None
            if addition is not None:
                img = img + functional.pad(addition.to(img.dtype), (0, 0, 0, img.shape[1] - addition.shape[1]))
        return img


def _as_function(block: nn.Module) -> BlockFunction:
    """Return a block in the form in which custom nodes call it."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        img, txt = block(args["img"], args["txt"], args["vec"], args["pe"], args.get("transformer_options"))
        return {"img": img, "txt": txt}

    return original
