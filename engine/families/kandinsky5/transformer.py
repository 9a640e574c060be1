"""The transformer of Kandinsky 5 (Kandinsky Lab 2025, arXiv 2511.14993): Image Lite, Video Lite and Video Pro.

A few blocks read the text, then blocks of the latent attend to each other's tokens and to the text. Both are modulated
by the time, to which the text's pooled output is added. Positions are rotations (Su et al. 2021, arXiv 2104.09864) by
frame, row and column, of the text by its token. `B` batch, `C` channels, `F` latent frames, `h w` latent cells, `T`
tokens of the latent, `S` of the text, `D` hidden size. Module names are those of the published checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions by `("double_block", index)`, called with the block's inputs and `{"original_block": ...}`. A copy of it for
the call has `block_index` and `total_blocks`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from darkroom.engine.families.kandinsky5.blocks import (
    OutLayer,
    TextBlock,
    TextEmbeddings,
    TimeEmbeddings,
    VisualBlock,
    VisualEmbeddings,
)
from darkroom.engine.families.kandinsky5.config import Kandinsky5Config
from darkroom.engine.layers.block_calls import BlockFunction
from darkroom.engine.layers.patches import PATCH, pad_to_patches
from darkroom.engine.layers.rope_options import ROPE_OPTIONS, axis_positions
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.unet_layers import Options

Grid = tuple[int, int, int]  # frames, and rows and columns of patches


def video_patches(x: torch.Tensor) -> torch.Tensor:
    """Return the patches of a latent [B, C, F, h, w] of whole patches as [B, T, 4 * C], channels innermost."""
    batch, channels, frames, height, width = x.shape
    cells = x.reshape(batch, channels, frames, height // PATCH, PATCH, width // PATCH, PATCH)
    return cells.permute(0, 2, 3, 5, 4, 6, 1).reshape(batch, -1, PATCH * PATCH * channels)


def video_of(patches: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Return patches [B, T, C * 4], channels outermost, as a latent [B, C, F, h, w]."""
    frames, rows, columns = grid
    cells = patches.view(patches.shape[0], frames, rows, columns, -1, PATCH, PATCH)
    return cells.permute(0, 4, 1, 2, 5, 3, 6).reshape(patches.shape[0], -1, frames, rows * PATCH, columns * PATCH)


def video_positions(grid: Grid, scale: float, options: Options, device: torch.device) -> torch.Tensor:
    """Return the positions [1, T, 3] of patches by frame, row and column; the last two are divided by `scale`.

    Where the options scale or shift positions, they do so in place of that.
    """
    if options.get(ROPE_OPTIONS) is None:
        options = {ROPE_OPTIONS: {"scale_y": 1.0 / scale, "scale_x": 1.0 / scale}}
    along = [axis_positions(count, axis, options, device) for count, axis in zip(grid, "tyx", strict=True)]
    return torch.stack(torch.meshgrid(*along, indexing="ij"), dim=-1).flatten(0, 2)[None]


def visual_block_function(block: nn.Module) -> BlockFunction:
    """Return a block in the form in which custom nodes call it."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        x = block(args["x"], args["context"], args["time_embed"], args["freqs"], args["transformer_options"])
        return {"x": x}

    return original


class Kandinsky5Transformer(nn.Module):
    """`forward(x [B, in, (F,) h, w], timesteps [B], context [B, S, context_dim], y [B, label_dim])`.

    Returns [B, out, (F,) h, w]. `time_dim_replace` [B, C, f, h, w] stands in place of the first frames of the noisy
    latent: frames that are given. Built without weights being drawn when a `torch.device("meta")` context is open.
    """

    def __init__(self, config: Kandinsky5Config) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = (1, PATCH, PATCH)
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.time_embeddings = TimeEmbeddings(config.hidden_size, config.time_dim)
        self.text_embeddings = TextEmbeddings(config.context_dim, config.hidden_size)
        self.pooled_text_embeddings = TextEmbeddings(config.label_dim, config.time_dim)
        self.visual_embeddings = VisualEmbeddings(config)
        self.text_transformer_blocks = nn.ModuleList(TextBlock(config) for _ in range(config.num_text_blocks))
        self.visual_transformer_blocks = nn.ModuleList(VisualBlock(config) for _ in range(config.num_visual_blocks))
        self.out_layer = OutLayer(config)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.visual_embeddings.in_layer.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        time_dim_replace: torch.Tensor | None = None,
        **_: object,
    ) -> torch.Tensor:
        options: dict[str, Any] = {} if transformer_options is None else {**transformer_options}
        video = x if x.ndim == 5 else x[:, :, None]
        height, width = video.shape[3:]
        if time_dim_replace is not None:
            channels, given = time_dim_replace.shape[1:3]
            video = video.clone()
            video[:, :channels, :given] = time_dim_replace
        padded = pad_to_patches(video, PATCH)
        grid = (padded.shape[2], padded.shape[3] // PATCH, padded.shape[4] // PATCH)
        positions = video_positions(grid, self.config.position_scale(height, width), options, x.device)
        time = self.time_embeddings(timesteps, x.dtype) + self.pooled_text_embeddings(y)
        text = self._read(context, time, options)
        tokens = self.visual_embeddings(video_patches(padded))
        tokens = self._through_blocks(
            tokens, text, time, rotations(positions, self.config.axes).transpose(1, 2), options
        )
        drawn = video_of(self.out_layer(tokens, time), grid)[..., :height, :width]
        return drawn if x.ndim == 5 else drawn[:, :, 0]

    def _read(self, context: torch.Tensor, time: torch.Tensor, options: Options) -> torch.Tensor:
        """Return the text's tokens [B, S, D] for the embedded time."""
        text: torch.Tensor = self.text_embeddings(context)
        positions = torch.arange(text.shape[1], device=text.device, dtype=torch.float32)[None, :, None]
        turns = rotations(positions, (self.config.head_dim,)).transpose(1, 2)
        for block in self.text_transformer_blocks:
            text = block(text, time, turns, options)
        return text

    def _through_blocks(
        self,
        tokens: torch.Tensor,
        text: torch.Tensor,
        time: torch.Tensor,
        turns: torch.Tensor,
        options: dict[str, Any],
    ) -> torch.Tensor:
        """Return the latent's tokens [B, T, D] behind all blocks, or behind those that custom nodes have replaced."""
        replaced = options.get("patches_replace", {}).get("dit", {})
        options |= {"total_blocks": len(self.visual_transformer_blocks), "block_type": "double"}
        shared = {"context": text, "time_embed": time, "freqs": turns, "transformer_options": options}
        for index, block in enumerate(self.visual_transformer_blocks):
            options["block_index"] = index
            run = visual_block_function(block)
            args = {"x": tokens, **shared}
            replacement = replaced.get(("double_block", index))
            tokens = (run(args) if replacement is None else replacement(args, {"original_block": run}))["x"]
        return tokens
