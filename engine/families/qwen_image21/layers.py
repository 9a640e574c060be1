"""The layers of the transformer of Qwen-Image 2.1 (`engine/families/qwen_image21/transformer.py`).

`B` batch, `T` tokens, `D` width, `H` heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.qwen_image21.prefix_states import KeysValues
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    ResidualNorm,
    RotaryHeads,
)
from darkroom.engine.layers.transformer_layers import Stretches as StretchedParts
from darkroom.engine.layers.unet_layers import timestep_embedding

HEAD_WIDTH = 128
TIME_FACTOR = 1000
EPS = 1e-6
FLOAT16_MAX = 65504

Options = dict[str, Any]
Modulation = tuple[torch.Tensor, torch.Tensor]  # of the tokens before the drawn image's, and of those
MARK = "txt_in.text_norm.weight"
MODULATION = "modulation.1.weight"
FEED_FORWARD = "transformer_blocks.0.img_mlp"


@dataclass(frozen=True, slots=True)
class QwenImage21Config:
    """Configuration of the network. With `joins_gates` a file has gates and values of feed-forward layers as one."""

    width: int
    num_blocks: int
    context_dim: int
    inner_width: int
    in_channels: int = 64
    time_width: int = 256
    joins_gates: bool = True

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def qwen_image21_config(shapes: Shapes) -> QwenImage21Config:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, in_channels = shapes["img_in.weight"]
    return QwenImage21Config(
        width=width,
        num_blocks=count_children(shapes, "transformer_blocks"),
        context_dim=shapes[MARK][0],
        inner_width=shapes[f"{FEED_FORWARD}.out.weight"][1],
        in_channels=in_channels,
        time_width=shapes["time_text_embed.timestep_embedder.linear_1.weight"][1],
        joins_gates=f"{FEED_FORWARD}.gate_up.weight" in shapes,
    )


class CentredNorm(nn.Module):
    """A norm of the last dimension in float32, whose factors are one plus its weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x.float(), (x.shape[-1],), self.weight.float() + 1.0, EPS).to(x.dtype)


