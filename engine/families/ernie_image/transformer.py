"""The transformer of ERNIE-Image (Baidu 2026): one stream of image and text that reads Ministral 3B.

All blocks share one modulation of the time. Positions are rotations on three axes (index, row, column): a text's tokens
count on the first, where the image follows them. Channel n of a head turns with channel n + 64, each of both by an
angle of its own: the frequencies of all axes stand once for all channels. `B` batch, `C` channels, `h w` latent cells,
`L` tokens of text, `T` tokens of image and text, `D` hidden size, `H` heads, `W` channels of a head. Module names are
those of the checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import tokens_of
from darkroom.engine.layers.rope_options import axis_positions
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    ResidualNorm,
    RotaryHeads,
)
from darkroom.engine.layers.unet_layers import Options

MARK = "layers.0.mlp.linear_fc2.weight"
AXES = (32, 48, 48)  # channels of a head that have the frequencies of index, row and column
HEAD_DIM = sum(AXES)
THETA = 256.0
MAX_PERIOD = 10000


@dataclass(frozen=True, slots=True)
class ErnieImageConfig:
    """Configuration of the network."""

    hidden_size: int = 4096
    intermediate_size: int = 12288
    num_layers: int = 36
    context_dim: int = 3072
    in_channels: int = 128

    @property
    def heads(self) -> int:
        return self.hidden_size // HEAD_DIM


def ernie_image_config(shapes: Shapes) -> ErnieImageConfig:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    hidden_size, in_channels = shapes["x_embedder.proj.weight"][:2]
    return ErnieImageConfig(
        hidden_size=hidden_size,
        intermediate_size=shapes[MARK][1],
        num_layers=count_children(shapes, "layers"),
        context_dim=shapes["text_proj.weight"][1] if "text_proj.weight" in shapes else hidden_size,
        in_channels=in_channels,
    )


# --- positions -------------------------------------------------------------------------------------------------------


def positions_of(rows: int, columns: int, num_text: int, options: Options | None, device: torch.device) -> torch.Tensor:
    """Return the positions [rows * columns + L, 3] of an image's cells and of a text's tokens: index, row, column.

    The `rope_options` of `options` scale and shift those of the image.
    """
    image = torch.empty(rows, columns, len(AXES), device=device)
    image[..., 0] = axis_positions(1, "t", options, device, first=num_text)
    image[..., 1] = axis_positions(rows, "y", options, device)[:, None]
    image[..., 2] = axis_positions(columns, "x", options, device)[None, :]
    text = torch.arange(num_text, dtype=torch.float32, device=device)[:, None]
    return torch.cat([image.flatten(0, 1), functional.pad(text, (0, len(AXES) - 1))])


def turning(positions: torch.Tensor) -> torch.Tensor:
    """Return the matrices [1, T, 1, W / 2, 2, 2] by which channels n and n + W / 2 turn at positions [T, 3], float32.

    The first row of a matrix has the angle of channel n, the second that of its fellow.
    """
    parts = []
    for axis, channels in enumerate(AXES):
        steps = torch.arange(0, channels, 2, dtype=torch.float64, device=positions.device) / channels
        parts.append(positions[:, axis, None].double() / THETA**steps)
    angles = torch.cat(parts, dim=-1).repeat_interleave(2, dim=-1)  # [T, W]
    first, second = angles.chunk(2, dim=-1)
    matrices = torch.stack([first.cos(), -first.sin(), second.sin(), second.cos()], dim=-1)
    return matrices.float().view(1, len(positions), 1, -1, 2, 2)


def fellows_joined(heads: torch.Tensor) -> torch.Tensor:
    """Return heads [..., W] with channels n and n + W / 2 beside each other."""
    return heads.reshape(*heads.shape[:-1], 2, -1).transpose(-1, -2).flatten(-2)


def time_waves(times: torch.Tensor, size: int) -> torch.Tensor:
    """Return sines, then cosines, of times [B] as [B, size], float32."""
    half = size // 2
    steps = torch.arange(half, dtype=torch.float32, device=times.device)
    angles = times.float()[:, None] * torch.exp(-math.log(MAX_PERIOD) * steps / half)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


# --- layers ----------------------------------------------------------------------------------------------------------


class StreamAttention(nn.Module):
    """Self-attention of all tokens. Queries and keys have their channels in another order, which scores do not show."""

    def __init__(self, config: ErnieImageConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.heads = config.heads
        self.to_q, self.to_k, self.to_v = (Linear(size, size, bias=False) for _ in range(3))
        self.norm_q, self.norm_k = (RmsNorm(HEAD_DIM) for _ in range(2))
        self.to_out = nn.ModuleList([Linear(size, size, bias=False)])
        self.rotary_heads = RotaryHeads(token_dim=1)

    def forward(self, x: torch.Tensor, turns: torch.Tensor, options: Options | None) -> torch.Tensor:
        """Return [B, T, D]."""
        q, k = (
            fellows_joined(norm(layer(x).view(*x.shape[:2], self.heads, HEAD_DIM)))
            for layer, norm in ((self.to_q, self.norm_q), (self.to_k, self.norm_k))
        )
        q, k = self.rotary_heads([(q, None)], [(k, None)], turns)
        attended = optimized_attention(
            q.flatten(2), k.flatten(2), self.to_v(x), self.heads, transformer_options=options
        )
        out: torch.Tensor = self.to_out[0](attended)
        return out


class FeedForward(nn.Module):
    def __init__(self, config: ErnieImageConfig) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (
            Linear(config.hidden_size, config.intermediate_size, bias=False) for _ in range(2)
        )
        self.linear_fc2 = Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.activation = GatedActivation("gelu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear_fc2(self.activation(self.gate_proj(x), self.up_proj(x)))
        return out


class StreamBlock(nn.Module):
    def __init__(self, config: ErnieImageConfig) -> None:
        super().__init__()
        self.adaLN_sa_ln, self.adaLN_mlp_ln = (RmsNorm(config.hidden_size) for _ in range(2))
        self.self_attention, self.mlp = StreamAttention(config), FeedForward(config)
        self.adaptive_norm, self.residual = AdaptiveNorm("none"), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self, x: torch.Tensor, turns: torch.Tensor, modulation: tuple[torch.Tensor, ...], options: Options | None
    ) -> torch.Tensor:
        """Return [B, T, D]. `modulation` is shift, scale and gate [B, 1, D], of attention and of the other layers."""
        shift, scale, gate, second_shift, second_scale, second_gate = modulation
        attended = self.self_attention(self.adaptive_norm(x, scale, shift, self.adaLN_sa_ln), turns, options)
        x, normed = self.residual_norm(x, attended, gate, second_scale, second_shift, norm=self.adaLN_mlp_ln)
        out: torch.Tensor = self.residual(x, self.mlp(normed), second_gate)
        return out


class TimeEmbedder(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = (Linear(hidden_size, hidden_size) for _ in range(2))

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        hidden = functional.silu(self.linear_1(time_waves(times, self.linear_1.in_features).to(dtype)))
        out: torch.Tensor = self.linear_2(hidden)
        return out


class LastNorm(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = Linear(hidden_size, 2 * hidden_size)
        self.adaptive_norm = AdaptiveNorm(is_joined=True)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        scale, shift = self.linear(time)[:, None].chunk(2, dim=-1)
        out: torch.Tensor = self.adaptive_norm(x, scale, shift)
        return out


class ErnieImageTransformer(nn.Module):
    """`forward(x [B, C, h, w], timesteps [B], context [B, L, context_dim])` -> `[B, C, h, w]`.

    Built without weights being drawn when a `torch.device("meta")` context is open.
    """

    is_wrapped = False

    def __init__(self, config: ErnieImageConfig) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.x_embedder = nn.ModuleDict({"proj": Conv2d(config.in_channels, size, 1)})
        self.text_proj = Linear(config.context_dim, size, bias=False) if config.context_dim != size else nn.Identity()
        self.time_embedding = TimeEmbedder(size)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(size, 6 * size))
        self.layers = nn.ModuleList(StreamBlock(config) for _ in range(config.num_layers))
        self.final_norm = LastNorm(size)
        self.final_linear = Linear(size, config.in_channels)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        **_: object,
    ) -> torch.Tensor:
        """Predict; there is no `y` and no `control` for it."""
        rows, columns = x.shape[2:]
        image = tokens_of(self.x_embedder["proj"](x))
        stream = torch.cat([image, self.text_proj(context)], dim=1)
        turns = turning(positions_of(rows, columns, context.shape[1], transformer_options, x.device))
        time = self.time_embedding(timesteps, x.dtype)
        modulation = self.adaLN_modulation(time)[:, None].chunk(6, dim=-1)
        for layer in self.layers:
            stream = layer(stream, turns, modulation, transformer_options)
        drawn: torch.Tensor = self.final_linear(self.final_norm(stream[:, : image.shape[1]], time))
        return drawn.transpose(1, 2).reshape(x.shape)
