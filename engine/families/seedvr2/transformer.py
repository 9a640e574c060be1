"""The transformer of SeedVR2 (Wang et al. 2025, arXiv 2506.05301): a video restored in one step, beside a fixed text.

Tokens of patches of 1 x 2 x 2 cells attend in windows, every other block in shifted ones (`windows.py`), each with the
text. The network reads the noise, the latent of the video to restore, and a mask. Its texts come with its weights. `B`
batch, `t h w` latent frames, rows and columns, `T` tokens, `L` tokens of the text, `D` hidden size. Module names are
those of the published files.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions in place of blocks, by `("block", i)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.seedvr2.layers import (
    EPS,
    HEAD_DIM,
    NUM_STEPS,
    Block,
    Modulation,
    Rotation,
    SeedVr2Config,
)
from darkroom.engine.families.seedvr2.windows import KINDS, Sizes, WindowedTokens, windowed_tokens
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import AdaptiveNorm
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

CELLS = 2  # a side of a patch
PATCH_AREA = CELLS**2
NUM_AXES = 3  # of positions: frames, rows, columns
NUM_MODULATED = 2  # layers of a block: attention, feed-forward
RELATIVE_FREQUENCY = 128.0  # the largest one of relative positions, in half turns
RELATIVE_FREQUENCIES = 10  # of an axis, by which the network of relative positions is known
FREQUENCIES = "blocks.0.attn.rope.rope.freqs"
MARK, POSITIVE, NEGATIVE = "vid_in.proj.weight", "positive_conditioning", "negative_conditioning"
BlockFunction = Callable[[dict[str, Any]], dict[str, torch.Tensor]]


def seedvr2_config(shapes: Shapes) -> SeedVr2Config:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises NotRecognised for sizes of which there is no such network, LookupError for a missing tensor.
    """
    hidden, in_dim = shapes[MARK]
    num_layers = count_children(shapes, "blocks")
    first = "blocks.0.mlp.vid" if "blocks.0.mlp.vid.proj_in.weight" in shapes else "blocks.0.mlp.all"
    num_frequencies = shapes[FREQUENCIES][0]
    if hidden % HEAD_DIM or NUM_AXES * num_frequencies > HEAD_DIM // 2:
        raise NotRecognised(
            f"a network like SeedVR2's of a hidden size of {hidden} and {num_frequencies} frequencies of an axis, "
            f"expected heads of {HEAD_DIM} channels and at most {HEAD_DIM // 2 // NUM_AXES} frequencies"
        )
    return SeedVr2Config(
        hidden_size=hidden,
        num_layers=num_layers,
        num_separate=sum(f"blocks.{index}.attn.proj_qkv.vid.weight" in shapes for index in range(num_layers)),
        intermediate_size=shapes[f"{first}.proj_in.weight"][0],
        num_frequencies=num_frequencies,
        is_relative=num_frequencies == RELATIVE_FREQUENCIES,
        is_gated=f"{first}.proj_in_gate.weight" in shapes,
        in_channels=in_dim // PATCH_AREA,
        out_channels=shapes["vid_out.proj.weight"][0] // PATCH_AREA,
        text_dim=shapes["txt_in.weight"][1],
        time_input_dim=shapes["emb_in.proj_in.weight"][1],
        positive_tokens=shapes[POSITIVE][0],
        negative_tokens=shapes[NEGATIVE][0],
    )


class Projection(nn.Module):
    """A linear layer called `proj`."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.proj = Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.proj(x)
        return out


class TimeEmbedding(nn.Module):
    def __init__(self, config: SeedVr2Config) -> None:
        super().__init__()
        self.input_dim = config.time_input_dim
        hidden = config.hidden_size
        self.proj_in = Linear(config.time_input_dim, hidden)
        self.proj_hid = Linear(hidden, hidden)
        self.proj_out = Linear(hidden, NUM_MODULATED * NUM_STEPS * hidden)

    def forward(self, timesteps: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the modulation [B, D, 2, 3]: shift, scale and gate of attention and of feed-forward layers."""
        cosines, sines = timestep_embedding(timesteps, self.input_dim).to(dtype).chunk(2, dim=-1)
        hidden = functional.silu(self.proj_in(torch.cat([sines, cosines], dim=-1)))
        embedded: torch.Tensor = self.proj_out(functional.silu(self.proj_hid(hidden)))
        return embedded.view(timesteps.shape[0], -1, NUM_MODULATED, NUM_STEPS)


