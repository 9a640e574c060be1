"""Tiled evaluation of networks with blended overlaps: memory for one tile instead of the whole image or video.

`B` batch, `C` channels, `H W` the input's size, `h w` a tile's. Videos have an axis of frames before these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
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
    size = [round(axis.length(length)) for axis, length in zip(scales, samples.shape[2:], strict=True)]
    output = torch.empty([samples.shape[0], out_channels, *size], device=output_device)
    for index in range(samples.shape[0]):
        place = 0
        for stretch in stretches_in_tiles(
            samples[index : index + 1], function, tile=tile, overlap=overlap, scale=scales,
            output_device=output_device, on_tile=on_tile,
        ):  # fmt: skip
            output[index : index + 1, :, place : place + stretch.shape[2]] = stretch
            place += stretch.shape[2]
    return output


def stretches_in_tiles(
    item: torch.Tensor,
    function: Callable[[torch.Tensor], torch.Tensor],
    *,
    tile: tuple[int, ...],
    overlap: int | tuple[int, ...],
    scale: Sequence[AxisScale],
    output_device: torch.device | str = "cpu",
    on_tile: Callable[[], None] | None = None,
) -> Iterator[torch.Tensor]:
    """Yield the result of `run_in_tiles` for one item in stretches along the first axis, each once no tile reaches it.

    They are [1, out_channels, r, W] of an item [1, C, H, W], or [1, out_channels, f, H, W] of a video. The item's
    output is never held as a whole, unless one tile is as long as the item. What tiles have behind the item's end along
    that axis is left out.
    """
    if all(length <= limit for length, limit in zip(item.shape[2:], tile, strict=True)):
        yield function(item).to(output_device)
        if on_tile is not None:
            on_tile()
        return
    overlaps = (overlap,) * len(tile) if isinstance(overlap, int) else overlap
    feathers = [round(axis.length(cells)) for axis, cells in zip(scale, overlaps, strict=True)]
    length, *sides = (round(axis.length(cells)) for axis, cells in zip(scale, item.shape[2:], strict=True))
    places = tile_places(item.shape[2:], tile, overlaps)
    first, total, weights = 0, torch.empty(0), torch.empty(0)  # of the output: where the two begin along the axis
    for _, row in itertools.groupby(places, key=lambda place: place[0]):
        for index, place in enumerate(row):
            result = function(cut(item, place)).to(output_device)
            start, *others = (round(axis.place(begin)) for axis, (begin, _) in zip(scale, place, strict=True))
            if index == 0:
                if start > first:  # what lies before is reached by no later tile
                    yield total[:, :, : start - first] / weights[:, :, : start - first]
                kept = (total, weights) if first or total.numel() else (None, None)
                until = length if place[0] == places[-1][0] else min(length, start + result.shape[2])
                shape = [1, result.shape[1], until - start, *sides]
                total, weights = (_continued(old, start - first, shape, result) for old in kept)
                first = start
            weight = _feathered(result, feathers)[:, :, : length - start]
            result = result[:, :, : length - start]
            target = ((0, result.shape[2]), *zip(others, result.shape[3:], strict=True))
            cut(total, target).add_(result * weight)
            cut(weights, target).add_(weight)
            if on_tile is not None:
                on_tile()
    yield total / weights


def _continued(old: torch.Tensor | None, first: int, shape: list[int], like: torch.Tensor) -> torch.Tensor:
    """Return zeros of a shape, in float32, that begin with what `old` has from `first` on along the third dimension."""
    new = torch.zeros(shape, device=like.device)
    if old is not None:
        kept = old[:, :, first:]
        new[:, :, : kept.shape[2]] = kept
    return new


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


def tiles_of(
    samples: torch.Tensor, tile: tuple[int, ...], overlap: int
) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """Return item and place of each tile that `run_in_tiles` evaluates, in its order."""
    places = tile_places(samples.shape[2:], tile, overlap)
    return [(index, place) for index in range(samples.shape[0]) for place in places]


def cut(item: torch.Tensor, place: tuple[tuple[int, int], ...]) -> torch.Tensor:
    """Return the part of [B, C, ...] at a place, as a view: (start, length) along each axis after the channels."""
    for dim, (start, length) in enumerate(place):
        item = item.narrow(dim + 2, start, length)
    return item


def _feathered(result: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
    """Return the weights of one tile: they fall linearly towards every edge, also those on the image's border.

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
