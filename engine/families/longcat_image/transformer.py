"""The transformer of LongCat-Image (Meituan 2025): Flux.1's blocks, which read Qwen2.5-VL and no pooled output.

Tokens of the text have positions along the diagonal of rows and columns; the image, at index 1, begins where they end.
`B` batch, `C` channels, `h w` latent cells, `L` tokens of text, `T` tokens of text and image, `D` hidden size. Module
names are those of the checkpoints, `transformer_options` are those of Flux.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from darkroom.engine.families.flux.transformer import (
    HEAD_WIDTH,
    REFERENCE_TOKENS,
    TIME_FACTOR,
    TIME_WIDTH,
    TIME_ZERO_METHOD,
    DoubleBlock,
    Embedder,
    FinalLayer,
    SingleBlock,
    TimedVectors,
    Vector,
    method_of,
    run_blocks,
    vectors_of,
    with_references,
    without_kept,
)
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import Control
from darkroom.engine.layers.patches import PATCH, image_of, pad_to_patches, patches_of
from darkroom.engine.layers.rope_options import ROPE_OPTIONS
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.unet_layers import Options, timestep_embedding


@dataclass(frozen=True, slots=True)
class LongCatImageConfig:
    """Configuration of the network."""

    width: int = 3072
    num_double: int = 10
    num_single: int = 20
    context_dim: int = 3584
    in_channels: int = 16
    inner_factor: int = 4

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def longcat_image_config(shapes: Shapes) -> LongCatImageConfig:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    width, context_dim = shapes["txt_in.weight"]
    return LongCatImageConfig(
        width=width,
        num_double=count_children(shapes, "double_blocks"),
        num_single=count_children(shapes, "single_blocks"),
        context_dim=context_dim,
        in_channels=shapes["img_in.weight"][1] // PATCH**2,
        inner_factor=shapes["double_blocks.0.img_mlp.0.weight"][0] // width,
    )


def behind_text(options: Options, num_text: int) -> dict[str, Any]:
    """Return options by which an image's positions begin behind a text, unless they say where they begin."""
    asked = options.get(ROPE_OPTIONS) or {}
    return {**options, ROPE_OPTIONS: {"shift_t": 1.0, "shift_y": float(num_text), "shift_x": float(num_text), **asked}}


class LongCatImageTransformer(nn.Module):
    """`forward(x [B, C, h, w], timesteps [B], context [B, L, context_dim])` -> `[B, C, h, w]`.

    `ref_latents` are reference images [B, C, h, w], placed by `ref_latents_method` (`reference_corners`). `control`
    holds lists of additions to the image by block, `input` for those of two streams, `output` for those of one. Built
    without weights being drawn when a `torch.device("meta")` context is open.
    """

    def __init__(self, config: LongCatImageConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = PATCH
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.img_in = Linear(config.in_channels * PATCH * PATCH, config.width)
        self.time_in = Embedder(TIME_WIDTH, config.width)
        self.txt_in = Linear(config.context_dim, config.width)
        self.double_blocks = nn.ModuleList(DoubleBlock(config) for _ in range(config.num_double))
        self.single_blocks = nn.ModuleList(SingleBlock(config) for _ in range(config.num_single))
        self.final_layer = FinalLayer(config.width, PATCH * PATCH * config.in_channels)

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
        ref_latents_method: str | None = None,
        **_: object,
    ) -> torch.Tensor:
        """Predict; there is no `y` for it."""
        height, width = x.shape[-2:]
        options = behind_text({} if transformer_options is None else transformer_options, context.shape[1])
        padded = pad_to_patches(x, PATCH)
        method = method_of(ref_latents_method, "offset", options)
        tokens, positions = with_references(padded, (height, width), ref_latents, method, options)
        num_drawn = patches_of(padded).shape[1]
        options |= {REFERENCE_TOKENS: [tokens.shape[1] - num_drawn]} if ref_latents else {}
        text = torch.arange(context.shape[1], dtype=torch.float32, device=x.device)
        text_positions = torch.stack([torch.zeros_like(text), text, text], dim=-1)
        inputs = {
            "img": self.img_in(tokens), "txt": self.txt_in(context), "img_ids": positions,
            "txt_ids": text_positions.expand(x.shape[0], -1, -1), "transformer_options": options,
        }  # fmt: skip
        for patch in options.get("patches", {}).get("post_input", ()):
            inputs = {**inputs, **patch(inputs)}
        pe = rotations(torch.cat([inputs["txt_ids"], inputs["img_ids"]], dim=1))
        vec = self._time(timesteps, x.dtype)
        timed: Vector = vec
        if ref_latents and method == TIME_ZERO_METHOD:
            at_zero = self._time(torch.zeros_like(timesteps), x.dtype)
            timed = TimedVectors(vec, at_zero, num_drawn, tokens.shape[1] - num_drawn)
        streams = (without_kept(inputs["img"], options), inputs["txt"])
        vectors = vectors_of(timed, streams, len(self.double_blocks), len(self.single_blocks))
        out = run_blocks(self.double_blocks, self.single_blocks, streams, vectors, pe, control, options)
        drawn = self.final_layer(out[:, :num_drawn], vec)
        return image_of(drawn, padded, self.config.in_channels)[..., :height, :width]

    def _time(self, timesteps: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the embedded times [B, D]."""
        time: torch.Tensor = self.time_in(timestep_embedding(timesteps * TIME_FACTOR, TIME_WIDTH).to(dtype))
        return time
