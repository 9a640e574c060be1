"""The transformer of Wan 2.1 and 2.2 (Wan Team 2025, arXiv 2503.20314, section 4.2), of any width and depth.

Blocks of self-attention over all patches of a video and cross-attention to the text, and to an image where the network
reads what an image encoder saw. Places are rotations (Su et al. 2021, arXiv 2104.09864) by frame, row and column. Each
latent frame may have a noise level of its own. Networks that read more than that are classes of their own beside this
file. `B` batch, `C` channels, `F` latent frames, `h w` latent cells, `T` tokens, `D` width, `H` heads, `N` noise levels
of an item. Module names are those of the original checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions by `("double_block", index)`, called with the block's inputs and `{"original_block": ...}`; `patches` has
those of self-attention (`attn1_patch`), behind cross-attention (`attn2_patch`) and behind blocks (`double_block`). A
copy of it for the call has `grid_sizes`, the video's frames, rows and columns of patches, and the `block_index`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from darkroom.engine.families.wan.blocks import Float32Conv3d, ImageProjection, WanBlock, WanHead
from darkroom.engine.families.wan.config import AXES, HEAD_WIDTH, NUM_MODULATIONS, TIME_WIDTH, WanConfig
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.block_calls import BlockFunction
from darkroom.engine.layers.patches import PATCH, pad_to_patches, tokens_of
from darkroom.engine.layers.rope_options import ROPE_OPTIONS, axis_positions
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.sinusoids import sinusoids_of_powers
from darkroom.engine.layers.unet_layers import Options

CELLS = "cells"  # input of hooks with the rows and columns of the video's latent
GRID = "grid_sizes"  # transformer option with the video's frames, rows and columns of patches

Inputs = Mapping[str, Any]


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


def turned_by(pe: torch.Tensor, number: int) -> torch.Tensor:
    """Return rotations [1, T, 1, 64, 2, 2] with those of a video's number in all channels behind them."""
    place = torch.full([1, 1, 1], float(number), device=pe.device)
    return pe @ rotations(place, (HEAD_WIDTH,)).transpose(1, 2)


@dataclass(slots=True)
class VideoTokens:
    """A video on its way through the blocks.

    `img` [B, T, D]; `levels` [B, N], the noise levels; `pe`, the rotations of all tokens; `first` and `grid`, where the
    tokens that become the output begin and their frames, rows and columns. `x` is the video [B, in, F, h, w], `time`
    the embedded levels [B, N, D] and `offset` the number of tokens before the video's, as patches of blocks get them.
    """

    img: torch.Tensor
    levels: torch.Tensor
    pe: torch.Tensor
    grid: tuple[int, int, int]
    first: int = 0
    x: torch.Tensor | None = None
    time: torch.Tensor | None = None
    offset: int | None = None


