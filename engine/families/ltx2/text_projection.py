"""The network between Gemma 3 and LTX-2: all layers of the language model become the text that connectors read.

LTX-2 has one layer for both streams, over states that are brought to one range for each layer of the language model;
LTX-2.3 has one for each stream, over states normalised token by token. Files without LTX-2's transformer may have its
connectors here. `T` tokens, `L` layers of the language model and one more, `D` its hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.families.ltx2.config import AUDIO_CONNECTOR, VIDEO_CONNECTOR, ConnectorConfig, connector_config
from darkroom.engine.families.ltx2.connector import connectors_of
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes

SINGLE, VIDEO, AUDIO = "aggregate_embed.", "video_aggregate_embed.", "audio_aggregate_embed."
UNPROCESSED = "unprocessed_ltxav_embeds"  # ComfyUI's option of a conditioning that connectors have not read yet
RANGE, EPS = 8.0, 1e-6


@dataclass(frozen=True, slots=True)
class TextProjectionConfig:
    """Configuration of the projection of `in_dim` numbers of a token, D times L, to one text or to one a stream.

    `biases` says which of the layers have one. With connectors the result is what they make of it.
    """

    in_dim: int
    out_dims: tuple[int, ...]
    biases: tuple[bool, ...]
    connectors: tuple[ConnectorConfig, ConnectorConfig] | None = None

    @property
    def width(self) -> int:
        """Width of a token of the conditioning."""
        return sum(self.out_dims) if self.connectors is None else sum(item.hidden_size for item in self.connectors)


def text_projection_config(shapes: Shapes) -> TextProjectionConfig:
    """Return the configuration of the projection with these tensors (names without prefix)."""
    layers = (SINGLE,) if f"{SINGLE}weight" in shapes else (VIDEO, AUDIO)
    weights = [shapes[f"{layer}weight"] for layer in layers]
    connectors = None
    if f"{VIDEO_CONNECTOR}learnable_registers" in shapes:
        connectors = connector_config(shapes, VIDEO_CONNECTOR), connector_config(shapes, AUDIO_CONNECTOR)
    return TextProjectionConfig(
        in_dim=weights[0][1],
        out_dims=tuple(weight[0] for weight in weights),
        biases=tuple(f"{layer}bias" in shapes for layer in layers),
        connectors=connectors,
    )


class TextProjection(nn.Module):
    """`forward(states [1, L, T, D])` -> text `[1, T, N]`, of video and audio side by side where each has its own."""

    def __init__(self, config: TextProjectionConfig) -> None:
        super().__init__()
        self.config = config
        layers = [
            Linear(config.in_dim, out, bias=bias) for out, bias in zip(config.out_dims, config.biases, strict=True)
        ]
        is_single = len(layers) == 1
        self.aggregate_embed = layers[0] if is_single else None
        self.video_aggregate_embed = None if is_single else layers[0]
        self.audio_aggregate_embed = None if is_single else layers[1]
        self.video_embeddings_connector, self.audio_embeddings_connector = connectors_of(config.connectors)

    @property
    def options(self) -> Mapping[str, object]:
        """Options of the conditioning."""
        return {UNPROCESSED: True} if self.config.connectors is None else {}

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        x = states.float().movedim(1, -1)  # [1, T, D, L]
        if self.aggregate_embed is None:
            return self._of_streams(x, states.dtype)
        lowest, highest = x.amin(dim=(1, 2), keepdim=True), x.amax(dim=(1, 2), keepdim=True)
        x = RANGE * (x - x.mean(dim=(1, 2), keepdim=True)) / (highest - lowest + EPS)
        text: torch.Tensor = self.aggregate_embed(x.flatten(2).to(states.dtype))
        if self.video_embeddings_connector is None or self.audio_embeddings_connector is None:
            return text
        return torch.cat([self.video_embeddings_connector(text), self.audio_embeddings_connector(text)], dim=-1)

    def _of_streams(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the text of video and audio, side by side, of states [1, T, D, L], computed in a type."""
        states_dim = x.shape[2]
        x = (x * torch.rsqrt(x.square().mean(dim=2, keepdim=True) + EPS)).flatten(2)
        text = [
            layer((x * math.sqrt(out / states_dim)).to(dtype))
            for layer, out in zip(
                (self.video_aggregate_embed, self.audio_aggregate_embed), self.config.out_dims, strict=True
            )
            if layer is not None
        ]
        return torch.cat(text, dim=-1)
