"""The transformer of LTX-Video (HaCohen et al. 2025, arXiv 2501.00103, section 2), of any width and depth.

Every latent cell of a video is a token, and may have a noise level of its own. Places are rotations (Su et al. 2021,
arXiv 2104.09864) by seconds, rows and columns in pixels, over the channels of all heads together. One layer makes the
modulations of all blocks from the time, to which each block adds a table of its own. `B` batch, `C` channels, `F`
latent frames, `h w` latent cells, `T` tokens, `D` width. Module names are those of the original checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions by `("double_block", index)`, called with the block's inputs and `{"original_block": ...}`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import BlockFunction
from darkroom.engine.layers.feed_forward import FeedForward
from darkroom.engine.layers.filled import filled
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedResidual,
    ResidualNorm,
    RotaryHeads,
    RotaryLayout,
)
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

HEADS = 32
TIME_WIDTH = 256  # of the sinusoids of the time
FEED_FORWARD_FACTOR = 4  # of the hidden size
TIME_SCALE = 1000.0
NORM_EPS = 1e-6
ATTENTION_NORM_EPS = 1e-5
THETA = 10000.0
NUM_AXES = 3
CELL = (8, 32, 32)  # frames, rows and columns of pixels that a latent cell has
LARGEST_PLACE = (20, 2048, 2048)  # seconds, rows and columns that places are relative to
DEFAULT_FRAME_RATE = 25.0

MARK = "adaln_single.emb.timestep_embedder.linear_1.bias"
FIRST = "patchify_proj.weight"


@dataclass(frozen=True, slots=True)
class LtxVideoConfig:
    """Configuration of the network. `starts_with_one_frame`: the first latent frame is one frame of the video."""

    width: int
    num_blocks: int
    context_dim: int = 4096
    in_channels: int = 128
    starts_with_one_frame: bool = False
    heads: int = HEADS


def ltx_video_config(shapes: Shapes) -> LtxVideoConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    return LtxVideoConfig(
        width=shapes[FIRST][0],
        num_blocks=count_children(shapes, "transformer_blocks"),
        context_dim=shapes["caption_projection.linear_1.weight"][1],
        in_channels=shapes[FIRST][1],
    )


def cell_places(
    frames: int,
    rows: int,
    columns: int,
    *,
    starts_with_one_frame: bool = False,
    at_end: bool = False,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Return the first frame, row and column in pixels [3, T] of each cell of a latent video, whole numbers.

    With `at_end` they are those behind the cell.
    """
    sides = zip((frames, rows, columns), CELL, strict=True)
    counted = (torch.arange(number, device=device) * side + side * at_end for number, side in sides)
    places = torch.stack(torch.meshgrid(*counted, indexing="ij")).flatten(1)
    if starts_with_one_frame:
        places[0] = (places[0] + 1 - CELL[0]).clamp(min=0)
    return places


