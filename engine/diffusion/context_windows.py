"""Schedules of overlapping windows over a long batch, and the weights that blend them (FreeNoise, arXiv 2310.15169).

Windows are lists of places along one dimension of x. `windowed_batches.py` evaluates them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

BATCHED = "batched"  # the schedule of windows without overlap
Window = list[int]


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """Layout of context windows: their length, their overlap and the strides of uniform ones.

    Looped windows go on from the end to the start.
    """

    length: int
    overlap: int
    stride: int = 1
    is_closed: bool = False


def static_windows(count: int, plan: WindowPlan, step: int) -> list[Window]:
    """Return windows every `length - overlap` places; the last is moved back to end with the last place."""
    windows: list[Window] = []
    for start in range(0, count, plan.length - plan.overlap):
        if start + plan.length >= count:
            return [*windows, list(range(count - plan.length, count))]
        windows.append(list(range(start, start + plan.length)))
    return windows


def batched_windows(count: int, plan: WindowPlan, step: int) -> list[Window]:
    """Return windows without overlap, the last perhaps shorter."""
    return [list(range(start, min(start + plan.length, count))) for start in range(0, count, plan.length)]


def looped_windows(count: int, plan: WindowPlan, step: int) -> list[Window]:
    """Return AnimateDiff's uniform windows (neggles/animatediff-cli): moved from step to step, around the end."""
    return list(_uniform(count, plan, step, reach=0 if plan.is_closed else -plan.overlap))


def uniform_windows(count: int, plan: WindowPlan, step: int) -> list[Window]:
    """Return `looped_windows` with those that go around the end moved to end with the last place.

    Where that leaves places at the beginning without a window, one more begins there. Equal windows count once.
    """
    windows = list(_uniform(count, plan, step, reach=-plan.overlap))
    kept: list[Window] = []
    place = 0
    while place < len(windows):
        window = windows[place]
        turn = next((i for i in range(1, len(window)) if window[i] < window[i - 1]), None)
        if turn is not None:
            first = window[turn]
            shifted = [(item - window[0]) % count for item in window]
            window[:] = [item + count - 1 - shifted[-1] for item in shifted]
            if first not in windows[(place + 1) % len(windows)]:
                windows.insert(place + 1, list(range(first, first + plan.length)))
        if window not in windows[:place]:
            kept.append(window)
        place += 1
    return kept


def _uniform(count: int, plan: WindowPlan, step: int, reach: int) -> Iterator[Window]:
    share = _halving(step)
    pad = round(count * share)
    for power in range(min(plan.stride, math.ceil(math.log2(count / plan.length)) + 1)):
        stride = 1 << power
        for start in range(int(share * stride) + pad, count + pad + reach, plan.length * stride - plan.overlap):
            yield [place % count for place in range(start, start + plan.length * stride, stride)]


def _halving(step: int) -> float:
    """Return 0, 1/2, 1/4, 3/4, 1/8...: the bits of the step mirrored behind the point (van der Corput)."""
    return int(f"{step:064b}"[::-1], 2) / (1 << 64)


SCHEDULES: dict[str, Callable[[int, WindowPlan, int], list[Window]]] = {
    "standard_static": static_windows,
    "standard_uniform": uniform_windows,
    "looped_uniform": looped_windows,
    BATCHED: batched_windows,
}


def pyramid_weights(window: Window, count: int, plan: WindowPlan) -> torch.Tensor:
    """Return weights that rise to the middle and fall again, from 1."""
    length = len(window)
    return torch.tensor([float(min(place, length - 1 - place) + 1) for place in range(length)])


def flat_weights(window: Window, count: int, plan: WindowPlan) -> torch.Tensor:
    return torch.ones(len(window))


def overlap_weights(window: Window, count: int, plan: WindowPlan) -> torch.Tensor:
    """Return weights that are linear over the places shared with a window before or behind."""
    weights = torch.ones(len(window))
    if plan.overlap and min(window) > 0:
        weights[: plan.overlap] = torch.linspace(1e-37, 1, plan.overlap)
    if plan.overlap and max(window) < count - 1:
        weights[-plan.overlap :] = torch.linspace(1, 1e-37, plan.overlap)
    return weights


def relative_weights(window: Window, count: int, plan: WindowPlan) -> torch.Tensor:
    """Return weights by nearness to the middle between the window's first and last place, at least 0.01."""
    middle, half = (window[0] + window[-1]) / 2, (window[-1] - window[0] + 1e-2) / 2
    return torch.tensor([max(1e-2, 1 - abs(place - middle) / half) for place in window])


FUSE_WEIGHTS: dict[str, Callable[[Window, int, WindowPlan], torch.Tensor]] = {
    "pyramid": pyramid_weights,
    "relative": relative_weights,
    "flat": flat_weights,
    "overlap-linear": overlap_weights,
}


def shuffled_noise(noise: torch.Tensor, dim: int, plan: WindowPlan, seed: int) -> torch.Tensor:
    """Return noise whose places behind the first window repeat earlier ones in a random order: FreeNoise, section 3.2.

    Each stretch of `length - overlap` places is a permutation, drawn on the CPU, of the one a window before it.
    """
    count, stretch = noise.shape[dim], plan.length - plan.overlap
    if stretch <= 0:
        return noise
    generator = torch.Generator(device="cpu").manual_seed(seed)
    shuffled = noise.clone()
    for start in range(0, count - plan.length, stretch):
        target = start + plan.length
        order = torch.randperm(min(stretch, count - target), generator=generator) + start
        shuffled.narrow(dim, target, len(order)).copy_(shuffled.index_select(dim, order.to(noise.device)))
    return shuffled
