"""Gated feed-forward layers whose gate is applied in one pass over the projection.

Plainly the gate's GELU and the product with the value are a pass each, with a tensor between them. Weights are those
of the layer, with the patches that they have.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from darkroom.engine.layers.unet_layers import Geglu
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import SamplingUse, Strategy, Undo, custom_code, replace_forwards, unchanged_layers
from darkroom.engine.tuning.triton_compiler import has_triton


class FusedGeglu(Strategy):
    """The gate of feed-forward layers in one pass."""

    name = "fused_geglu"
    quality = Quality.SAME
    about = "the gate of feed-forward layers is applied in one pass"
    is_size_sensitive = True
    conflicts = frozenset({"compiled_blocks"})

    def unfit(self, use: SamplingUse) -> str | None:
        found = custom_code(use)
        if found is None and not unchanged_layers(use, (Geglu,)):
            return "the network has no gated feed-forward layers of this kind"
        return found

    def apply(self, use: SamplingUse) -> Undo:
        gated = _by_kernel if has_triton(use.device) else _in_place
        return replace_forwards([(layer, _fused(layer, gated)) for layer in unchanged_layers(use, (Geglu,))])


def _fused(layer: torch.nn.Module, gated: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    projection = layer.get_submodule("proj")

    def forward(x: torch.Tensor) -> torch.Tensor:
        return gated(projection(x))

    return forward


def _by_kernel(projected: torch.Tensor) -> torch.Tensor:
    from darkroom.engine.tuning.kernels.geglu import geglu  # Triton is there on GPU machines alone

    return geglu(projected)


def _in_place(projected: torch.Tensor) -> torch.Tensor:
    value, gate = projected.chunk(2, dim=-1)
    return functional.gelu(gate).mul_(value)
