"""Weights of another type than the network computes in, cast by their layers without a buffer.

Plainly they pass through cast buffers on a stream of their own, with events between it and the computing stream for
each layer. Without them fewer things are launched, and what is computed has fixed addresses.
"""

from __future__ import annotations

from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import SamplingUse, Strategy, Undo


class DirectCasts(Strategy):
    """Casts of weights on the computing stream."""

    name = "direct_casts"
    quality = Quality.EXACT
    about = "weights kept as float8 or packed are cast without a buffer"
    is_size_sensitive = True

    def unfit(self, use: SamplingUse) -> str | None:
        if not use.patcher.weights.cast_bytes:
            return "no weight is cast"
        if use.patcher.weights.cast_bytes > use.patcher.free_bytes():
            return "too little memory for a layer's cast weights"
        return None

    def apply(self, use: SamplingUse) -> Undo:
        undo: Undo = use.patcher.weights.cast_directly()
        return undo
