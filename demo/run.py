"""What the two trainings share: resumable state on disk, warm-up and decay by the share of the budget that is used.

A training is given so many seconds in all; it may be stopped at any moment and run again, and goes on from the last
save. A save replaces the one before only when it is whole.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn


@dataclass
class Budget:
    """Seconds of training: `total_seconds` over all slices, `slice_seconds` in this process."""

    total_seconds: float
    slice_seconds: float
    used_before_seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)

    @property
    def used_seconds(self) -> float:
        return self.used_before_seconds + time.monotonic() - self.started

    @property
    def share(self) -> float:
        return min(1.0, self.used_seconds / self.total_seconds)

    @property
    def is_spent(self) -> bool:
        return self.share >= 1.0 or time.monotonic() - self.started >= self.slice_seconds


def rate_factor(step: int, share: float, warm_up_steps: int) -> float:
    """Of the learning rate: linear warm-up by steps, cosine decay by the share of the budget."""
    return min(1.0, (step + 1) / warm_up_steps) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))


@torch.no_grad()
def follow(average: dict[str, torch.Tensor], network: nn.Module, step: int, decay: float) -> None:
    """The exponential moving average of the weights; young averages follow faster."""
    keep = min(decay, (1 + step) / (10 + step))
    for name, weight in network.state_dict().items():
        if weight.is_floating_point():
            average[name].lerp_(weight.float(), 1 - keep)


def save(path: Path, state: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(dict(state), part)
    os.replace(part, path)


def load(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state
