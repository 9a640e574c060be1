"""CLIP's text encoder (Radford et al. 2021, arXiv 2103.00020). `engine/text` encodes prompts with it.

`B` chunks, `T` 77 tokens, `D` width. Module names are those of the transformers library's files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.clip_layers import ClipLayer, gelu, quick_gelu
from darkroom.engine.layers.shapes import Shapes, count_children

Activation = Literal["quick_gelu", "gelu"]
HEAD_WIDTH = 64  # of every CLIP text encoder


@dataclass(frozen=True, slots=True)
class ClipTextConfig:
    num_layers: int
    width: int
    heads: int
    inner_width: int
    vocabulary_size: int = 49408
    num_positions: int = 77
    activation: Activation = "quick_gelu"


def clip_text_config(shapes: Shapes, *, activation: Activation = "quick_gelu") -> ClipTextConfig:
    """Return the configuration of the text encoder with these tensors (names from `text_model.` on).

    The shapes do not tell the activation function.
    """
    num_tokens, width = shapes["text_model.embeddings.token_embedding.weight"]
    return ClipTextConfig(
        num_layers=count_children(shapes, "text_model.encoder.layers"),
        width=width,
        heads=max(1, width // HEAD_WIDTH),
        inner_width=shapes["text_model.encoder.layers.0.mlp.fc1.weight"][0],
        vocabulary_size=num_tokens,
        num_positions=shapes["text_model.embeddings.position_embedding.weight"][0],
        activation=activation,
    )


class ClipEmbeddings(nn.Module):
    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.position_embedding = nn.Embedding(config.num_positions, config.width)


class ClipEncoder(nn.Module):
    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        activation = quick_gelu if config.activation == "quick_gelu" else gelu
        self.layers = nn.ModuleList(
            ClipLayer(config.width, config.heads, config.inner_width, activation=activation, is_causal=True)
            for _ in range(config.num_layers)
        )


class ClipTextTower(nn.Module):
    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        self.embeddings = ClipEmbeddings(config)
        self.encoder = ClipEncoder(config)
        self.final_layer_norm = nn.LayerNorm(config.width)

    def forward(
        self,
        embeds: torch.Tensor,
        layer: int | None,
        *,
        normalises_layer: bool = True,
        mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs of the last layer and of `layer` (None: the last) [B, T, D], both after the final norm.

        `normalises_layer=False` returns that of `layer` as it is. `mask` [B, 1, T, T] is added to the scores of
        attention; without it every token attends to itself and those before it.
        """
        places = torch.arange(self.embeddings.position_embedding.num_embeddings, device=embeds.device)
        x = embeds + self.embeddings.position_embedding(places)
        chosen: torch.Tensor | None = None
        for index, block in enumerate(self.encoder.layers):
            x = block(x, mask)
            if layer is not None and index == layer % len(self.encoder.layers):
                chosen = x
        last: torch.Tensor = self.final_layer_norm(x)
        if chosen is None:
            return last, last
        return last, self.final_layer_norm(chosen) if normalises_layer else chosen


class ClipTextModel(nn.Module):
    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        self.config = config
        self.num_layers = config.num_layers
        self.text_model = ClipTextTower(config)
        self.text_projection = Linear(config.width, config.width, bias=False)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.text_model.embeddings.token_embedding
