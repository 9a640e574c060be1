"""The network of Anima: that of Cosmos-Predict2 with a text adapter before it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from darkroom.engine.families.anima.text_adapter import TextAdapter, TextAdapterConfig, text_adapter_config
from darkroom.engine.families.cosmos_predict2.transformer import (
    CosmosPredict2Config,
    CosmosPredict2Transformer,
    cosmos_predict2_config,
)
from darkroom.engine.layers.shapes import Shapes

ADAPTER = "llm_adapter."
ADAPTER_MARK = f"{ADAPTER}blocks.0.cross_attn.q_proj.weight"


@dataclass(frozen=True, slots=True)
class AnimaConfig(CosmosPredict2Config):
    """Configuration of the network and of its text adapter."""

    adapter: TextAdapterConfig = TextAdapterConfig()

    @property
    def encoder_dim(self) -> int:
        """The hidden size of the text encoder."""
        return self.adapter.source_dim


def anima_config(shapes: Shapes) -> AnimaConfig:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    base = cosmos_predict2_config(shapes)
    adapter = {name.removeprefix(ADAPTER): shape for name, shape in shapes.items() if name.startswith(ADAPTER)}
    return AnimaConfig(
        width=base.width, num_blocks=base.num_blocks, context_dim=base.context_dim, inner_width=base.inner_width,
        rank=base.rank, in_channels=base.in_channels, out_channels=base.out_channels, stretch=base.stretch,
        adapter=text_adapter_config(adapter),
    )  # fmt: skip


class AnimaTransformer(CosmosPredict2Transformer):
    """A noisy image [B, C, 1, h, w], times, text [B, T, D'] -> its prediction [B, C, 1, h, w].

    `preprocess_text_embeds` makes that text once, before sampling.
    """

    config: AnimaConfig

    def __init__(self, config: AnimaConfig) -> None:
        super().__init__(config)
        self.llm_adapter = TextAdapter(config.adapter)

    def preprocess_text_embeds(
        self, text_embeds: torch.Tensor, text_ids: torch.Tensor | None, t5xxl_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the text [B, N, D'] of a language model's states [B, T, D] and T5's tokens [B, N] with weights.

        Without tokens the states are the text. Names are ComfyUI's.
        """
        if text_ids is None:
            return text_embeds
        out: torch.Tensor = self.llm_adapter(text_embeds, text_ids, t5xxl_weights)
        return out
