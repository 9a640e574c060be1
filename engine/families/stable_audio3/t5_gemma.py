"""T5Gemma's encoder (Zhang et al. 2025, arXiv 2504.06225): a Gemma 2 whose tokens attend in both directions.

Scores of attention are bounded by a hyperbolic tangent; of every two layers the first attends to 4096 tokens on either
side. `B` chunks, `T` tokens, `D` hidden size, `H` heads, `K` heads of keys. Module names are those of the transformers
library's files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import nn

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.language_model import GEMMA2, GatedLayers, LanguageModelConfig, ScaledEmbedding
from darkroom.engine.layers.norms import OnePlusRmsNorm
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.token_rotations import Rotation, rotated, rotation

EMBEDDING = "model.encoder.embed_tokens.weight"
BLOCK = "model.encoder.layers.0."
MARK = f"{BLOCK}pre_self_attn_layernorm.weight"
HEAD_DIM = 64
THETA: Final = 10000.0
LARGEST_SCORE: Final = 50.0
WINDOW_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class T5GemmaConfig:
    """Configuration of an encoder, with heads of 64 channels."""

    width: int = 768
    intermediate_size: int = 2048
    num_layers: int = 12
    num_heads: int = 12
    num_key_heads: int = 12
    vocabulary_size: int = 256000


def t5_gemma_config(shapes: Shapes) -> T5GemmaConfig:
    """Return the configuration of the encoder with these tensors. Raises LookupError for a missing one."""
    vocabulary_size, width = shapes[EMBEDDING]
    return T5GemmaConfig(
        width=width,
        intermediate_size=shapes[f"{BLOCK}mlp.down_proj.weight"][1],
        num_layers=count_children(shapes, "model.encoder.layers"),
        num_heads=shapes[f"{BLOCK}self_attn.q_proj.weight"][0] // HEAD_DIM,
        num_key_heads=shapes[f"{BLOCK}self_attn.k_proj.weight"][0] // HEAD_DIM,
        vocabulary_size=vocabulary_size,
    )


class BoundedAttention(nn.Module):
    """Attention whose scores are bounded, which fused kernels of attention do not compute."""

    def __init__(self, config: T5GemmaConfig) -> None:
        super().__init__()
        width = config.width
        self.num_heads, self.num_key_heads = config.num_heads, config.num_key_heads
        self.q_proj = Linear(width, config.num_heads * HEAD_DIM, bias=False)
        self.k_proj, self.v_proj = (Linear(width, config.num_key_heads * HEAD_DIM, bias=False) for _ in range(2))
        self.o_proj = Linear(config.num_heads * HEAD_DIM, width, bias=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None, positions: Rotation) -> torch.Tensor:
        """Return [B, T, D]. `mask` [B or 1, 1, T, T] is added to the scores."""
        q, k, v = (
            projection(x).view(*x.shape[:2], -1, HEAD_DIM).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        shared = self.num_heads // self.num_key_heads
        q, k = rotated(q, positions), rotated(k, positions).repeat_interleave(shared, dim=1)
        scores = torch.matmul(q * HEAD_DIM**-0.5, k.transpose(-2, -1))  # [B, H, T, T]
        scores = torch.tanh(scores / LARGEST_SCORE) * LARGEST_SCORE
        shares = torch.softmax((scores if mask is None else scores + mask).float(), dim=-1).to(q.dtype)
        attended = torch.matmul(shares, v.repeat_interleave(shared, dim=1))
        out: torch.Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return out


class T5GemmaLayer(nn.Module):
    def __init__(self, config: T5GemmaConfig) -> None:
        super().__init__()
        self.self_attn = BoundedAttention(config)
        self.mlp = GatedLayers(_as_gemma(config))
        self.pre_self_attn_layernorm, self.post_self_attn_layernorm = _norms(config)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = _norms(config)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None, positions: Rotation) -> torch.Tensor:
        """Return [B, T, D]."""
        attended = self.self_attn(self.pre_self_attn_layernorm(x), mask, positions)
        x = x + self.post_self_attn_layernorm(attended)
        out: torch.Tensor = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return out


class T5GemmaStack(nn.Module):
    def __init__(self, config: T5GemmaConfig) -> None:
        super().__init__()
        self.embed_tokens = ScaledEmbedding(config.vocabulary_size, config.width)
        self.layers = nn.ModuleList(T5GemmaLayer(config) for _ in range(config.num_layers))
        self.norm = OnePlusRmsNorm(config.width)

    def forward(self, embeds: torch.Tensor, mask: torch.Tensor, layer: int | None = None) -> torch.Tensor:
        """Return the output of `layer` [B, T, D], counted from the end where negative, or of the last one (None).

        It is after the final norm. `mask` [B, T] is 1 for tokens that others attend to.
        """
        length = embeds.shape[1]
        positions = rotation(torch.arange(length, device=embeds.device)[None], HEAD_DIM, THETA)
        hidden = torch.finfo(embeds.dtype).min
        everywhere = torch.zeros_like(mask, dtype=embeds.dtype).masked_fill(mask == 0, hidden)[:, None, None]
        nearby = everywhere if length <= WINDOW_TOKENS else everywhere + _outside_window(embeds) * hidden
        last = len(self.layers) - 1
        wanted = last if layer is None else layer + len(self.layers) if layer < 0 else layer
        x = embeds
        for index, block in enumerate(self.layers[: wanted + 1]):
            x = block(x, nearby if index % 2 == 0 else everywhere, positions)
        out: torch.Tensor = self.norm(x)
        return out


class T5GemmaModel(nn.Module):
    """An encoder. Weights may be of any type, inputs are of the computed one."""

    def __init__(self, config: T5GemmaConfig) -> None:
        super().__init__()
        self.config = config
        self.num_layers = config.num_layers
        self.model = nn.ModuleDict({"encoder": T5GemmaStack(config)})

    @property
    def encoder(self) -> T5GemmaStack:
        return cast(T5GemmaStack, self.model["encoder"])

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens


def _outside_window(embeds: torch.Tensor) -> torch.Tensor:
    """Return 1 for pairs of tokens farther than the window from each other, else 0 [T, T]."""
    positions = torch.arange(embeds.shape[1], device=embeds.device)
    return ((positions[None] - positions[:, None]).abs() > WINDOW_TOKENS).to(embeds.dtype)


def _norms(config: T5GemmaConfig) -> tuple[OnePlusRmsNorm, OnePlusRmsNorm]:
    return OnePlusRmsNorm(config.width), OnePlusRmsNorm(config.width)


def _as_gemma(config: T5GemmaConfig) -> LanguageModelConfig:
    """Return the configuration of a Gemma 2 with the same feed-forward layers."""
    return LanguageModelConfig(
        kind=GEMMA2,
        num_layers=config.num_layers,
        width=config.width,
        heads=config.num_heads,
        key_heads=config.num_key_heads,
        inner_width=config.intermediate_size,
        vocabulary_size=config.vocabulary_size,
    )
