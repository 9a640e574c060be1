"""GPT-OSS (OpenAI 2025, arXiv 2508.10925), of any width and depth: a language model of experts, as a text encoder.

Each token goes through a few of a layer's experts. Here all experts read all tokens: their weights are read either way,
and no device waits to learn which tokens an expert gets. Every second layer attends to the last 128 tokens alone. Each
head has a sink, a score that takes its share of attention and returns nothing. `T` tokens, `D` hidden size, `H` heads,
`E` experts, `I` intermediate size. Module names are those of the published checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.rotary import Turns, rotated_halves
from darkroom.engine.layers.shapes import Shapes, count_children

HEAD_DIM = 64
NORM_EPS = 1e-5
WINDOW = 128  # tokens that layers of an even number attend to
EXPERTS_PER_TOKEN = 4
GATE_FACTOR, GATE_LIMIT = 1.702, 7.0
# Rotations (YaRN: Peng et al. 2023, arXiv 2309.00071): slow ones are slowed further, by RANGE_FACTOR.
THETA, RANGE_FACTOR, TRAINED_POSITIONS = 150000.0, 32.0, 4096
FASTEST_TURNS, SLOWEST_TURNS = 32.0, 1.0  # turns within the trained positions, between which rotations are mixed
MARK, EXPERTS = "layers.0.self_attn.sinks", "layers.0.mlp.experts.gate_up_proj.weight"
EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class GptOssConfig:
    """Configuration of the network."""

    hidden_size: int = 2880
    intermediate_size: int = 2880
    num_layers: int = 24
    heads: int = 64
    key_heads: int = 8
    num_experts: int = 32
    vocabulary_size: int = 201088

    @property
    def width(self) -> int:
        """Width of a token."""
        return self.hidden_size


def gpt_oss_config(shapes: Shapes) -> GptOssConfig:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    vocabulary_size, hidden_size = shapes[EMBEDDING]
    num_experts, both, _ = shapes[EXPERTS]
    return GptOssConfig(
        hidden_size=hidden_size,
        intermediate_size=both // 2,
        num_layers=count_children(shapes, "layers"),
        heads=shapes["layers.0.self_attn.q_proj.weight"][0] // HEAD_DIM,
        key_heads=shapes["layers.0.self_attn.k_proj.weight"][0] // HEAD_DIM,
        num_experts=num_experts,
        vocabulary_size=vocabulary_size,
    )


def turns_of(num_tokens: int, device: torch.device) -> Turns:
    """Return cosines and sines [T, 32] of the positions of tokens, scaled as attention to a long text needs."""
    half = HEAD_DIM // 2
    steps = torch.arange(half, dtype=torch.float32, device=device)
    plain = 1.0 / THETA ** (2 * steps / HEAD_DIM)
    first, last = (
        HEAD_DIM * math.log(TRAINED_POSITIONS / (turns * 2 * math.pi)) / (2 * math.log(THETA))
        for turns in (FASTEST_TURNS, SLOWEST_TURNS)
    )
    low, high = max(first, 0.0), min(last, HEAD_DIM - 1.0)
    share = ((steps - low) / (high - low)).clamp(0, 1)
    frequencies = plain / RANGE_FACTOR * share + plain * (1 - share)
    angles = torch.arange(num_tokens, dtype=torch.float32, device=device)[:, None] * frequencies
    scale = 0.1 * math.log(RANGE_FACTOR) + 1.0
    return angles.cos() * scale, angles.sin() * scale


def seen_by(num_tokens: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Return True [T, T] where a token (row) attends to another: those before it, of the last `window`."""
    places = torch.arange(num_tokens, device=device)
    distance = places[:, None] - places
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


