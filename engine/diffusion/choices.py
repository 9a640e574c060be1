"""The samplers and schedules there are to choose from, which custom nodes may add to.

Each engine has its own `Choices`, a part of each of its runs (`sampling_tables.py`). Outside of a run there are the
built-in ones.
"""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.replacements import replaceable
from darkroom.engine.diffusion.samplers.base import SamplerFunction
from darkroom.engine.diffusion.samplers.registry import declared_samplers
from darkroom.engine.diffusion.sampling_run import sampling_run
from darkroom.engine.diffusion.sigmas import SCHEDULES, Levels, Schedule


class Choices:
    """Names in the order in which nodes offer them, and what they stand for. Custom nodes change the lists themselves.

    `samplers` and `schedules` are the names offered, `functions` and `handlers` the samplers and schedules by name.
    """

    def __init__(self) -> None:
        self.samplers: list[str] = list(declared_samplers())
        self.schedules: list[str] = list(SCHEDULES)
        self.functions: dict[str, SamplerFunction] = {name: item.function for name, item in declared_samplers().items()}
        self.handlers: dict[str, Schedule] = dict(SCHEDULES)


def current_choices() -> Choices:
    """Return the choices of the running engine, or the built-in ones."""
    choices = sampling_run().choices
    return choices if isinstance(choices, Choices) else Choices()


@replaceable
def calculate_sigmas(model_sampling: Levels, scheduler_name: str, steps: int) -> torch.Tensor:
    """Return the levels of a schedule `[steps + 1]`, falling to 0. Raises ValueError for an unknown name."""
    handlers = current_choices().handlers
    schedule = handlers.get(scheduler_name)
    if schedule is None:
        raise ValueError(f"there is no scheduler {scheduler_name!r}; there are {', '.join(handlers)}")
    if schedule.use_ms:
        return schedule.handler(model_sampling, steps)
    bounds = {"sigma_min": float(model_sampling.sigma_min), "sigma_max": float(model_sampling.sigma_max)}
    return schedule.handler(n=steps, **bounds)
