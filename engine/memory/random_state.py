"""Random state of a run: torch's generators, of which a process has one for each device."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import numpy as np
import torch


def save_random_state(device: torch.device) -> Callable[[], None]:
    """Return a function that restores the state of the default generators, the CPU's and the device's, of now."""
    on_cpu = torch.get_rng_state()
    on_cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore() -> None:
        torch.set_rng_state(on_cpu)
        if on_cuda is not None:
            torch.cuda.set_rng_state(on_cuda, device)

    return restore


def reseed() -> None:
    """Seed the generators of torch, numpy and Python anew: processes that were copied have equal ones otherwise."""
    torch.seed()  # of every device
    np.random.seed(int.from_bytes(os.urandom(4), "little"))
    random.seed()


class RandomState:
    """The default generators of the CPU and of one device, as one tensor of bytes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def get(self) -> torch.Tensor:
        on_cpu = torch.get_rng_state()
        if self._device.type != "cuda":
            return on_cpu
        return torch.cat([on_cpu, torch.cuda.get_rng_state(self._device)])

    def set(self, state: torch.Tensor) -> None:
        size = torch.get_rng_state().numel()
        torch.set_rng_state(state[:size])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state[size:], self._device)
