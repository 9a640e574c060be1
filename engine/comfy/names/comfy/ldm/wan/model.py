"""`comfy.ldm.wan.model`: functions of Wan's transformer."""

from __future__ import annotations

import torch

from darkroom.engine.layers.sinusoids import sinusoids_of_powers


def sinusoidal_embedding_1d(dim: int, position: torch.Tensor) -> torch.Tensor:
    """Embed positions [B] -> [B, dim], float32."""
    return sinusoids_of_powers(position, dim)
