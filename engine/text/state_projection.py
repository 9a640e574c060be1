"""Encoders of a set that read no tokens: networks that project the conditioning of another encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from darkroom.engine.text.encoded import Encoded
from darkroom.engine.text.encoder_members import EncoderMembers


@dataclass(frozen=True, slots=True)
class ProjectionEncoding:
    """Settings of a projection in a set: its slot, and that of the encoder which it reads."""

    slot: str
    reads_slot: str
    embedding_width: int = 0

    @property
    def key(self) -> str:
        return self.slot

    @property
    def pad_token(self) -> int:
        return 0


class StateProjection(EncoderMembers, nn.Module):
    """A projection of the conditioning of the encoder in another slot. `transformer` computes it.

    `options` are set in the conditioning.
    """

    encoding: ProjectionEncoding

    def __init__(self, transformer: Any, encoding: ProjectionEncoding) -> None:
        super().__init__()
        self.config = transformer.config
        self.num_layers = 0
        self.encoding = encoding
        self.transformer = transformer
        self.set_up_options()

    @property
    def reads_slot(self) -> str:
        """The slot of the encoder whose conditioning is projected."""
        return self.encoding.reads_slot

    def projected(self, encoded: Encoded) -> Encoded:
        """Return an encoder's conditioning as the network projects it, float32."""
        cond: torch.Tensor = self.transformer(encoded.cond)
        return Encoded(cond.float(), encoded.pooled, {**encoded.options, **self.transformer.options})


class NoTokenizer:
    """The tokenizer of such an encoder: it gives no tokens."""

    find_embedding = None
    start_token = end_token = None
    min_length = pad_token = 0

    def __init__(self, slot: str) -> None:
        self.slot = self.key = slot

    def tokenize_with_weights(self, text: str, *args: object, **kwargs: object) -> dict[str, list[list[Any]]]:
        return {}

    def untokenize(self, token_weight_pair: Sequence[Any]) -> list[tuple[Any, str]]:
        return []

    def state_dict(self) -> dict[str, object]:
        return {}