class SeedVr2Transformer(nn.Module):
    """`forward(x [B, 16, t, h, w], timesteps [B], context [B, L, text_dim])` -> [B, 16, t, h, w].

    `condition` [B, 17, t, h, w] is the latent to restore, with a mask of ones. `window_order`, `window_places`,
    `window_positions` and `window_sizes` are the fields of `windows.WindowedTokens` for the latent's grid; they are
    computed where they are not given. Built without weights being drawn when a `torch.device("meta")` context is open.
    """

    is_wrapped = False

    def __init__(self, config: SeedVr2Config) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.out_channels
        self.patch_size = (1, CELLS, CELLS)
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        hidden = config.hidden_size
        self.positive_conditioning = nn.Parameter(torch.empty(config.positive_tokens, config.text_dim))
        self.negative_conditioning = nn.Parameter(torch.empty(config.negative_tokens, config.text_dim))
        self.vid_in = Projection(config.in_channels * PATCH_AREA, hidden)
        self.txt_in = Linear(config.text_dim, hidden)
        self.emb_in = TimeEmbedding(config)
        self.blocks = nn.ModuleList(
            Block(
                config,
                is_shared=index >= config.num_separate,
                ends_text=index == config.num_layers - 1 and not config.is_relative,
            )
            for index in range(config.num_layers)
        )
        self.vid_out = Projection(hidden, config.out_channels * PATCH_AREA)
        if not config.is_relative:
            self.vid_out_norm = RmsNorm(hidden, EPS)
            self.vid_out_ada = Modulation(hidden, ("out_shift", "out_scale"))
        self.adaptive_norm = AdaptiveNorm("none")

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
        control: object = None,
        transformer_options: Options | None = None,
        *,
        condition: torch.Tensor,
        window_order: torch.Tensor | None = None,
        window_places: torch.Tensor | None = None,
        window_positions: torch.Tensor | None = None,
        window_sizes: tuple[Sizes, ...] | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        if window_order is None or window_places is None or window_positions is None or window_sizes is None:
            windows = self._windows_of(x)
        else:
            windows = WindowedTokens(window_order, window_places, window_positions, window_sizes)
        video = self.vid_in(_patches(torch.cat([x, condition], dim=1)))  # [B, T, D]
        time = self.emb_in(timesteps, x.dtype)
        text = self.txt_in(context)
        video = self._through_blocks(video, text, time, windows, options)
        if not self.config.is_relative:
            shift, scale = self.vid_out_ada(time[:, :, 0], "out")
            video = self.adaptive_norm(video, scale, shift, self.vid_out_norm)
        return _cells(self.vid_out(video), x.shape)

    def windows(self, grid: Sequence[int]) -> WindowedTokens:
        """Return the windows of latents of so many frames, rows and columns of cells, on the CPU."""
        frames, rows, columns = grid
        return windowed_tokens((frames, rows // CELLS, columns // CELLS), is_relative=self.config.is_relative)

    def _windows_of(self, x: torch.Tensor) -> WindowedTokens:
        found = self.windows(x.shape[2:])
        order, places, positions = (item.to(x.device) for item in (found.order, found.places, found.positions))
        return WindowedTokens(order, places, positions, found.sizes)

    def _through_blocks(
        self, video: torch.Tensor, text: torch.Tensor, time: torch.Tensor, windows: WindowedTokens, options: Options
    ) -> torch.Tensor:
        """Return the video [B, T, D] after all blocks, or what nodes put in their place."""
        kinds = range(min(KINDS, len(self.blocks)))
        rotations = [self._rotations(windows.positions[0, kind], text.shape[1], kind) for kind in kinds]
        tokens = [(windows.order[0, kind], windows.places[0, kind]) for kind in range(KINDS)]
        replaced = options.get("patches_replace", {}).get("dit", {})
        for index, block in enumerate(self.blocks):
            kind = index % KINDS

            def original(args: dict[str, Any], block: nn.Module = block, kind: int = kind) -> dict[str, torch.Tensor]:
                parts = block(
                    args["vid"], args["txt"], args["emb"], tokens[kind], rotations[kind], windows.sizes[kind], options
                )
                return dict(zip(("vid", "txt"), parts, strict=True))

            replacement = replaced.get(("block", index))
            given = {"vid": video, "txt": text, "emb": time}
            out = original(given) if replacement is None else replacement(given, {"original_block": original})
            video, text = out["vid"], out["txt"]
        return video

    def _rotations(self, positions: torch.Tensor, text_tokens: int, kind: int) -> tuple[Rotation, Rotation | None]:
        """Return the rotation of a video's tokens at positions [T, 3] and that of the text.

        The text comes before the video: its tokens are on the diagonal of the three axes, the video's frames behind.
        """
        if self.config.is_relative:
            count = self.config.num_frequencies
            frequencies = torch.linspace(1.0, RELATIVE_FREQUENCY, count, device=positions.device) * math.pi
            return _rotation(positions, frequencies), None
        attention: Any = self.blocks[kind].attn
        frequencies = attention.rope.rope["freqs"].to(positions)
        steps = torch.arange(text_tokens, device=positions.device, dtype=positions.dtype)
        behind = torch.cat([positions[:, :1] + text_tokens, positions[:, 1:]], dim=1)
        return _rotation(behind, frequencies), _rotation(steps[:, None].expand(-1, NUM_AXES), frequencies)


def _rotation(positions: torch.Tensor, frequencies: torch.Tensor) -> Rotation:
    """Return the rotation of pairs of a head's channels, float32; those behind the last frequency stay as they are."""
    angles = (positions[..., None] * frequencies).flatten(1)  # [T, 3 * frequencies]
    angles = functional.pad(angles, (0, HEAD_DIM // 2 - angles.shape[1]))[None, :, None]
    return angles.cos(), angles.sin()


def _patches(x: torch.Tensor) -> torch.Tensor:
    """Return the patches of latents [B, C, t, h, w] as tokens [B, T, 4 C], channels last."""
    batch, channels, frames, height, width = x.shape
    cells = x.view(batch, channels, frames, height // CELLS, CELLS, width // CELLS, CELLS)
    return cells.permute(0, 2, 3, 5, 4, 6, 1).reshape(batch, -1, PATCH_AREA * channels)


def _cells(tokens: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return tokens [B, T, 4 C] as latents [B, C, t, h, w] of a shape."""
    batch, channels, frames, height, width = shape
    patches = tokens.view(batch, frames, height // CELLS, width // CELLS, CELLS, CELLS, channels)
    return patches.permute(0, 6, 1, 2, 4, 3, 5).reshape(batch, channels, frames, height, width)
