"""BERT's encoder (Devlin et al. 2018, arXiv 1810.04805), of any width and depth.

`B` chunks, `T` tokens, `D` width, `H` heads. Module names are those of the transformers library's files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes, count_children

NORM_EPS = 1e-12
HEAD_WIDTH = 64
EMBEDDING = "bert.embeddings.word_embeddings.weight"


@dataclass(frozen=True, slots=True)
class BertConfig:
    num_layers: int
    width: int
    heads: int
    inner_width: int
    vocabulary_size: int = 47020
    num_positions: int = 512
    num_types: int = 2


def bert_config(shapes: Shapes) -> BertConfig:
    """Return the configuration of the encoder with these tensors (names from `bert.` on).

    Raises LookupError for a missing tensor.
    """
    num_tokens, width = shapes[EMBEDDING]
    return BertConfig(
        num_layers=count_children(shapes, "bert.encoder.layer"),
        width=width,
        heads=max(1, width // HEAD_WIDTH),
        inner_width=shapes["bert.encoder.layer.0.intermediate.dense.weight"][0],
        vocabulary_size=num_tokens,
        num_positions=shapes["bert.embeddings.position_embeddings.weight"][0],
        num_types=shapes["bert.embeddings.token_type_embeddings.weight"][0],
    )


class BertEmbeddings(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocabulary_size, config.width)
        self.position_embeddings = nn.Embedding(config.num_positions, config.width)
        self.token_type_embeddings = nn.Embedding(config.num_types, config.width)
        self.LayerNorm = nn.LayerNorm(config.width, eps=NORM_EPS)

    def forward(self, embeds: torch.Tensor) -> torch.Tensor:
        """Return the rows of words [B, T, D] with their places, all of the first type.

        Raises ValueError for more rows than there are places.
        """
        count, most = embeds.shape[1], self.position_embeddings.num_embeddings
        if count > most:
            raise ValueError(f"prompt: it is too long for BERT with its embeddings; got {count} rows, expected {most}")
        places = self.position_embeddings.weight[:count].to(embeds)
        out: torch.Tensor = self.LayerNorm(embeds + places + self.token_type_embeddings.weight[0].to(embeds))
        return out


class BertOutput(nn.Module):
    """A layer whose output is added to what came before, and normalised."""

    def __init__(self, in_width: int, width: int) -> None:
        super().__init__()
        self.dense = Linear(in_width, width)
        self.LayerNorm = nn.LayerNorm(width, eps=NORM_EPS)

    def forward(self, x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.LayerNorm(self.dense(x) + before)
        return out


class BertSelfAttention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value = (Linear(config.width, config.width) for _ in range(3))

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return attention(self.query(x), self.key(x), self.value(x), self.heads, bias)


class BertAttention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertOutput(config.width, config.width)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        out: torch.Tensor = self.output(self.self(x, bias), x)
        return out


class BertIntermediate(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.width, config.inner_width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.dense(x))


class BertLayer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config.inner_width, config.width)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        x = self.attention(x, bias)
        out: torch.Tensor = self.output(self.intermediate(x), x)
        return out


class BertLayers(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_layers))


class BertStack(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertLayers(config)

    def forward(self, embeds: torch.Tensor, mask: torch.Tensor | None = None, layer: int | None = None) -> torch.Tensor:
        """Return the output of `layer` (None: the last) [B, T, D].

        `embeds` [B, T, D] are rows of words. `mask` [B, T] is 1 for tokens that are attended to; without it all are.
        """
        bias = None
        if mask is not None:
            bias = (mask[:, None, None, :] == 0) * -torch.finfo(embeds.dtype).max  # [B, 1, 1, T]
        chosen = len(self.encoder.layer) - 1 if layer is None else layer % len(self.encoder.layer)
        x: torch.Tensor = self.embeddings(embeds)
        for block in self.encoder.layer[: chosen + 1]:
            x = block(x, bias)
        return x


class BertModel(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.num_layers = config.num_layers
        self.bert = BertStack(config)

    @property
    def encoder(self) -> BertStack:
        """The network from rows of words on."""
        return self.bert

    def get_input_embeddings(self) -> nn.Embedding:
        return self.bert.embeddings.word_embeddings
