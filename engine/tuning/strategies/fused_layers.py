"""The steps between the matrix products of diffusion transformers, each as one Triton kernel.

Plainly each of them is several passes over the tokens, with a tensor between two of them. The layers are those of
`engine/layers/transformer_layers.py`, which every such network uses; weights of norms are those of the network,
with the patches that they have.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    JoinedActivation,
    ResidualNorm,
    RotaryHeads,
)
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import (
    MachineFacts,
    SamplingUse,
    Strategy,
    Undo,
    replace_forwards,
    unchanged_layers,
)
from darkroom.engine.tuning.triton_compiler import missing_triton


class FusedLayers(Strategy):
    """Base of the strategies that give layers of some `kinds` their fused forward function."""

    quality = Quality.SAME
    is_size_sensitive = True
    conflicts = frozenset({"compiled_blocks"})
    kinds: ClassVar[tuple[type[nn.Module], ...]]

    def missing(self, machine: MachineFacts) -> str | None:
        return missing_triton(machine)

    def unfit(self, use: SamplingUse) -> str | None:
        return None if unchanged_layers(use, self.kinds) else "the network has no layers of this kind"

    def apply(self, use: SamplingUse) -> Undo:
        from darkroom.engine.tuning.fused_forwards import FUSED  # Triton is there on GPU machines alone

        return replace_forwards([(layer, FUSED[type(layer)](layer)) for layer in unchanged_layers(use, self.kinds)])


class FusedRotary(FusedLayers):
    """Norm and rotary embedding of queries and keys in one pass."""

    name = "fused_rotary"
    about = "queries and keys of a transformer are normalised and rotated by position in one pass"
    kinds = (RotaryHeads,)


class FusedModulation(FusedLayers):
    """Gated residuals and adaptive norms in one pass."""

    name = "fused_modulation"
    about = "residual, norm, scale and shift between a transformer's layers are one pass"
    kinds = (ResidualNorm, AdaptiveNorm, GatedResidual)


class FusedActivations(FusedLayers):
    """Activated gates of feed-forward layers in one pass."""

    name = "fused_activations"
    about = "gated activations of a transformer are one pass, and are written where the next layer reads them"
    kinds = (JoinedActivation, GatedActivation)
