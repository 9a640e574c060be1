"""Wan drawn a few frames after the other (Causal Forcing, 2025): frames attend to those before them, not behind.

The weights are those of Wan from text. Keys and values of frames that are done are kept for the later ones. `B` batch,
`F` latent frames of a part, `h w` latent cells, `T` tokens, `D` hidden size, `H` heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from darkroom.engine.families.wan.blocks import SelfAttention, WanBlock
from darkroom.engine.families.wan.config import WanConfig
from darkroom.engine.families.wan.transformer import WanTransformer, rotations_at, video_places
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.patches import PATCH, pad_to_patches, tokens_of
from darkroom.engine.layers.unet_layers import Options

STATE = "ar_state"
"""Transformer option with the `CausalState` of a sampling run."""


@dataclass(frozen=True, slots=True)
class WanCausalConfig(WanConfig):
    """Configuration of a network that draws a few frames after the other."""


class CausalState:
    """The keys and values of each block for the frames of one video, and the first frame of the part that is drawn."""

    def __init__(self, num_frames: int) -> None:
        self.num_frames = num_frames
        self.first_frame = 0
        self._blocks: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # [B, T, H, 128] and [B, T, D]

    def with_earlier(
        self, index: int, frames: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the keys and values of a part of `frames` frames in a block; return them behind those before it."""
        per_frame = k.shape[1] // frames
        if index not in self._blocks:
            count = self.num_frames * per_frame
            self._blocks[index] = (
                k.new_empty(k.shape[0], count, *k.shape[2:]), v.new_empty(v.shape[0], count, *v.shape[2:]),
            )  # fmt: skip
        first, end = self.first_frame * per_frame, (self.first_frame + frames) * per_frame
        keys, values = self._blocks[index]
        keys[:, first:end], values[:, first:end] = k, v
        return keys[:, :end], values[:, :end]


class CausalSelfAttention(SelfAttention):
    def behind_earlier(
        self, x: torch.Tensor, pe: torch.Tensor, options: Options | None, *, state: CausalState, index: int, frames: int
    ) -> torch.Tensor:
        """Return [B, T, D] of tokens that attend to each other and to those of the frames before them."""
        q, k, v = self.heads_of(x, pe)
        keys, values = state.with_earlier(index, frames, k, v)
        attended = optimized_attention(q.flatten(2), keys.flatten(2), values, self.heads, transformer_options=options)
        out: torch.Tensor = self.o(attended)
        return out


class WanCausalBlock(WanBlock):
    attention_type = CausalSelfAttention


class WanCausalTransformer(WanTransformer):
    """A network that draws a few frames after the other where its options have an `ar_state`."""

    block_type = WanCausalBlock

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        **inputs: object,
    ) -> torch.Tensor:
        """Return the prediction of a video, or of the part of it that the state in the options is at.

        Raises ValueError for a part that is drawn with a second condition: the frames of both would be mixed up.
        """
        options: Options = {} if transformer_options is None else transformer_options
        given: dict[str, Any] = dict(inputs)
        state: CausalState | None = options.get(STATE)
        if state is None:
            return super().forward(x, timesteps, context, y, control, options, **given)
        if any(options.get("cond_or_uncond", ())):
            raise ValueError("cfg: videos that are drawn frame after frame have no second condition; expected 1")
        frames, height, width = x.shape[2:]
        cells = self.embedded(pad_to_patches(x, PATCH), given)
        grid = (frames, *cells.shape[3:])
        time, vec = self.modulations(timesteps[:, None].expand(-1, frames), x.dtype)
        pe = rotations_at(video_places(*grid, device=x.device, first_frame=state.first_frame))
        text, image_tokens = self.read(context, given.get("clip_fea"), given)
        plain = {name: value for name, value in options.items() if name != "patches"}
        img = tokens_of(cells)
        for index, block in enumerate(self.blocks):
            attention: Any = block.self_attn
            attend = partial(attention.behind_earlier, state=state, index=index, frames=frames)
            img = block(img, text, vec, pe, plain, image_tokens, attend)
        return self.drawn(self.head(img, time), grid)[:, :, :, :height, :width]
