"""A context window of a latent, and inputs of the network that are cut with it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from darkroom.engine.diffusion.conditions import BatchedInput

WINDOW = "context_window"
"""Transformer option with the `LatentWindow` of an evaluation of one."""


@dataclass(frozen=True, slots=True)
class LatentWindow:
    """A window of a latent, as networks and packs find it in the transformer options.

    `causal_anchor_index` is the place before the window that is evaluated with it, None for a window that has none.
    `further_places` are those of the further streams of a latent, at the same times.
    """

    index_list: list[int]
    dim: int
    total_frames: int
    causal_anchor_index: int | None = None
    further_places: tuple[list[int], ...] = ()

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

    def of_stream(self, number: int, total: int) -> LatentWindow:
        """Return the window of a stream of a latent by its number, of `total` places."""
        return self if number == 0 else LatentWindow(self.further_places[number - 1], self.dim, total)

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
