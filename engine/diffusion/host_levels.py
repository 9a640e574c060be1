"""Noise levels that the host has, beside their tensors on a device.

Samplers compare levels and compute coefficients from them. On a device each comparison would wait until all kernels
before it have run, and the next step's kernels would be launched late. So samplers get levels in the host's memory;
kernels take a number from there as an argument. What network and nodes get lies on the latent's device, and the host's
copy is attached to the tensor. Code that is none of ours may make levels without one: then the device is asked.

`levels` are `[n]` of a run or `[B]` of a batch, float32.
"""

from __future__ import annotations

from functools import partial

import torch

HOST_COPY = "_host_copy"  # attribute of a tensor: the same numbers in the host's memory
COUNTED = partial(torch.inference_mode, mode=False)  # tensors made here count their changes, in inference mode, too


def brought(levels: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return levels on a device, with the host's copy where they come from there."""
    with COUNTED():
        moved = levels.to(device)
    return moved if moved is levels or levels.device.type != "cpu" else _with_copy(moved, levels)


def on_host(levels: torch.Tensor) -> torch.Tensor:
    """Return levels in the host's memory. Waits for the device where the host has no copy of them."""
    if levels.device.type == "cpu":
        return levels
    known = _copy_of(levels)
    return levels.detach().cpu() if known is None else known


def of_batch(level: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
    """Return a level [] for each item of a batch: `ones` [B] times the level, on their device."""
    with COUNTED():
        levels = level * ones
    if level.device.type != "cpu" or levels.device.type == "cpu":
        return levels
    return _with_copy(levels, level.to(levels.dtype).expand(levels.shape))


def repeated(levels: torch.Tensor, times: int) -> torch.Tensor:
    """Return levels [B] as many times behind each other."""
    with COUNTED():
        joined = torch.cat([levels] * times)
    known = _copy_of(levels)
    return joined if known is None else _with_copy(joined, torch.cat([known] * times))


def divisor(level: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a level [] that divides `x` with the bits of a quotient: on the device of `x`.

    By a number of the host's memory a CUDA device would multiply with the reciprocal, which loses the last bit.
    """
    if level.device == x.device or level.device.type != "cpu":
        return level
    return torch.full((), float(level), dtype=level.dtype, device=x.device)


def _with_copy(levels: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    setattr(levels, HOST_COPY, (copy, _version(levels)))
    return levels


def _copy_of(levels: torch.Tensor) -> torch.Tensor | None:
    """Return the host's copy, None where there is none or the levels were changed in place since."""
    copy, version = getattr(levels, HOST_COPY, (None, 0))
    return copy if version == _version(levels) else None


def _version(levels: torch.Tensor) -> int:
    return 0 if levels.is_inference() else levels._version