class WanTransformer(nn.Module):
    """`forward(x [B, in, F, h, w], timesteps [B] or [B, F], context [B, T, context_dim])` -> `[B, out, F, h, w]`.

    `clip_fea` [B, P, image_dim] is what an image encoder saw, `reference_latent` [B, C, h, w] a reference image,
    `time_dim_concat` [B, C, f, h, w] further frames behind the video, `context_latents` other videos and images
    [B, C, f, h, w] of any size that it is made from. Built without weights being drawn when a
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
        options: dict[str, Any] = {} if transformer_options is None else {**transformer_options}
        frames, height, width = x.shape[2:]
        padded = pad_to_patches(x, PATCH)
        if time_dim_concat is not None:
            padded = torch.cat([padded, pad_to_patches(time_dim_concat, PATCH)], dim=2)
        inputs |= {ROPE_OPTIONS: options.get(ROPE_OPTIONS), "context": context, "clip_fea": clip_fea}
        inputs[CELLS] = (height, width)
        tokens = self.tokens_of(padded, timesteps, inputs)
        time, vec = self.modulations(tokens.levels, tokens.img.dtype)
        text, image_tokens = self.read(context, clip_fea, inputs)
        options[GRID] = tokens.grid
        tokens.x = padded if tokens.x is None else tokens.x
        tokens.time, tokens.offset = time, tokens.first if tokens.offset is None else tokens.offset
        shared = {"txt": text, "vec": vec, "pe": tokens.pe, "transformer_options": options}
        img = self.through_blocks(tokens, shared, image_tokens, inputs)
        count = math.prod(tokens.grid)
        patches: torch.Tensor = self.head_of(inputs)(img, time)[:, tokens.first : tokens.first + count]
        return self.drawn(patches, tokens.grid)[:, :, :frames, :height, :width]

    def head_of(self, inputs: Inputs) -> nn.Module:
        """Return the last layer for these inputs."""
        return self.head

    def drawn(self, patches: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        """Return patches [B, T, 4 * C] of frames, rows and columns as a video [B, C, F, h, w]."""
        cells = patches.view(-1, *grid, PATCH, PATCH, self.config.out_channels)
        return cells.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)

    def modulations(self, levels: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the embedded noise levels [B, N, D] and the modulations [B, N, 6, D] of levels [B, N]."""
        time = self.time_embedding(sinusoids_of_powers(levels.flatten(), TIME_WIDTH).to(dtype))
        time = time.view(*levels.shape, -1)
        return time, self.time_projection(time).view(*levels.shape, NUM_MODULATIONS, -1)

    def embedded(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Return the patches [B, D, F, rows, columns] of a video of whole patches."""
        cells: torch.Tensor = self.patch_embedding(x)
        return cells

    def tokens_of(self, x: torch.Tensor, timesteps: torch.Tensor, inputs: Inputs) -> VideoTokens:
        """Return the tokens of a video of whole patches, of a reference image before and other videos behind them."""
        cells = self.embedded(x, inputs)
        frames, rows, columns = cells.shape[2:]
        img, before = [tokens_of(cells)], 0
        reference: torch.Tensor | None = inputs.get("reference_latent")
        if self.ref_conv is not None and reference is not None:
            img.insert(0, self.ref_conv(reference).flatten(2).transpose(1, 2))
            before = 1
        pe = [rotations_at(self.places_of((frames + before, rows, columns), x.device, inputs))]
        others: Sequence[torch.Tensor] = inputs.get("context_latents") or ()
        for number, other in enumerate(others, start=1):
            patches: torch.Tensor = self.patch_embedding(pad_to_patches(other, PATCH))
            img.append(tokens_of(patches))
            own = rotations_at(video_places(*patches.shape[2:], device=x.device, options=inputs))
            pe.append(turned_by(own, number))
        first = before * img[0].shape[1]
        levels = timesteps.view(x.shape[0], -1)
        return VideoTokens(torch.cat(img, dim=1), levels, torch.cat(pe, dim=1), (frames, rows, columns), first=first)

    def places_of(self, grid: tuple[int, int, int], device: torch.device, inputs: Inputs) -> torch.Tensor:
        """Return the places [1, T, 3] of patches of a video of frames, rows and columns."""
        return video_places(*grid, device=device, options=inputs)

    def read(
        self, context: torch.Tensor, clip_fea: torch.Tensor | None, inputs: Inputs
    ) -> tuple[torch.Tensor, int | None]:
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
        options: dict[str, Any] = shared["transformer_options"]
        replaced = options.get("patches_replace", {}).get("dit", {})
        patches = options.get("patches", {}).get("double_block", ())
        for index in range(len(self.blocks)):
            options["block_index"] = index
            original = self.block_function(index, image_tokens, memory)
            replacement = replaced.get(("double_block", index))
            given = {"img": img, **shared}
            out = original(given) if replacement is None else replacement(given, {"original_block": original})
            img = out["img"]
            for patch in patches:
                place = {"block_index": index, "img_offset": tokens.offset, "transformer_options": options}
                img = patch({"img": img, "x": tokens.x, "vec": tokens.time, **place})["img"]
            img = self.after_block(index, img, tokens, memory)
        return img

    def block_function(self, index: int, image_tokens: int | None, memory: Any) -> BlockFunction:
        """Return a block in the form in which custom nodes call it."""
        block = self.blocks[index]

        def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
            img = block(args["img"], args["txt"], args["vec"], args["pe"], args["transformer_options"], image_tokens)
            return {"img": img}

        return original

    def beside_blocks(self, tokens: VideoTokens, shared: dict[str, Any], inputs: Inputs) -> Any:
        """Return the values of the inputs that `block_function` and `after_block` need: none here."""
        return None

    def after_block(self, index: int, img: torch.Tensor, tokens: VideoTokens, memory: Any) -> torch.Tensor:
        """Return the tokens behind a block with what the network reads beside the video: as they are here."""
        return img