class SinkAttention(nn.Module):
    """Attention with sinks, whose keys and values serve several heads of queries."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        size, key_size = config.heads * HEAD_DIM, config.key_heads * HEAD_DIM
        self.shared = config.heads // config.key_heads
        self.q_proj, self.o_proj = Linear(config.hidden_size, size), Linear(size, config.hidden_size)
        self.k_proj, self.v_proj = (Linear(config.hidden_size, key_size) for _ in range(2))
        self.sinks = nn.Parameter(torch.zeros(config.heads))

    def forward(self, x: torch.Tensor, turns: Turns, bias: torch.Tensor) -> torch.Tensor:
        """Return [T, D]. `bias` [T, T] is added to the scores."""
        q, k, v = (
            layer(x).view(len(x), -1, HEAD_DIM).transpose(0, 1) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )  # [H, T, 64]
        q, k = rotated_halves(q, turns), rotated_halves(k, turns)
        # A key of zeros has the sink as its score, and its value is zero.
        k, v = (functional.pad(item.repeat_interleave(self.shared, dim=0), (0, 0, 0, 1)) for item in (k, v))
        sinks = self.sinks.to(q)[:, None, None].expand(-1, len(x), -1)
        scores = torch.cat([bias.to(q).expand(len(q), -1, -1), sinks], dim=-1)  # [H, T, T + 1]
        attended = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=scores[None])[0]
        out: torch.Tensor = self.o_proj(attended.transpose(0, 1).flatten(1))
        return out


class ExpertLinear(nn.Linear):
    """A matrix for each expert: `forward(x [1 or E, T, in])` -> [E, T, out]."""

    def __init__(self, num_experts: int, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.weight = nn.Parameter(torch.zeros(num_experts, out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(num_experts, out_features))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight.to(input), self.bias.to(input)
        return torch.baddbmm(bias[:, None], input.expand(len(weight), -1, -1), weight.transpose(1, 2))


class Router(nn.Module):
    """`forward(x [T, D])` -> the shares [T, E] of experts, zero for all but the best."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.num_experts, config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(config.num_experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = functional.linear(x, self.weight.to(x), self.bias.to(x))
        best, experts = scores.topk(min(EXPERTS_PER_TOKEN, scores.shape[-1]), dim=-1)
        return torch.zeros_like(scores).scatter(-1, experts, best.softmax(dim=-1))


class Experts(nn.Module):
    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.gate_up_proj = ExpertLinear(config.num_experts, config.hidden_size, 2 * config.intermediate_size)
        self.down_proj = ExpertLinear(config.num_experts, config.intermediate_size, config.hidden_size)

    def forward(self, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Return [T, D]: what each token's experts make of it, by their shares [T, E]."""
        both = self.gate_up_proj(x[None])  # [E, T, 2 I], gates and values in turns
        gate, value = both[..., ::2].clamp(max=GATE_LIMIT), both[..., 1::2].clamp(-GATE_LIMIT, GATE_LIMIT)
        inner = gate * torch.sigmoid(gate * GATE_FACTOR) * (value + 1)
        return torch.einsum("etd,te->td", self.down_proj(inner), shares)


class ExpertLayers(nn.Module):
    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.router, self.experts = Router(config), Experts(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.experts(x, self.router(x))
        return out


class GptOssBlock(nn.Module):
    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = SinkAttention(config), ExpertLayers(config)
        self.input_layernorm, self.post_attention_layernorm = (RmsNorm(config.hidden_size, NORM_EPS) for _ in range(2))

    def forward(self, x: torch.Tensor, turns: Turns, bias: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turns, bias)
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class GptOss(nn.Module):
    """`forward(rows [T, D], layers)` -> the outputs [T, N, D] of these layers (numbers from 0)."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.config = config
        self.num_layers = config.num_layers
        self.embed_tokens = nn.Embedding(config.vocabulary_size, config.hidden_size)
        self.layers = nn.ModuleList(GptOssBlock(config) for _ in range(config.num_layers))
        self.norm = RmsNorm(config.hidden_size, NORM_EPS)

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of tokens' rows, by ComfyUI's name."""
        return self.embed_tokens

    def forward(self, rows: torch.Tensor, layers: Sequence[int]) -> torch.Tensor:
        turns = tuple(item.to(rows) for item in turns_of(len(rows), rows.device))
        biases = [
            torch.zeros_like(seen, dtype=rows.dtype).masked_fill(~seen, torch.finfo(rows.dtype).min)
            for seen in (seen_by(len(rows), window, rows.device) for window in (WINDOW, None))
        ]
        outputs: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(self.layers[: max(layers) + 1]):
            rows = layer(rows, turns, biases[index % 2])
            outputs[index] = rows
        return torch.stack([outputs[index] for index in layers], dim=1)
