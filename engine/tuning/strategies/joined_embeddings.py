"""Projections of the time embedding for all residual blocks of a UNet by one matrix product instead of one a block.

The joined weight is made of the weights with their patches, and kept while these are the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from engine.layers.basic import Linear, linear
from engine.layers.unet_layers import ResBlock
from engine.tuning.quality import Quality
from engine.tuning.strategy import (
    SamplingUse,
    Strategy,
    Undo,
    computes_as_stored,
    custom_code,
    has_own_forward,
    offloaded,
    replace_forwards,
)


class JoinedEmbeddings(Strategy):
    """One matrix product for the time embeddings of all residual blocks."""

    name = "joined_embeddings"
    quality = Quality.SAME
    makes_tensors = True
    about = "the time embeddings of all residual blocks come from one matrix product"
    is_size_sensitive = True
    conflicts = frozenset({"compiled_blocks"})

    def unfit(self, use: SamplingUse) -> str | None:
        found = custom_code(use) or offloaded(use)
        if found is not None:
            return found
        return None if len(_projections(use)) > 1 else "the network has no residual blocks of this kind"

    def apply(self, use: SamplingUse) -> Undo:
        found = _projections(use)
        layers = [layer for _, layer in found]
        sources = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
        weight, bias = use.evaluation.made.of(self.name, sources, lambda: _joined(layers))
        embeddings = _Embeddings([layer.out_features for layer in layers], weight, bias)
        return replace_forwards([(row, embeddings.part(place)) for place, (row, _) in enumerate(found)])


def _projections(use: SamplingUse) -> list[tuple[nn.Sequential, Linear]]:
    """Return the projections of the residual blocks, with their layers, that take the same embedding.

    Those that something has replaced are left out.
    """
    rows = [block.emb_layers for block in use.network.modules() if type(block) is ResBlock]
    found: list[tuple[nn.Sequential, Linear]] = []
    for row in rows:
        layer = row[1]
        if any(map(has_own_forward, (row, *row))) or type(layer) is not Linear or not computes_as_stored(use, layer):
            continue
        if not found or layer.in_features == found[0][1].in_features:
            found.append((row, layer))
    return found


def _joined(layers: list[Linear]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])


class _Embeddings:
    """Projections of one embedding [B, E] for all blocks, made when the first of them asks."""

    def __init__(self, sizes: list[int], weight: torch.Tensor | None, bias: torch.Tensor | None) -> None:
        assert weight is not None, "the joined weight is always there"
        self._sizes = sizes
        self._weight = weight  # [sum of C, E]
        self._bias = bias
        self._of: torch.Tensor | None = None  # held, so that no other embedding can be taken for it
        self._parts: tuple[torch.Tensor, ...] = ()

    def part(self, place: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def forward(embedding: torch.Tensor) -> torch.Tensor:
            if self._of is not embedding:
                joined = linear(functional.silu(embedding), self._weight, self._bias)
                self._of, self._parts = embedding, torch.split(joined, self._sizes, dim=-1)
            return self._parts[place]

        return forward
