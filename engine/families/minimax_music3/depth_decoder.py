"""The decoder of a frame of MiniMax Music 3: seven further codes, one after the other, by a small transformer.

Each code refines what the codes before it describe (RQ-Transformer: Lee et al. 2022, arXiv 2203.01941). `B` prompts,
`T` codes, `D` hidden size. Module names are those of the published file.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.shapes import Shapes, count_children

HEADS = 16
POSITIONS = 16

PREFIX = "model.audio_decoder."
KEY = f"{PREFIX}projection.weight"
LAYER = f"{PREFIX}layers.0."


@dataclass(frozen=True, slots=True)
class DepthDecoderConfig:
    """Configuration of the network: `num_codebooks` further codes, each one of `num_codes`.

    With `joins_queries` queries, keys and values are one projection, with `joins_gates` gates and values of
    feed-forward layers are.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int = 4
    num_codebooks: int = 7
    num_codes: int = 1024
    joins_queries: bool = False
    joins_gates: bool = False


def depth_decoder_config(shapes: Shapes) -> DepthDecoderConfig:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    hidden_size, intermediate_size = shapes[f"{LAYER}mlp.down_proj.weight"]
    return DepthDecoderConfig(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=count_children(shapes, f"{PREFIX}layers"),
        num_codebooks=count_children(shapes, f"{PREFIX}audio_heads"),
        num_codes=shapes[f"{PREFIX}audio_heads.0.weight"][0],
        joins_queries=f"{LAYER}self_attn.qkv_proj.weight" in shapes,
        joins_gates=f"{LAYER}mlp.gate_up_proj.weight" in shapes,
    )


class DepthAttention(nn.Module):
    def __init__(self, config: DepthDecoderConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.joins_queries = config.joins_queries
        if config.joins_queries:
            self.qkv_proj = Linear(size, 3 * size, bias=False)
        else:
            self.q_proj, self.k_proj, self.v_proj = (Linear(size, size, bias=False) for _ in range(3))
        self.o_proj = Linear(size, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.joins_queries:
            q, k, v = self.qkv_proj(x).chunk(3, dim=-1)
        else:
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        out: torch.Tensor = self.o_proj(attention(q, k, v, HEADS, is_causal=True))
        return out


class DepthFeedForward(nn.Module):
    def __init__(self, config: DepthDecoderConfig) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.joins_gates = config.joins_gates
        if config.joins_gates:
            self.gate_up_proj = Linear(size, 2 * inner, bias=False)
        else:
            self.gate_proj, self.up_proj = (Linear(size, inner, bias=False) for _ in range(2))
        self.down_proj = Linear(inner, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = (
            self.gate_up_proj(x).chunk(2, dim=-1) if self.joins_gates else (self.gate_proj(x), self.up_proj(x))
        )
        out: torch.Tensor = self.down_proj(functional.silu(gate) * value)
        return out


class DepthBlock(nn.Module):
    def __init__(self, config: DepthDecoderConfig) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (RmsNorm(config.hidden_size) for _ in range(2))
        self.self_attn, self.mlp = DepthAttention(config), DepthFeedForward(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class DepthDecoder(nn.Module):
    """`forward(rows [B, T, D])` -> the state [B, D] from which the code behind the last row is drawn."""

    def __init__(self, config: DepthDecoderConfig) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.projection = Linear(size, size, bias=False)
        self.pos_embedding = nn.Embedding(POSITIONS, size)
        self.audio_heads = nn.ModuleList(
            Linear(size, config.num_codes, bias=False) for _ in range(config.num_codebooks)
        )
        self.layers = nn.ModuleList(DepthBlock(config) for _ in range(config.num_layers))
        self.norm = RmsNorm(size)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(rows.shape[1], device=rows.device)
        x = rows + self.pos_embedding(positions).to(rows.dtype)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.norm(x[:, -1])
        return out
