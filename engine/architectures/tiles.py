"""Tiled evaluation of networks with blended overlaps: memory for one tile instead of the whole picture or video.

`B` batch, `C` channels, `H W` the input's size, `h w` a tile's. Videos have an axis of frames before these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class AxisScale:
    """The way from an axis of the input to that of the output: the length of a stretch, and the place of its start."""

    length: Callable[[int], float]
    place: Callable[[int], float]


def even_scale(factor: float) -> AxisScale:
    """Return the scale of an axis of which every cell becomes as many."""
    return AxisScale(lambda length: factor * length, lambda start: factor * start)


def run_in_tiles(
    samples: torch.Tensor,
    function: Callable[[torch.Tensor], torch.Tensor],
    *,
    tile: tuple[int, ...],
    overlap: int | tuple[int, ...],
    scale: float | Sequence[AxisScale],
    out_channels: int,
    output_device: torch.device | str = "cpu",
    on_tile: Callable[[], None] | None = None,
) -> torch.Tensor:
    """Apply `function` to overlapping tiles of [B, C, H, W], item by item.

    It maps [1, C, h, w] to [1, out_channels, h * scale, w * scale]. Videos [B, C, F, H, W] have three axes.

    `tile` is (height, width) in cells of the input, for videos (frames, height, width); `overlap` and `scale` are too,
    or one number for all axes. `on_tile` is called after every tile. float32.
    """
    scales = [even_scale(scale)] * len(tile) if isinstance(scale, int | float) else list(scale)
    overlaps = (overlap,) * len(tile) if isinstance(overlap, int) else overlap
    feathers = [round(axis.length(cells)) for axis, cells in zip(scales, overlaps, strict=True)]
    size = [round(axis.length(length)) for axis, length in zip(scales, samples.shape[2:], strict=True)]
    output = torch.empty([samples.shape[0], out_channels, *size], device=output_device)
    for index in range(samples.shape[0]):
        item = samples[index : index + 1]
        if all(length <= limit for length, limit in zip(item.shape[2:], tile, strict=True)):
            output[index : index + 1] = function(item).to(output_device)
            if on_tile is not None:
                on_tile()
            continue
        total, weights = torch.zeros_like(output[:1]), torch.zeros_like(output[:1])
        for place in tile_places(item.shape[2:], tile, overlaps):
            result = function(_cut(item, place)).to(output_device)
            weight = _feathered(result, feathers)
            target = tuple(
                (round(axis.place(start)), length)
                for axis, (start, _), length in zip(scales, place, result.shape[2:], strict=True)
            )
            _cut(total, target).add_(result * weight)
            _cut(weights, target).add_(weight)
            if on_tile is not None:
                on_tile()
        output[index : index + 1] = total / weights
    return output


def tile_places(
    size: torch.Size | tuple[int, ...], tile: tuple[int, ...], overlap: int | tuple[int, ...]
) -> list[tuple[tuple[int, int], ...]]:
    """Return (start, length) along every axis of each tile; those at the ends are shorter.

    Raises ValueError for an overlap as large as the tile, which leaves no step forward.
    """
    overlaps = (overlap,) * len(tile) if isinstance(overlap, int) else overlap
    spans = []
    for length, limit, shared in zip(size, tile, overlaps, strict=True):
        if length <= limit:
            spans.append([(0, length)])
            continue
        starts = range(0, length - shared, limit - shared)
        spans.append([(start, min(limit, length - start)) for start in starts])
    return list(itertools.product(*spans))


def num_tiles(samples: torch.Tensor, tile: tuple[int, int], overlap: int) -> int:
    """Return the number of calls that `run_in_tiles` makes."""
    return samples.shape[0] * len(tile_places(samples.shape[2:], tile, overlap))


def _cut(item: torch.Tensor, place: tuple[tuple[int, int], ...]) -> torch.Tensor:
    for dim, (start, length) in enumerate(place):
        item = item.narrow(dim + 2, start, length)
    return item


def _feathered(result: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
    """Return the weights of one tile: they fall linearly towards every edge, also those on the picture's border.

    `widths` are those of the edges along each axis.

    Only one tile covers the border, so its weight has no effect there. A tile narrower than the feather keeps its
    edges.
    """
    weight = torch.ones_like(result)
    for dim, width in enumerate(widths, start=2):
        length = weight.shape[dim]
        if width >= length:
            continue
        for step in range(width):
            weight.narrow(dim, step, 1).mul_((step + 1) / width)
            weight.narrow(dim, length - 1 - step, 1).mul_((step + 1) / width)
    return weight
