"""Availability of Triton: the package, and the C compiler with Python's headers that its first launch needs."""

from __future__ import annotations

import importlib.util

import torch

from darkroom.engine.diffusion.compilation import missing_launcher_compiler
from darkroom.engine.tuning.strategy import MachineFacts


def missing_triton(machine: MachineFacts) -> str | None:
    """Return the thing this machine lacks for Triton kernels, or None. The check of every strategy with such a kernel.

    Triton compiles its kernels itself, but the function that launches them with the system's C compiler, in the first
    call.
    """
    return _missing(machine.device_type)


def has_triton(device: torch.device) -> bool:
    """Return True where kernels in Triton can run on the device: for a strategy that has another way without them."""
    return _missing(device.type) is None


def _missing(device_type: str) -> str | None:
    if device_type != "cuda":
        return "needs a CUDA device"
    if importlib.util.find_spec("triton") is None:
        return "needs the package triton"
    return missing_launcher_compiler()
