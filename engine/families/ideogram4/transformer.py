"""The transformer of Ideogram 4 (Ideogram 2026): one stream of text and image that reads thirteen layers of Qwen3-VL.

Norms stand on both sides of attention and feed-forward layers, and the time scales and gates what lies between them.
Positions are rotations on three axes (frame, row, column) in turns, as Qwen3-VL's: a text's count on all axes, an
image's begin far behind them. Without text the image is alone in the stream. `B` batch, `C` channels, `h w` latent
cells, `L` tokens of text, `T` tokens of text and image, `D` hidden size. Module names are those of the checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.feed_forward import GatedFeedForward
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.rotary import Turns
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.token_rotations import rotation
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedResidual,
    ResidualNorm,
    RotaryHeads,
    RotaryLayout,
)
from darkroom.engine.layers.unet_layers import Options

MARK = "embed_image_indicator.weight"
THETA = 5e6
SECTIONS = (24, 20, 20)  # channels that rotate by frame, row and column, in turns
IMAGE_OFFSET = 65536  # of an image's positions
CELLS = 4  # of the latent before packing, that are one token
NORM_EPS, TEXT_NORM_EPS = 1e-5, 1e-6
TIME_SCALE, MAX_PERIOD = 1e4, 1e4


@dataclass(frozen=True, slots=True)
class Ideogram4Config:
    """Configuration of the network."""

    hidden_size: int = 4608
    head_dim: int = 256
    intermediate_size: int = 12288
    num_layers: int = 34
    adaln_dim: int = 512
    context_dim: int = 53248
    in_channels: int = 128

    @property
    def heads(self) -> int:
        return self.hidden_size // self.head_dim


def ideogram4_config(shapes: Shapes) -> Ideogram4Config:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    hidden_size, in_channels = shapes["input_proj.weight"]
    return Ideogram4Config(
        hidden_size=hidden_size,
        head_dim=shapes["layers.0.attention.norm_q.weight"][0],
        intermediate_size=shapes["layers.0.feed_forward.w1.weight"][0],
        num_layers=count_children(shapes, "layers"),
        adaln_dim=shapes["adaln_proj.weight"][0],
        context_dim=shapes["llm_cond_norm.weight"][0],
        in_channels=in_channels,
    )


def positions_of(num_text: int, rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Return the positions [3, L + rows * columns] of a text's tokens and an image's: frame, row and column."""
    text = torch.arange(num_text, device=device).expand(3, -1)
    row = torch.arange(rows, device=device)[:, None].expand(rows, columns).flatten()
    column = torch.arange(columns, device=device)[None].expand(rows, columns).flatten()
    image = torch.stack([torch.zeros_like(row), row, column]) + IMAGE_OFFSET
    return torch.cat([text, image], dim=1)


def time_waves(times: torch.Tensor, size: int) -> torch.Tensor:
    """Return sines, then cosines, of times [B] of 0..1 as [B, D], float32."""
    half = size // 2
    steps = torch.arange(half, dtype=torch.float32, device=times.device)
    angles = (TIME_SCALE * times.float())[:, None] * torch.exp(steps * (-math.log(MAX_PERIOD) / (half - 1)))
    return functional.pad(torch.cat([angles.sin(), angles.cos()], dim=-1), (0, size % 2))


class StreamAttention(nn.Module):
    def __init__(self, config: Ideogram4Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.norm_q, self.norm_k = (RmsNorm(config.head_dim, NORM_EPS) for _ in range(2))
        self.o = Linear(config.hidden_size, config.hidden_size, bias=False)
        self.rotary_heads = RotaryHeads(RotaryLayout.HALVES, token_dim=1, is_float32=True)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None, turns: Turns, options: Options | None
    ) -> torch.Tensor:
        """Return [B, T, D]. `mask` [B, 1, T, T] is added to the scores."""
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, -1, self.head_dim).unbind(2)
        q, k = self.rotary_heads([(q, self.norm_q)], [(k, self.norm_k)], turns)
        q, k, v = (item.transpose(1, 2) for item in (q, k, v))
        attended = optimized_attention(q, k, v, q.shape[1], mask=mask, skip_reshape=True, transformer_options=options)
        out: torch.Tensor = self.o(attended)
        return out


class StreamBlock(nn.Module):
    def __init__(self, config: Ideogram4Config) -> None:
        super().__init__()
        self.attention, self.feed_forward = (
            StreamAttention(config),
            GatedFeedForward(config.hidden_size, config.intermediate_size, clamps_product=True),
        )
        self.attention_norm1, self.attention_norm2, self.ffn_norm1, self.ffn_norm2 = (
            RmsNorm(config.hidden_size, NORM_EPS) for _ in range(4)
        )
        self.adaln_modulation = Linear(config.adaln_dim, 4 * config.hidden_size)
        self.adaptive_norm, self.residual = AdaptiveNorm("none"), GatedResidual(has_tanh=True)
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None, turns: Turns, time: torch.Tensor, options: Options | None
    ) -> torch.Tensor:
        """Return [B, T, D]. `time` is [B, 1, adaln_dim]."""
        scale, gate, inner_scale, inner_gate = self.adaln_modulation(time).chunk(4, dim=-1)
        attended = self.attention(self.adaptive_norm(x, scale, norm=self.attention_norm1), mask, turns, options)
        x, normed = self.residual_norm(
            x, attended, gate, inner_scale, change_norm=self.attention_norm2, norm=self.ffn_norm1
        )
        out: torch.Tensor = self.residual(x, self.feed_forward(normed), inner_gate, self.ffn_norm2)
        return out


