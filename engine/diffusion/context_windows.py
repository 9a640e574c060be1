"""Long batches in overlapping windows, each evaluated as a batch of its own and blended (FreeNoise, arXiv 2310.15169).

A `ContextWindows` lies in the model options under `context_handler`; guidance asks it before every evaluation. Windows
are lists of places along one dimension of x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from darkroom.engine.diffusion.conditions import Condition
from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.options import Network, OptionDict

CHANNELS = 1  # the dimension of a latent that is not cut: each cell needs all of them
BATCHED = "batched"  # the schedule of windows without overlap
Window = list[int]
Evaluate = Callable[..., list[torch.Tensor]]


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


@dataclass(slots=True)
class ContextWindows:
    """The handler of `guidance.calc_cond_batch`. `dim` is the dimension of x that is cut (0: the batch)."""

    schedule: str
    fuse_method: str
    plan: WindowPlan
    dim: int = 0

    def should_use_context(
        self, model: object, conds: object, x: torch.Tensor, sigma: torch.Tensor, model_options: Mapping[str, object]
    ) -> bool:
        """Return True if x is longer than a window. Raises ValueError for windows that cannot cut or cover it."""
        if self.dim >= x.ndim or self.dim == CHANNELS:
            raise ValueError(
                f"dim: context windows cut the batch, frames or sides of a latent; got {self.dim}, expected one of 0, "
                f"{', '.join(str(dim) for dim in range(CHANNELS + 1, x.ndim))} for a latent of {x.ndim} dimensions"
            )
        if x.shape[self.dim] <= self.plan.length:
            return False
        if self.schedule != BATCHED and self.plan.overlap >= self.plan.length:
            raise ValueError(
                f"context_overlap: windows that share all of their places go no further; got an overlap of "
                f"{self.plan.overlap} and a length of {self.plan.length} latent frames or items, expected less"
            )
        return True

    def execute(
        self,
        evaluate: Evaluate,
        model: Network,
        conds: Sequence[Sequence[Condition] | None],
        x: torch.Tensor,
        sigma: torch.Tensor,
        model_options: OptionDict,
    ) -> list[torch.Tensor]:
        """Predict each side for all of x, averaged by weight where windows overlap."""
        count = x.shape[self.dim]
        step = _step_of(sigma, model_options["transformer_options"]["sample_sigmas"])
        totals = [torch.zeros_like(x) for _ in conds]
        weight_shape = [count if dim == self.dim else 1 for dim in range(x.ndim)]
        total_weights = torch.zeros(weight_shape, device=x.device)
        for window in SCHEDULES[self.schedule](count, self.plan, step):
            places = torch.tensor(window, device=x.device)
            part_sigma = sigma if self.dim != 0 or sigma.shape[0] == 1 else sigma[places]
            part_conds = [self._cut_conditions(side, window, count) for side in conds]
            part = x.index_select(self.dim, places)
            results = evaluate(model, part_conds, part, part_sigma, model_options)
            weights = FUSE_WEIGHTS[self.fuse_method](window, count, self.plan).to(x.device)
            weights = weights.reshape([len(window) if dim == self.dim else 1 for dim in range(x.ndim)])
            for total, result in zip(totals, results, strict=True):
                total.index_add_(self.dim, places, result * weights)
            total_weights.index_add_(self.dim, places, weights)
        return [total / total_weights for total in totals]

    def _cut_conditions(self, side: Sequence[Condition] | None, window: Window, count: int) -> list[Condition] | None:
        """Cut the tensors of x's length (masks of a batch...) in the conditions of one side as x is cut."""
        if side is None:
            return None
        return [{key: self._cut(value, window, count) for key, value in condition.items()} for condition in side]

    def _cut(self, value: object, window: Window, count: int) -> object:
        if isinstance(value, torch.Tensor) and self.dim < value.ndim and value.shape[self.dim] == count:
            return value.index_select(self.dim, torch.tensor(window, device=value.device))
        return value


def _step_of(sigma: torch.Tensor, sample_sigmas: torch.Tensor) -> int:
    """Return the index of this level in the run. Raises ValueError for one between levels (a sampler's inner steps)."""
    levels, level = on_host(sample_sigmas), on_host(sigma)[:1]
    matches = torch.nonzero(torch.isclose(levels, level.to(levels), rtol=0.0001))
    if matches.numel() == 0:
        raise ValueError(f"context windows need a sampler that stays on the given sigmas; {float(level):.4g} is none")
    return int(matches[0])
