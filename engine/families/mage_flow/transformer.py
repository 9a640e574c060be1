"""The transformer of Mage-Flow (Microsoft 2026): twelve blocks of Qwen-Image's kind over single cells of the latent.

Images have positions on three axes, index of the image, row and column, the latter two counted from behind the middle;
a text's tokens are not rotated. `B` batch, `C` channels, `h w` latent cells, `L` tokens of text, `T` tokens of text and
image, `D` hidden size. Module names are those of the checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches["post_input"]` has
functions of the streams before the blocks, further keys are those of Qwen-Image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.flux.transformer import TIME_FACTOR, TIME_WIDTH
from darkroom.engine.families.qwen_image.transformer import (
    LastNorm,
    QwenImageBlock,
    QwenImageConfig,
    TimeEmbedder,
    image_of,
    run_blocks,
    turned,
)
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import Control
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.rotary import AXES
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.unet_layers import Options

CHANNELS = 128
MARK, BLOCK, LAST = "txt_norm.weight", "transformer_blocks.0.img_mlp.net.0.proj.weight", "proj_out.weight"
MAX_PERIOD = 10000


@dataclass(frozen=True, slots=True)
class MageFlowConfig(QwenImageConfig):
    """Configuration of the network, whose tokens are cells of the latent."""

    in_channels: int = CHANNELS
    out_channels: int = CHANNELS


def mage_flow_config(shapes: Shapes) -> MageFlowConfig:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    hidden_size, in_channels = shapes["img_in.weight"]
    return MageFlowConfig(
        width=hidden_size,
        num_blocks=count_children(shapes, "transformer_blocks"),
        context_dim=shapes[MARK][0],
        in_channels=in_channels,
        out_channels=shapes[LAST][0],
        inner_factor=shapes[BLOCK][0] // hidden_size,
    )


def positions_of(latent: torch.Tensor, index: int) -> torch.Tensor:
    """Return the positions [h * w, 3] of a latent's cells [B, C, h, w]: index, row and column."""
    rows, columns = latent.shape[-2:]
    positions = torch.empty(rows, columns, len(AXES), device=latent.device)
    positions[..., 0] = index
    positions[..., 1] = (torch.arange(rows, device=latent.device) - (rows - rows // 2))[:, None]
    positions[..., 2] = (torch.arange(columns, device=latent.device) - (columns - columns // 2))[None, :]
    return positions.flatten(0, 1)


class RoundedTimeEmbedder(TimeEmbedder):
    """The sinusoids of the time [B], whose frequencies are rounded to bfloat16, through two layers -> [B, D]."""

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        half = TIME_WIDTH // 2
        steps = torch.arange(half, dtype=torch.float32, device=times.device)
        frequencies = torch.exp(-math.log(MAX_PERIOD) * steps / half).to(torch.bfloat16)
        angles = TIME_FACTOR * (times.float()[:, None] * frequencies.float())
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1).to(dtype)
        out: torch.Tensor = self.timestep_embedder["linear_2"](
            functional.silu(self.timestep_embedder["linear_1"](waves))
        )
        return out


class MageFlowTransformer(nn.Module):
    """`forward(x [B, C, h, w], timesteps [B], context [B, L, context_dim])` -> `[B, C, h, w]`.

    `ref_latents` are reference images [B, C, h, w] at the indices that follow the image's. `control` holds a list
    `input` of additions to the image by block. Built without weights being drawn when a `torch.device("meta")` context
    is open.
    """

    def __init__(self, config: MageFlowConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = 1
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.time_text_embed = RoundedTimeEmbedder(config.width)
        self.txt_norm = RmsNorm(config.context_dim)
        self.img_in = Linear(config.in_channels, config.width)
        self.txt_in = Linear(config.context_dim, config.width)
        self.transformer_blocks = nn.ModuleList(QwenImageBlock(config) for _ in range(config.num_blocks))
        self.norm_out = LastNorm(config.width)
        self.proj_out = Linear(config.width, config.out_channels)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.txt_in.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: Control | None = None,
        transformer_options: Options | None = None,
        *,
        ref_latents: Sequence[torch.Tensor] = (),
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        images = [image_of(item) for item in (x, *ref_latents)]
        if ref_latents:
            options = {**options, "reference_image_num_tokens": [item[0, 0].numel() for item in images[1:]]}
        streams = self._streams(images, context, options)
        positions = torch.cat([streams["txt_ids"], streams["img_ids"]], dim=1)
        shared = {
            "vec": self.time_text_embed(timesteps, streams["img"].dtype),
            "pe": turned(positions[0], x.shape[0], streams["img"]),
            "transformer_options": options,
        }
        num_drawn = images[0][0, 0].numel()
        img = run_blocks(self.transformer_blocks, (streams["txt"], streams["img"]), shared, x, control)
        drawn: torch.Tensor = self.proj_out(self.norm_out(img[:, :num_drawn], shared["vec"]))
        return drawn.transpose(1, 2).reshape(x.shape[0], self.config.out_channels, *x.shape[2:])

    def _streams(self, images: Sequence[torch.Tensor], context: torch.Tensor, options: Options) -> dict[str, Any]:
        """Return embedded text and image with their positions, as patches of custom nodes leave them."""
        batch = context.shape[0]
        tokens = torch.cat([item.flatten(2).transpose(1, 2) for item in images], dim=1)
        positions = torch.cat([positions_of(item, index) for index, item in enumerate(images)])
        streams: dict[str, Any] = {
            "img": self.img_in(tokens),
            "txt": self.txt_in(self.txt_norm(context)),
            "img_ids": positions.expand(batch, -1, -1),
            "txt_ids": torch.zeros(batch, context.shape[1], len(AXES), device=context.device),
            "transformer_options": options,
        }
        for patch in options.get("patches", {}).get("post_input", ()):
            streams = {**streams, **patch(streams)}
        return streams