class TimeEmbedder(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.mlp_in, self.mlp_out = (Linear(hidden_size, hidden_size) for _ in range(2))

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        hidden = self.mlp_in(time_waves(times, self.mlp_in.in_features).to(dtype))
        out: torch.Tensor = self.mlp_out(functional.silu(hidden))
        return out


class FinalLayer(nn.Module):
    def __init__(self, config: Ideogram4Config) -> None:
        super().__init__()
        self.linear = Linear(config.hidden_size, config.in_channels)
        self.adaln_modulation = Linear(config.adaln_dim, config.hidden_size)
        self.adaptive_norm = AdaptiveNorm()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.adaptive_norm(x, self.adaln_modulation(functional.silu(time))))
        return out


class Ideogram4Transformer(nn.Module):
    """The network: a noisy latent [B, C, h, w], times [B], text [B, L, D'] or none -> its prediction [B, C, h, w]."""

    def __init__(self, config: Ideogram4Config) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.input_proj = Linear(config.in_channels, size)
        self.llm_cond_norm = RmsNorm(config.context_dim, TEXT_NORM_EPS)
        self.llm_cond_proj = Linear(config.context_dim, size)
        self.t_embedding = TimeEmbedder(size)
        self.adaln_proj = Linear(size, config.adaln_dim)
        self.embed_image_indicator = nn.Embedding(2, size)
        self.layers = nn.ModuleList(StreamBlock(config) for _ in range(config.num_layers))
        self.final_layer = FinalLayer(config)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor | None = None,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        attention_mask: torch.Tensor | None = None,
        **_: object,
    ) -> torch.Tensor:
        """Predict; there is no `y` and no `control` for it. `attention_mask` [B, L] is 0 for padding of the text."""
        rows, columns = x.shape[2:]
        time = functional.silu(self.adaln_proj(self.t_embedding(1.0 - timesteps, x.dtype)))[:, None]
        of_text, of_image = self.embed_image_indicator.weight.to(x.dtype)
        stream = self.input_proj(tokens_of_packed(x)) + of_image
        num_text, mask = 0, None
        if context is not None:
            num_text = context.shape[1]
            stream = torch.cat([self._text(context, attention_mask) + of_text, stream], dim=1)
            mask = None if attention_mask is None else segment_mask(attention_mask, rows * columns, x.dtype)
        turns = self._turns(positions_of(num_text, rows, columns, x.device))
        for layer in self.layers:
            stream = layer(stream, mask, turns, time, transformer_options)
        return -packed_of_tokens(self.final_layer(stream[:, num_text:], time), rows, columns)

    def _text(self, context: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        if attention_mask is None:
            out: torch.Tensor = self.llm_cond_proj(self.llm_cond_norm(context))
            return out
        is_text = (attention_mask != 0).to(context.dtype)[..., None]
        masked: torch.Tensor = self.llm_cond_proj(self.llm_cond_norm(context * is_text)) * is_text
        return masked

    def _turns(self, positions: torch.Tensor) -> Turns:
        """Return cosines and sines [1, T, 1, head_dim / 2] of positions [3, T]."""
        half = self.config.head_dim // 2
        cos, sin = rotation(positions, self.config.head_dim, THETA, sections=SECTIONS, interleaved=True)
        return cos[..., :half].transpose(1, 2), sin[..., :half].transpose(1, 2)


def segment_mask(attention_mask: torch.Tensor, num_image: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the bias of the scores [B, 1, T, T], so that text and image do not see the text's padding."""
    is_seen = functional.pad(attention_mask != 0, (0, num_image), value=True)
    is_same = is_seen[:, :, None] == is_seen[:, None, :]
    return torch.zeros(is_same.shape, dtype=dtype, device=is_same.device).masked_fill_(
        ~is_same, -torch.finfo(dtype).max
    )[:, None]


def tokens_of_packed(x: torch.Tensor) -> torch.Tensor:
    """Return the tokens [B, h * w, 4 * c] of a packed latent [B, c * 4, h, w], channels innermost."""
    batch, channels, rows, columns = x.shape
    return x.view(batch, channels // CELLS, CELLS, rows * columns).permute(0, 3, 2, 1).reshape(batch, -1, channels)


def packed_of_tokens(tokens: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return tokens [B, h * w, 4 * c], channels innermost, as a packed latent [B, c * 4, h, w]."""
    batch, _, channels = tokens.shape
    cells = tokens.view(batch, rows * columns, CELLS, channels // CELLS)
    return cells.permute(0, 3, 2, 1).reshape(batch, channels, rows, columns)
