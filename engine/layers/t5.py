"""T5's encoder (Raffel et al. 2019, arXiv 1910.10683), of any kind: T5, T5 1.1, mT5, umT5, Pile-T5, ByT5.

Feed-forward layers are gated in all but the first T5 (Shazeer 2020, arXiv 2002.05202), which has rectified ones.
`B` chunks, `T` tokens, `D` width, `H` heads. Module names are those of the transformers library's files. Attention is
not scaled, and its scores get a bias by the distance of two tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.shapes import Shapes, count_children

HEAD_WIDTH = 64  # of most encoders
NUM_BUCKETS = 32  # of distances, half of them for each direction
FARTHEST = 128  # tokens: all distances from here on share a bucket
EMBEDDING = "shared.weight"
ATTENTION = "encoder.block.{}.layer.0.SelfAttention."
BIAS = "relative_attention_bias.weight"  # [buckets, heads]
FEED_FORWARD = "encoder.block.0.layer.1.DenseReluDense."


@dataclass(frozen=True, slots=True)
class T5Config:
    """Configuration of an encoder.

    With `is_biased_everywhere` every layer has a bias of its own (umT5), without `is_gated` the feed-forward layers are
    those of the first T5.
    """

    num_layers: int
    width: int
    heads: int
    inner_width: int
    vocabulary_size: int = 32128
    is_biased_everywhere: bool = False
    is_gated: bool = True
    head_width: int = HEAD_WIDTH


def is_biased_everywhere(shapes: Shapes) -> bool:
    """Return True for an encoder with a bias in every layer, or of one layer."""
    num_layers = count_children(shapes, "encoder.block")
    return ATTENTION.format(num_layers - 1) + BIAS in shapes


def t5_config(shapes: Shapes) -> T5Config:
    """Return the configuration of the encoder with these tensors (names from `encoder.` and `shared.` on).

    Raises LookupError for a missing tensor.
    """
    num_tokens, width = shapes[EMBEDDING]
    first = ATTENTION.format(0)
    heads = shapes[first + BIAS][1]
    is_gated = FEED_FORWARD + "wi_0.weight" in shapes
    return T5Config(
        num_layers=count_children(shapes, "encoder.block"),
        width=width,
        heads=heads,
        inner_width=shapes[FEED_FORWARD + ("wi_0.weight" if is_gated else "wi.weight")][0],
        vocabulary_size=num_tokens,
        is_biased_everywhere=is_biased_everywhere(shapes),
        is_gated=is_gated,
        head_width=shapes[first + "q.weight"][0] // heads,
    )


def distance_buckets(num_tokens: int, device: torch.device | None = None) -> torch.Tensor:
    """Return the bucket of the distance from each token to each other one [T, T].

    A direction's first half of the buckets holds one distance each, the other half ranges that grow logarithmically.
    """
    places = torch.arange(num_tokens, device=device)
    distance = places[None, :] - places[:, None]  # [T, T], positive where the other one follows
    per_side = NUM_BUCKETS // 2
    num_exact = per_side // 2
    far = distance.abs()
    growth = torch.log(far.clamp(min=1).float() / num_exact) / math.log(FARTHEST / num_exact)
    ranges = (num_exact + (growth * (per_side - num_exact)).long()).clamp(max=per_side - 1)
    return (distance > 0).long() * per_side + torch.where(far < num_exact, far, ranges)


class T5Attention(nn.Module):
    def __init__(self, config: T5Config, *, is_biased: bool) -> None:
        super().__init__()
        inner = config.heads * config.head_width
        self.heads, self.head_width = config.heads, config.head_width
        self.q, self.k, self.v = (Linear(config.width, inner, bias=False) for _ in range(3))
        self.o = Linear(inner, config.width, bias=False)
        self.relative_attention_bias = nn.Embedding(NUM_BUCKETS, config.heads) if is_biased else None

    def bias(self, num_tokens: int, like: torch.Tensor) -> torch.Tensor:
        """Return the bias of the scores [1, H, T, T]."""
        assert self.relative_attention_bias is not None
        by_distance: torch.Tensor = self.relative_attention_bias(distance_buckets(num_tokens, like.device))
        return by_distance.permute(2, 0, 1).unsqueeze(0).to(like.dtype).contiguous()

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        keys = self.k(x) * self.head_width**0.5
        out: torch.Tensor = self.o(attention(self.q(x), keys, self.v(x), self.heads, bias))
        return out


class T5AttentionLayer(nn.Module):
    def __init__(self, config: T5Config, *, is_biased: bool) -> None:
        super().__init__()
        self.SelfAttention = T5Attention(config, is_biased=is_biased)
        self.layer_norm = RmsNorm(config.width)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        attended: torch.Tensor = self.SelfAttention(self.layer_norm(x), bias)
        return x + attended


class T5GatedLayers(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.wi_0, self.wi_1 = (Linear(config.width, config.inner_width, bias=False) for _ in range(2))
        self.wo = Linear(config.inner_width, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.wo(functional.gelu(self.wi_0(x), approximate="tanh") * self.wi_1(x))
        return out


class T5RectifiedLayers(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.wi = Linear(config.width, config.inner_width, bias=False)
        self.wo = Linear(config.inner_width, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.wo(functional.relu(self.wi(x)))
        return out


class T5FeedForward(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.DenseReluDense = T5GatedLayers(config) if config.is_gated else T5RectifiedLayers(config)
        self.layer_norm = RmsNorm(config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fed: torch.Tensor = self.DenseReluDense(self.layer_norm(x))
        return x + fed


class T5Block(nn.Module):
    def __init__(self, config: T5Config, *, is_biased: bool) -> None:
        super().__init__()
        self.layer = nn.ModuleList([T5AttentionLayer(config, is_biased=is_biased), T5FeedForward(config)])

    @property
    def attention(self) -> T5Attention:
        found: T5Attention = self.layer[0].get_submodule("SelfAttention")  # type: ignore[assignment]
        return found

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer[1](self.layer[0](x, bias))
        return out


class T5Stack(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.is_biased_everywhere = config.is_biased_everywhere
        self.block = nn.ModuleList(
            T5Block(config, is_biased=index == 0 or config.is_biased_everywhere) for index in range(config.num_layers)
        )
        self.final_layer_norm = RmsNorm(config.width)

    def forward(self, embeds: torch.Tensor, mask: torch.Tensor | None = None, layer: int | None = None) -> torch.Tensor:
        """Return the output of `layer` (None: the last) after the final norm [B, T, D].

        `embeds` is [B, T, D]. `mask` [B, T] is 1 for tokens that are attended to; without it all are.
        """
        hidden = None
        if mask is not None:
            hidden = (mask[:, None, None, :] == 0) * -torch.finfo(embeds.dtype).max  # [B, 1, 1, T]
        chosen = len(self.block) - 1 if layer is None else layer % len(self.block)
        x, bias = embeds, embeds.new_zeros(())
        for index, block in enumerate(self.block[: chosen + 1]):
            assert isinstance(block, T5Block)
            if index == 0 or self.is_biased_everywhere:
                bias = block.attention.bias(x.shape[1], x)
                bias = bias if hidden is None else bias + hidden
            x = block(x, bias)
        out: torch.Tensor = self.final_layer_norm(x)
        return out


class T5Model(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.config = config
        self.num_layers = config.num_layers
        self.shared = nn.Embedding(config.vocabulary_size, config.width)
        self.encoder = T5Stack(config)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.shared