class TextLayers(nn.Module):
    def __init__(self, config: QwenImage21Config) -> None:
        super().__init__()
        self.text_norm = CentredNorm(config.context_dim)
        self.in_layer = Linear(config.context_dim, config.width, bias=False)
        self.out_layer = Linear(config.width, config.width, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out_layer(functional.gelu(self.in_layer(self.text_norm(text)), approximate="tanh"))
        return out


class TimeLayers(nn.Module):
    """Times [B] of 0..1 -> [B, D]."""

    def __init__(self, config: QwenImage21Config) -> None:
        super().__init__()
        self.time_width = config.time_width
        self.timestep_embedder = nn.ModuleDict(
            {
                "linear_1": Linear(config.time_width, config.width, bias=False),
                "linear_2": Linear(config.width, config.width, bias=False),
            }
        )

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        hidden = self.timestep_embedder["linear_1"](
            timestep_embedding(times.float() * TIME_FACTOR, self.time_width).to(dtype)
        )
        out: torch.Tensor = self.timestep_embedder["linear_2"](functional.silu(hidden))
        return out


class GatedLayers(nn.Module):
    """Feed-forward layers whose values are gated (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, config: QwenImage21Config) -> None:
        super().__init__()
        self.joins_gates = config.joins_gates
        if config.joins_gates:
            self.gate_up = Linear(config.width, 2 * config.inner_width, bias=False)
        else:
            self.gate_layer, self.proj = (Linear(config.width, config.inner_width, bias=False) for _ in range(2))
        self.out = Linear(config.inner_width, config.width, bias=False)
        self.activation = GatedActivation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = (self.gate_up(x),) if self.joins_gates else (self.gate_layer(x), self.proj(x))
        out: torch.Tensor = self.out(self.activation(*given))
        return out


@dataclass(frozen=True, slots=True)
class Spliced:
    """The tokens [B, T, D] in front of a block, their rotations, and the stretches that see the same tokens.

    `stretches`: first and last token of each, and True where its tokens see only those before them. The image that is
    drawn begins at `drawn`. `before` are keys and values of tokens that all of these see and that are not among them;
    `keep` is given the keys and values of these.
    """

    tokens: torch.Tensor
    pe: torch.Tensor
    stretches: tuple[tuple[int, int, bool], ...]
    drawn: int
    before: KeysValues | None = None
    keep: Callable[[torch.Tensor, torch.Tensor], None] | None = None

    def split(self) -> tuple[Spliced, Spliced]:
        """Return the tokens before the drawn image, and those of it, each as if there were no others."""
        prefix = Spliced(self.tokens[:, : self.drawn], self.pe[:, :, : self.drawn], self.stretches[:-1], self.drawn)
        num_drawn = self.tokens.shape[1] - self.drawn
        drawn = Spliced(self.tokens[:, self.drawn :], self.pe[:, :, self.drawn :], ((0, num_drawn, False),), 0)
        return prefix, drawn


class StretchedAttention(nn.Module):
    def __init__(self, config: QwenImage21Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.to_q, self.to_k, self.to_v = (Linear(config.width, config.width, bias=False) for _ in range(3))
        self.to_out = nn.ModuleList([Linear(config.width, config.width, bias=False)])
        self.norm_q, self.norm_k = (RmsNorm(HEAD_WIDTH, EPS) for _ in range(2))
        self.rotary_heads = RotaryHeads()

    def forward(self, x: torch.Tensor, sequence: Spliced, options: Options | None) -> torch.Tensor:
        """Return [B, T, D]."""
        q, k, v = (self._split(layer(x)) for layer in (self.to_q, self.to_k, self.to_v))
        q, k = self.rotary_heads([(q, self.norm_q)], [(k, self.norm_k)], sequence.pe)
        if sequence.keep is not None:
            sequence.keep(k, v)
        num_before = 0
        if sequence.before is not None:
            num_before = sequence.before[0].shape[2]
            k, v = (torch.cat(pair, dim=2) for pair in zip(sequence.before, (k, v), strict=True))
        parts = [
            optimized_attention(
                q[:, :, start:end], k[:, :, : num_before + end], v[:, :, : num_before + end], self.heads,
                mask=_mask(start, end, x) if is_causal else None, skip_reshape=True, transformer_options=options,
            )
            for start, end, is_causal in sequence.stretches
        ]  # fmt: skip
        out: torch.Tensor = self.to_out[0](torch.cat(parts, dim=1))
        return out

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], self.heads, HEAD_WIDTH).transpose(1, 2)  # [B, H, T, W]


def _mask(start: int, end: int, like: torch.Tensor) -> torch.Tensor:
    """Return the mask of tokens from `start` to `end`: each attends to all tokens before it, and to itself."""
    return torch.ones(end - start, end, dtype=torch.bool, device=like.device).tril(start)


class StreamBlock(nn.Module):
    def __init__(self, config: QwenImage21Config) -> None:
        super().__init__()
        self.attn = StretchedAttention(config)
        self.img_mlp = GatedLayers(config)
        self.adaptive_norm, self.residual = AdaptiveNorm(eps=EPS), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self, x: torch.Tensor, modulation: Sequence[Modulation], sequence: Spliced, options: Options | None
    ) -> torch.Tensor:
        """Return [B, T, D]. `modulation` are scale and gate of the attention, then of the feed-forward layers."""
        lengths = sequence.drawn, x.shape[1] - sequence.drawn
        scale1, gate1, scale2, gate2 = (StretchedParts(lengths, parts) for parts in modulation)
        attended = self.attn(self.adaptive_norm(x, scale1), sequence, options)
        x, normed = self.residual_norm(x, attended, gate1, scale2)
        x = self.residual(x, self.img_mlp(normed), gate2)
        return x.clip(-FLOAT16_MAX, FLOAT16_MAX) if x.dtype == torch.float16 else x


class LastLayer(nn.Module):
    def __init__(self, config: QwenImage21Config) -> None:
        super().__init__()
        self.linear = Linear(config.width, config.width, bias=False)
        self.adaptive_norm = AdaptiveNorm(eps=EPS)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.adaptive_norm(x, self.linear(functional.silu(time)).unsqueeze(1))
        return out
