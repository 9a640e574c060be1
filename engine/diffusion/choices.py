"""The samplers and schedules there are to choose from, which custom nodes may add to."""

from __future__ import annotations

import torch

from engine.diffusion.replaced import replaceable
from engine.diffusion.sampler_registry import SAMPLER_NAMES
from engine.diffusion.sigmas import SCHEDULES, Levels, Schedule


class Choices:
    """Names in the order in which nodes offer them. The lists themselves are what custom nodes change."""

    def __init__(self) -> None:
        self.samplers: list[str] = []
        self.schedules: list[str] = []
        self.handlers: dict[str, Schedule] = {}
        self.reset()

    def reset(self) -> None:
        """Remove all but the engine's own."""
        self.samplers[:] = SAMPLER_NAMES
        self.schedules[:] = SCHEDULES
        self.handlers.clear()
        self.handlers.update(SCHEDULES)


CHOICES = Choices()


@replaceable("comfy.samplers.calculate_sigmas")
def calculate_sigmas(model_sampling: Levels, scheduler_name: str, steps: int) -> torch.Tensor:
    """Return the levels of a schedule `[steps + 1]`, falling to 0. Raises ValueError for an unknown name."""
    schedule = CHOICES.handlers.get(scheduler_name)
    if schedule is None:
        raise ValueError(f"there is no scheduler {scheduler_name!r}; there are {', '.join(CHOICES.handlers)}")
    if schedule.use_ms:
        return schedule.handler(model_sampling, steps)
    bounds = {"sigma_min": float(model_sampling.sigma_min), "sigma_max": float(model_sampling.sigma_max)}
    return schedule.handler(n=steps, **bounds)