def rotations(places: torch.Tensor, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosines and sines [B, T, D] that rotate pairs of channels at places [B, T, 3] in seconds and pixels.

    The first `width % 6` channels are not rotated.
    """
    shares = places / filled(LARGEST_PLACE, device=places.device)  # [B, T, 3]
    powers = torch.linspace(0.0, 1.0, width // (2 * NUM_AXES), device=places.device, dtype=torch.float32)
    angles = (THETA**powers * math.pi / 2) * (shares[..., None] * 2 - 1)  # [B, T, 3, D / 6]
    angles = angles.transpose(-1, -2).flatten(2).repeat_interleave(2, dim=-1)
    unrotated = (width % (2 * NUM_AXES), 0)
    cos = functional.pad(angles.cos(), unrotated, value=1.0)
    sin = functional.pad(angles.sin(), unrotated)
    return cos.to(dtype), sin.to(dtype)


class TwoLayers(nn.Module):
    """Two layers as files name them: `linear_1`, `linear_2`."""

    def __init__(self, in_width: int, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = Linear(in_width, width), Linear(width, width)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear_2(self.activation(self.linear_1(x)))
        return out


class TimeModulation(nn.Module):
    """Times [N] -> the modulations of all blocks [N, 6 * D], and the embedded times [N, D]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.emb = nn.ModuleDict({"timestep_embedder": TwoLayers(TIME_WIDTH, width, nn.SiLU())})
        self.linear = Linear(width, 6 * width)

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        embedded = self.emb["timestep_embedder"](timestep_embedding(times, TIME_WIDTH).to(dtype))
        return self.linear(functional.silu(embedded)), embedded


class Attention(nn.Module):
    """Attention of tokens among each other, or over those of a text; norms are of all heads together."""

    def __init__(self, config: LtxVideoConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.q_norm, self.k_norm = (RmsNorm(width, eps=ATTENTION_NORM_EPS) for _ in range(2))
        self.to_q, self.to_k, self.to_v = (Linear(width, width) for _ in range(3))
        self.to_out = nn.ModuleList([Linear(width, width)])
        self.rotary_heads = RotaryHeads(RotaryLayout.CHANNELS, token_dim=1)

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor,
        mask: torch.Tensor | None,
        pe: tuple[torch.Tensor, torch.Tensor] | None,
        options: Options,
        guides: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return [B, T, D]. `pe` rotates both sides, None for no places; `mask` is added to the scores.

        `guides` [B, K] is added to the scores between the last K tokens and those before them.
        """
        q, k = self.rotary_heads([(self.to_q(x), self.q_norm)], [(self.to_k(context), self.k_norm)], pe)
        v = self.to_v(context)
        attended = attended_with_guides(q, k, v, self.heads, mask, guides, options)
        out: torch.Tensor = self.to_out[0](attended)
        return out


def attended_with_guides(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    heads: int,
    mask: torch.Tensor | None,
    guides: torch.Tensor | None,
    options: Options | None,
) -> torch.Tensor:
    """Return attention [B, T, D], with `mask` added to the scores, or with `guides` in its place.

    `guides` [B or 1, K] is added to the scores between the last K tokens and those before them. It works in two parts,
    so that no mask [T, T] is made: tokens of the video, then those of guides.
    """
    if guides is None:
        return optimized_attention(q, k, v, heads, mask=mask, transformer_options=options)
    first = q.shape[1] - guides.shape[1]
    to_guides = functional.pad(guides, (first, 0))[:, None, None]  # [B, 1, 1, T]
    rows = guides[:, None, :, None].expand(-1, -1, -1, first)
    to_video = functional.pad(rows, (0, guides.shape[1]))  # [B, 1, K, T]
    parts = ((q[:, :first], to_guides), (q[:, first:], to_video))
    attended = [optimized_attention(part, k, v, heads, mask=mask, transformer_options=options) for part, mask in parts]
    return torch.cat(attended, dim=1)


class LtxVideoBlock(nn.Module):
    def __init__(self, config: LtxVideoConfig) -> None:
        super().__init__()
        self.attn1, self.attn2 = Attention(config), Attention(config)
        self.ff = FeedForward(config.width, FEED_FORWARD_FACTOR * config.width)
        self.scale_shift_table = nn.Parameter(torch.empty(6, config.width))
        self.adaptive_norm, self.residual = AdaptiveNorm("rms", NORM_EPS), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor,
        mask: torch.Tensor | None,
        vec: torch.Tensor,
        pe: tuple[torch.Tensor, torch.Tensor],
        options: Options,
        guides: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return [B, T, D]. `vec` is [B, 1 or T, 6 * D]; `guides` as `Attention` has it."""
        shift, scale, gate, *second = (self.scale_shift_table.to(x) + vec.view(*vec.shape[:2], 6, -1)).unbind(2)
        normed = self.adaptive_norm(x, scale, shift)
        x = self.residual(x, self.attn1(normed, normed, None, pe, options, guides), gate)
        attended = self.attn2(x, context, mask, None, options)
        x, normed = self.residual_norm(x, attended, None, second[1], second[0])
        out: torch.Tensor = self.residual(x, self.ff(normed), second[2])
        return out


class LtxVideoTransformer(nn.Module):
    """`forward(x [B, C, F, h, w], timesteps [B] or [B, T, 1], context [B, S, context_dim])` -> `[B, C, F, h, w]`.

    `attention_mask` [B, S] is 1 where the text has tokens. `frame_rate` is that of the video, frames per second.
    `keyframe_idxs` [B, 3, K, 2] are where the last K tokens begin and end, where those are frames given to the network,
    and `guide_weights` [B, K] how much they weigh on the tokens of the video and these on them, 1 as any others.
    `kept_tokens` [B, N] are the indices of the tokens that there are: the result is 0 for the others, and the weights
    are those of the kept ones of the last K. Built without weights being drawn when a `torch.device("meta")` context is
    open.
    """

    def __init__(self, config: LtxVideoConfig) -> None:
        super().__init__()
        width = config.width
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = (1, 1, 1)
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.patchify_proj = Linear(config.in_channels, width)
        self.adaln_single = TimeModulation(width)
        self.caption_projection = TwoLayers(config.context_dim, width, nn.GELU(approximate="tanh"))
        self.transformer_blocks = nn.ModuleList(LtxVideoBlock(config) for _ in range(config.num_blocks))
        self.scale_shift_table = nn.Parameter(torch.empty(2, width))
        self.proj_out = Linear(width, config.in_channels)
        self.adaptive_norm = AdaptiveNorm(eps=NORM_EPS)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.patchify_proj.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        attention_mask: torch.Tensor | None = None,
        frame_rate: float = DEFAULT_FRAME_RATE,
        keyframe_idxs: torch.Tensor | None = None,
        guide_weights: torch.Tensor | None = None,
        kept_tokens: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        tokens, places = x.flatten(2).transpose(1, 2), self._places(x, keyframe_idxs)
        if kept_tokens is not None:
            tokens, places = taken(tokens, kept_tokens), taken(places, kept_tokens)
            timesteps = timesteps if timesteps.ndim == 1 else taken(timesteps, kept_tokens)
        img = self.patchify_proj(tokens)
        modulation, embedded = self.adaln_single(timesteps.flatten() * TIME_SCALE, img.dtype)
        shared = {
            "txt": self.caption_projection(context),
            "attention_mask": score_mask(attention_mask, img.dtype),
            "vec": modulation.view(x.shape[0], -1, modulation.shape[-1]),
            "pe": rotations(_in_seconds(places, frame_rate), self.config.width, img.dtype),
            "transformer_options": options,
            "guides": None if guide_weights is None else log_weights(guide_weights, img.dtype),
        }
        replaced = options.get("patches_replace", {}).get("dit", {})
        for index, block in enumerate(self.transformer_blocks):
            original = _as_function(block)
            replacement = replaced.get(("double_block", index))
            inputs = {"img": img, **shared}
            out = original(inputs) if replacement is None else replacement(inputs, {"original_block": original})
            img = out["img"]
        times = embedded.view(x.shape[0], -1, 1, embedded.shape[-1])
        shift, scale = (self.scale_shift_table.to(img) + times).unbind(2)  # each [B, 1 or T, D]
        cells: torch.Tensor = self.proj_out(self.adaptive_norm(img, scale, shift))
        return video_of(cells, kept_tokens, x.shape)

    def _places(self, x: torch.Tensor, keyframe_idxs: torch.Tensor | None) -> torch.Tensor:
        """Return the places [B, T, 3] of all cells, those of the last ones as they are given."""
        places = cell_places(*x.shape[2:], starts_with_one_frame=self.config.starts_with_one_frame, device=x.device)
        places = places.T.expand(x.shape[0], -1, -1).clone()
        if keyframe_idxs is not None:
            places[:, -keyframe_idxs.shape[2] :] = keyframe_idxs[..., 0].transpose(1, 2)
        return places


def taken(tokens: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Return the tokens [B, N, D] at the indices [B, N] of tokens [B, T, D]."""
    return tokens.gather(1, kept[..., None].expand(-1, -1, tokens.shape[-1]))


def video_of(cells: torch.Tensor, kept: torch.Tensor | None, shape: torch.Size) -> torch.Tensor:
    """Return tokens [B, N, C] as a video of a shape [B, C, F, h, w].

    `kept` [B, N] are the indices of the tokens among its cells, of which the others are 0; None for all of them.
    """
    if kept is not None:
        every = cells.new_zeros(cells.shape[0], math.prod(shape[2:]), cells.shape[-1])
        cells = every.scatter(1, kept[..., None].expand_as(cells), cells)
    return cells.transpose(1, 2).reshape(shape)


def _in_seconds(places: torch.Tensor, frame_rate: float) -> torch.Tensor:
    """Return places [B, T, 3] with seconds in place of frames."""
    seconds = places.float()
    seconds[..., 0] *= 1.0 / frame_rate
    return seconds


def log_weights(weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the additions to scores [B, K] that multiply what they give by weights, at 0 to nothing."""
    return torch.where(
        weights > 0, weights.clamp(min=torch.finfo(torch.float32).tiny).log(), torch.finfo(dtype).min
    ).to(dtype)


def score_mask(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the addition to the scores [B, 1, 1, S] for a mask of tokens [B, S]; a mask of floats as it is."""
    if mask is None or torch.is_floating_point(mask):
        return mask
    return (mask - 1).to(dtype).reshape(mask.shape[0], 1, -1, mask.shape[-1]) * torch.finfo(dtype).max


def _as_function(block: nn.Module) -> BlockFunction:
    """Return a block in the form in which custom nodes call it."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        out = block(
            args["img"], args["txt"], args["attention_mask"], args["vec"], args["pe"], args["transformer_options"],
            args.get("guides"),
        )  # fmt: skip
        return {"img": out}

    return original
