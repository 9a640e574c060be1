"""Scaling and shifting of the positions of rotary embeddings, as the transformer options ask for it.

`rope_options` has `scale_x`, `shift_x` and the same of `y` (rows) and `t` (frames or the index of an image), each of
them optional; positions become position * scale + shift.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

ROPE_OPTIONS = "rope_options"


def axis_positions(
    count: int, axis: str, options: Mapping[str, Any] | None, device: torch.device, *, first: float = 0
) -> torch.Tensor:
    """Return positions [count], float32, along an axis (`x`, `y`, `t`) by the transformer options.

    `first` is that of the first one, which is not scaled.
    """
    asked: Mapping[str, float] = (options or {}).get(ROPE_OPTIONS) or {}
    scale, start = asked.get(f"scale_{axis}", 1.0), first + asked.get(f"shift_{axis}", 0.0)
    positions = torch.arange(count, dtype=torch.float32, device=device)
    scaled = positions if scale == 1 else positions * scale  # nothing is launched where nothing is asked for
    return scaled if start == 0 else scaled + start
