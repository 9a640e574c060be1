"""Evaluation of a long batch or video in context windows, each by itself, blended by weight where they overlap.

A `ContextWindows` lies in the model options under `context_handler`; guidance asks it before every evaluation. `count`
are the places of x along the dimension that is cut.
"""

from __future__ import annotations

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
from darkroom.engine.diffusion.latent_window import WINDOW, LatentWindow, cut_input
from darkroom.engine.diffusion.nested_latent import StreamShapes, packed, shapes_of
from darkroom.engine.diffusion.options import Network, OptionDict
from darkroom.engine.diffusion.windowed_streams import (
    LATENT_SHAPES,
    plan_of_stream,
    same_times,
    shapes_in,
    shuffled_streams,
    streams_in,
)

CHANNELS = 1  # the dimension of a latent that is not cut: each cell needs all of them
PACKED_DIMENSIONS = 3  # of a latent of several streams, also of one of audio alone, which no node cuts
CONTEXT_HANDLER = "context_handler"  # the model option with the windows
Evaluate = Callable[..., list[torch.Tensor]]


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
        self,
        model: object,
        conds: Sequence[Sequence[Condition] | None],
        x: torch.Tensor,
        sigma: torch.Tensor,
        model_options: Mapping[str, object],
    ) -> bool:
        """Return True if x is longer than a window. Raises ValueError for windows that cannot cut or cover it."""
        shape = streams_in(x, shapes_in(conds))[0].shape
        self.check_shape(shape)
        return shape[self.dim] > self.plan.length

    def shape_at_once(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the largest part of a latent that is evaluated at once: all of several streams."""
        if len(shape) == PACKED_DIMENSIONS and self.dim > CHANNELS:
            return [*shape]
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
        streams = streams_in(x, shapes_in(conds))
        counts = [stream.shape[self.dim] for stream in streams]
        step = _step_of(sigma, model_options["transformer_options"]["sample_sigmas"])
        totals = [[torch.zeros_like(stream) for stream in streams] for _ in conds]
        total_weights = [torch.zeros(self._along(count, stream), device=x.device)
                         for count, stream in zip(counts, streams, strict=True)]  # fmt: skip
        patcher = getattr(model, "current_patcher", None)
        for places in SCHEDULES[self.schedule](counts[0], self.plan, step):
            if patcher is not None:
                patcher.check_cancelled()
            window = self._window(places, counts)
            results = self._evaluate(evaluate, model, conds, streams, sigma, model_options, window)
            for number, (count, stream) in enumerate(zip(counts, streams, strict=True)):
                own = window.of_stream(number, count).index_list
                plan = self.plan if number == 0 else plan_of_stream(self.plan, own, counts[0], count)
                weights = FUSE_WEIGHTS[self.fuse_method](own, count, plan).to(x.device)
                weights = weights.reshape(self._along(len(own), stream))
                index = torch.tensor(own, device=x.device)
                for total, result in zip(totals, results, strict=True):
                    total[number].index_add_(self.dim, index, result[number] * weights)
                total_weights[number].index_add_(self.dim, index, weights)
        averaged = [[total / weights for total, weights in zip(side, total_weights, strict=True)] for side in totals]
        return [packed(side) if len(side) > 1 else side[0] for side in averaged]

    def _along(self, size: int, stream: torch.Tensor) -> list[int]:
        """Return the shape of weights for so many places of a stream."""
        return [size if dim == self.dim else 1 for dim in range(stream.ndim)]

    def _window(self, places: Window, counts: Sequence[int]) -> LatentWindow:
        further = tuple(same_times(places, counts[0], count) for count in counts[1:])
        window = LatentWindow(places, self.dim, counts[0], further_places=further)
        if not self.causal_window_fix or places[0] == 0:
            return window
        return replace(window, causal_anchor_index=places[0] - 1)

    def _evaluate(
        self,
        evaluate: Evaluate,
        model: Network,
        conds: Sequence[Sequence[Condition] | None],
        streams: Sequence[torch.Tensor],
        sigma: torch.Tensor,
        model_options: OptionDict,
        window: LatentWindow,
    ) -> list[list[torch.Tensor]]:
        """Return the prediction of each side for the window's places, of each stream."""
        parts = [
            window.of_stream(number, stream.shape[self.dim]).get_tensor(
                stream, retained=self.latent_retained if number == 0 else ()
            )
            for number, stream in enumerate(streams)
        ]
        shapes = shapes_of(parts) if len(parts) > 1 else ()
        part_sigma = window.get_tensor(sigma) if self.dim == 0 else sigma
        part_conds = [self._cut_conditions(model, side, window, shapes) for side in conds]
        inner = {**model_options["transformer_options"], WINDOW: window}
        part = packed(parts) if shapes else parts[0]
        found = evaluate(model, part_conds, part, part_sigma, {**model_options, "transformer_options": inner})
        sides = [streams_in(side, shapes) for side in found]
        if window.causal_anchor_index is not None:
            length = len(window.index_list)
            sides = [[side[0].narrow(self.dim, 1, length), *side[1:]] for side in sides]
        return sides

    def _cut_conditions(
        self, model: Network, side: Sequence[Condition] | None, window: LatentWindow, shapes: StreamShapes
    ) -> list[Condition] | None:
        """Cut the tensors (masks of a batch...) and inputs in the conditions of one side as x is cut."""
        if side is None:
            return None
        if self.split_conds_to_windows and len(side) > 1:
            side = [side[window.region(len(side))]]
        return [
            {
                key: self._cut_inputs(model, value, window, shapes)
                if key == "model_conds"
                else self._cut(value, window)
                for key, value in condition.items()
            }
            for condition in side
        ]

    def _cut(self, value: object, window: LatentWindow) -> object:
        if not isinstance(value, torch.Tensor) or self.dim >= value.ndim:
            return value
        return window.get_tensor(value) if value.shape[self.dim] == window.total_frames else value

    def _cut_inputs(
        self, model: Network, inputs: Mapping[str, BatchedInput], window: LatentWindow, shapes: StreamShapes
    ) -> dict[str, BatchedInput]:
        """Cut the inputs of the network: as its family says, else those of x's length along the same dimension."""
        of_family: Any = getattr(model, "cut_for_window", None)
        cut: dict[str, BatchedInput] = {}
        for name, given in inputs.items():
            found = None if of_family is None else of_family(name, given, window, self.cond_retained)
            if name == "num_video_frames":
                found = ConstantInput(len(window.places))
            if name == LATENT_SHAPES:
                found = ConstantInput(shapes)
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
        shapes: StreamShapes = getattr(guider, "stream_shapes", ())
        windows.check_shape(shapes[0] if shapes else noise.shape)
        seed = extra_args.get("seed") or 0
        if shapes:
            noise = shuffled_streams(noise, windows.dim, windows.plan, seed, shapes)
        else:
            noise = shuffled_noise(noise, windows.dim, windows.plan, seed)
    return sample(guider, sigmas, extra_args, callback, noise, *rest)


def _step_of(sigma: torch.Tensor, sample_sigmas: torch.Tensor) -> int:
    """Return the index of this level in the run; of one between levels (a sampler's inner steps) that before it."""
    levels, level = on_host(sample_sigmas), on_host(sigma)[:1]
    matches = torch.nonzero(torch.isclose(levels, level.to(levels), rtol=0.0001))
    if matches.numel():
        return int(matches[0])
    return max(int((levels > level.to(levels)).sum()) - 1, 0)
