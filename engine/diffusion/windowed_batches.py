"""Evaluation of a long batch or video in context windows, each by itself, blended by weight where they overlap.

A `ContextWindows` lies in the model options under `context_handler`; guidance asks it before every evaluation. `count`
are the places of x along the dimension that is cut.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, Condition, ConstantInput
from darkroom.engine.diffusion.context_windows import (
    BATCHED,
    FUSE_WEIGHTS,
    SCHEDULES,
    Window,
    WindowPlan,
    shuffled_noise,
)
from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.options import Network, OptionDict

CHANNELS = 1  # the dimension of a latent that is not cut: each cell needs all of them
CONTEXT_HANDLER = "context_handler"  # the model option with the windows
Evaluate = Callable[..., list[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class LatentWindow:
    """A window of a latent, as networks and packs find it in the transformer options under `context_window`.

    `causal_anchor_index` is the place before the window that is evaluated with it, None for a window that has none.
    """

    index_list: list[int]
    dim: int
    total_frames: int
    causal_anchor_index: int | None = None

    @property
    def context_length(self) -> int:
        return len(self.index_list)

    @property
    def places(self) -> list[int]:
        """Return the places to evaluate: the window, behind the frame before it."""
        anchor = self.causal_anchor_index
        return self.index_list if anchor is None else [anchor, *self.index_list]

    @property
    def center_ratio(self) -> float:
        """Return the middle of the window as a share of all places."""
        return (min(self.index_list) + max(self.index_list)) / (2 * self.total_frames)

    def region(self, num_regions: int) -> int:
        """Return the index of the equal part of the latent in which the middle of the window lies."""
        return min(max(int(self.center_ratio * num_regions), 0), num_regions - 1)

    def get_tensor(self, full: torch.Tensor, dim: int | None = None, retained: Sequence[int] = ()) -> torch.Tensor:
        """Return the part of a tensor at the window's places along `dim` (by default the latent's).

        At the positions in `retained` it has what the whole tensor has there.
        """
        axis = self.dim if dim is None else dim
        if axis == 0 and full.shape[0] == 1:
            return full
        part = full.index_select(axis, torch.tensor(self.places, device=full.device))
        for place in retained:
            if place < part.shape[axis]:
                part.select(axis, place).copy_(full.select(axis, place))
        return part


def cut_input(
    given: BatchedInput,
    window: LatentWindow,
    dim: int,
    *,
    per_place: int = 1,
    num_before: int = 0,
    retained: Sequence[int] = (),
) -> BatchedInput | None:
    """Return an input of the network with the part of its tensor that belongs to the window; None where none does.

    The tensor has `per_place` entries along `dim` for each place of the latent but the first `num_before`.
    """
    full = given.cond
    if not isinstance(full, torch.Tensor) or dim >= full.ndim:
        return None
    if per_place == 1 and full.shape[dim] != window.total_frames - num_before:
        return None
    if per_place == 1 and num_before == 0:
        return _with_cond(given, window.get_tensor(full, dim, retained))
    # The anchor is one of the places in front that have no entry.
    skipped = num_before if window.causal_anchor_index is None else max(num_before - 1, 0)
    places = [place - num_before for place in window.index_list[skipped:] if place >= num_before]
    entries = [place * per_place + i for place in places for i in range(per_place)]
    entries = [entry for entry in entries if entry < full.shape[dim]]
    if not entries:
        return None
    return _with_cond(given, full.index_select(dim, torch.tensor(entries, device=full.device)))


def _with_cond(given: BatchedInput, cond: torch.Tensor) -> BatchedInput:
    found = copy.copy(given)
    found.cond = cond
    return found


@dataclass(frozen=True, slots=True)
class ContextWindows:
    """The handler of `guidance.calc_cond_batch`."""

    schedule: str
    """Name of the order of windows, of `SCHEDULES`."""
    fuse_method: str
    """Name of the weights, of `FUSE_WEIGHTS`."""
    plan: WindowPlan
    """Length, overlap and strides of windows."""
    dim: int = 0
    """Dimension of x that is cut (0: the batch)."""
    freenoise: bool = False
    """True to repeat the first window's noise, shuffled, behind it."""
    cond_retained: tuple[int, ...] = ()
    """Positions at which each window's conditions have what the whole ones have there (a start image)."""
    latent_retained: tuple[int, ...] = ()
    """Positions at which each window's latent has what the whole latent has there."""
    split_conds_to_windows: bool = False
    """True to give each window the one of several conditions that is of its region."""
    causal_window_fix: bool = True
    """True to evaluate windows with the place before them, which is left out of the result."""

    def check_shape(self, shape: Sequence[int]) -> None:
        """Raise ValueError for windows that cannot cut or cover a latent of this shape."""
        if self.dim >= len(shape) or self.dim == CHANNELS:
            raise ValueError(
                f"dim: context windows cut the batch, frames or sides of a latent; got {self.dim}, expected one of 0, "
                f"{', '.join(str(dim) for dim in range(CHANNELS + 1, len(shape)))} for a latent of {len(shape)} "
                "dimensions"
            )
        is_cut = shape[self.dim] > self.plan.length
        if is_cut and self.schedule != BATCHED and self.plan.overlap >= self.plan.length:
            raise ValueError(
                f"context_overlap: windows that share all of their places go no further; got an overlap of "
                f"{self.plan.overlap} and a length of {self.plan.length} latent frames or items, expected less"
            )

    def should_use_context(
        self, model: object, conds: object, x: torch.Tensor, sigma: torch.Tensor, model_options: Mapping[str, object]
    ) -> bool:
        """Return True if x is longer than a window. Raises ValueError for windows that cannot cut or cover it."""
        self.check_shape(x.shape)
        return x.shape[self.dim] > self.plan.length

    def shape_at_once(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the largest part of a latent that is evaluated at once."""
        longest = self.plan.length + self.causal_window_fix
        return [min(size, longest) if dim == self.dim else size for dim, size in enumerate(shape)]

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
        patcher = getattr(model, "current_patcher", None)
        for places in SCHEDULES[self.schedule](count, self.plan, step):
            if patcher is not None:
                patcher.check_cancelled()
            window = self._window(places, count)
            results = self._evaluate(evaluate, model, conds, x, sigma, model_options, window)
            weights = FUSE_WEIGHTS[self.fuse_method](places, count, self.plan).to(x.device)
            weights = weights.reshape([len(places) if dim == self.dim else 1 for dim in range(x.ndim)])
            index = torch.tensor(places, device=x.device)
            for total, result in zip(totals, results, strict=True):
                own = result if window.causal_anchor_index is None else result.narrow(self.dim, 1, len(places))
                total.index_add_(self.dim, index, own * weights)
            total_weights.index_add_(self.dim, index, weights)
        return [total / total_weights for total in totals]

    def _window(self, places: Window, count: int) -> LatentWindow:
        window = LatentWindow(places, self.dim, count)
        if not self.causal_window_fix or places[0] == 0:
            return window
        return replace(window, causal_anchor_index=places[0] - 1)

    def _evaluate(
        self,
        evaluate: Evaluate,
        model: Network,
        conds: Sequence[Sequence[Condition] | None],
        x: torch.Tensor,
        sigma: torch.Tensor,
        model_options: OptionDict,
        window: LatentWindow,
    ) -> list[torch.Tensor]:
        """Return the prediction of each side for the window's places."""
        part = window.get_tensor(x, retained=self.latent_retained)
        part_sigma = window.get_tensor(sigma) if self.dim == 0 else sigma
        part_conds = [self._cut_conditions(model, side, window) for side in conds]
        inner = {**model_options["transformer_options"], "context_window": window}
        return evaluate(model, part_conds, part, part_sigma, {**model_options, "transformer_options": inner})

    def _cut_conditions(
        self, model: Network, side: Sequence[Condition] | None, window: LatentWindow
    ) -> list[Condition] | None:
        """Cut the tensors (masks of a batch...) and inputs in the conditions of one side as x is cut."""
        if side is None:
            return None
        if self.split_conds_to_windows and len(side) > 1:
            side = [side[window.region(len(side))]]
        return [
            {
                key: self._cut_inputs(model, value, window) if key == "model_conds" else self._cut(value, window)
                for key, value in condition.items()
            }
            for condition in side
        ]

    def _cut(self, value: object, window: LatentWindow) -> object:
        if not isinstance(value, torch.Tensor) or self.dim >= value.ndim:
            return value
        return window.get_tensor(value) if value.shape[self.dim] == window.total_frames else value

    def _cut_inputs(
        self, model: Network, inputs: Mapping[str, BatchedInput], window: LatentWindow
    ) -> dict[str, BatchedInput]:
        """Cut the inputs of the network: as its family says, else those of x's length along the same dimension."""
        of_family: Any = getattr(model, "cut_for_window", None)
        cut: dict[str, BatchedInput] = {}
        for name, given in inputs.items():
            found = None if of_family is None else of_family(name, given, window, self.cond_retained)
            if name == "num_video_frames":
                found = ConstantInput(len(window.places))
            if found is None:
                found = cut_input(given, window, self.dim, retained=self.cond_retained)
            cut[name] = given if found is None else found
        return cut


def with_shuffled_noise(
    sample: Callable[..., torch.Tensor],
    guider: object,
    sigmas: torch.Tensor,
    extra_args: OptionDict,
    callback: object,
    noise: torch.Tensor,
    *rest: object,
) -> torch.Tensor:
    """Sample with the noise of the context windows in the model options, where they shuffle it: a SAMPLER_SAMPLE."""
    windows = extra_args["model_options"].get(CONTEXT_HANDLER)
    if isinstance(windows, ContextWindows) and windows.freenoise:
        windows.check_shape(noise.shape)
        noise = shuffled_noise(noise, windows.dim, windows.plan, extra_args.get("seed") or 0)
    return sample(guider, sigmas, extra_args, callback, noise, *rest)


def _step_of(sigma: torch.Tensor, sample_sigmas: torch.Tensor) -> int:
    """Return the index of this level in the run; of one between levels (a sampler's inner steps) that before it."""
    levels, level = on_host(sample_sigmas), on_host(sigma)[:1]
    matches = torch.nonzero(torch.isclose(levels, level.to(levels), rtol=0.0001))
    if matches.numel():
        return int(matches[0])
    return max(int((levels > level.to(levels)).sum()) - 1, 0)
