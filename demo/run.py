"""Code that both trainings share: resumable state on disk, warm-up and decay by the share of the budget that is used.

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

SAVE_SECONDS = 120.0
SLICE_OVER = 3  # exit code of a training whose slice ended before its budget was spent: run it again


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
    def is_over(self) -> bool:
        """Nothing is left for any later slice."""
        return self.share >= 1.0

    @property
    def is_spent(self) -> bool:
        return self.is_over or time.monotonic() - self.started >= self.slice_seconds


class Course:
    """A network's way through its training: steps done, average of the weights, and the file that keeps all of it.

    Goes on from the file where there is one. The average is exponential, lies where the weights lie, and is what is
    exported.
    """

    def __init__(self, path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, budget: Budget) -> None:
        self.path, self.budget, self.step = path, budget, 0
        self._network, self._optimizer, self._saved = network, optimizer, time.monotonic()
        self.average = {name: weight.detach().float().clone() for name, weight in network.state_dict().items()}
        if (state := load(path)) is not None:
            network.load_state_dict(state["weights"])
            optimizer.load_state_dict(state["optimizer"])
            for name, weight in state["average"].items():
                self.average[name].copy_(weight)
            self.step, budget.used_before_seconds = state["step"], state["used_seconds"]

    def set_rate(self, rate: float, warm_up_steps: int) -> None:
        """Set the learning rate of the next step."""
        factor = rate_factor(self.step, self.budget.share, warm_up_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate * factor

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Moves the average towards the weights; young averages follow faster."""
        keep = min(decay, (1 + self.step) / (10 + self.step))
        for name, weight in self._network.state_dict().items():
            if weight.is_floating_point():
                self.average[name].lerp_(weight.float(), 1 - keep)

    def save(self) -> None:
        weights, optimizer = self._network.state_dict(), self._optimizer.state_dict()
        told = {"step": self.step, "used_seconds": self.budget.used_seconds}
        save(self.path, {"weights": weights, "optimizer": optimizer, "average": self.average, **told})
        self._saved = time.monotonic()

    def save_now_and_then(self) -> None:
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self.save()


def rate_factor(step: int, share: float, warm_up_steps: int) -> float:
    """Return the factor of the learning rate: linear warm-up by steps, cosine decay by the share of the budget."""
    return min(1.0, (step + 1) / warm_up_steps) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))


def save(path: Path, state: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(dict(state), part)
    os.replace(part, path)


def load(path: Path) -> dict[str, Any] | None:
    """Load the state that `save` wrote, on the CPU wherever it came from; None without the file."""
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state
