"""Numbers as tensors that are made on their device.

`torch.tensor` with a device makes them in the host's memory and copies them: the host waits for the device before such
a copy, and no CUDA graph can hold one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def filled(numbers: Sequence[float], *, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return numbers as a tensor [n], each filled in by the device."""
    return torch.stack([torch.full((), number, dtype=dtype, device=device) for number in numbers])
