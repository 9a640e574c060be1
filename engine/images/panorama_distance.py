"""Distances of a panorama, joined from those of views whose scales differ (MoGe's paper, appendix).

Only how logarithms of distance change from pixel to pixel is taken of the views, as mean of those that show a place;
the panorama is the solution by least squares. `H W` pixels of the panorama, `h w` of a view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from darkroom.engine.images.panorama import Views, directions_of, grid, seen_at

COARSEST_PX = 256  # a side from which on half the size is solved first
TOLERANCE = 1e-5
MOST_STEPS = 5000  # of one solution; few hundred are usual
LEAST = 1e-6

Values = NDArray[np.floating]
Flags = NDArray[np.bool_]
Image = TypeVar("Image", NDArray[np.floating], NDArray[np.bool_])


class _Mean:
    """Mean of what several views have at each pixel, of those where a flag is set."""

    def __init__(self) -> None:
        self._sum: Values | float = 0.0
        self._count: NDArray[np.int64] | int = 0

    def add(self, values: Values, counts: Flags) -> None:
        self._sum = self._sum + np.where(counts, values, 0)
        self._count = self._count + counts.astype(np.int64)

    @property
    def is_known(self) -> Flags:
        known: Flags = np.greater(self._count, 0)
        return known

    @property
    def values(self) -> Values:
        mean: Values = self._sum / np.maximum(self._count, 1)
        return np.asarray(mean, dtype=np.float64)


def joined_distance(
    sides: tuple[int, int],
    views: Views,
    distances: Sequence[Values],
    masks: Sequence[Flags],
    check: Callable[[], None] = lambda: None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distances [H, W] of a panorama of those sides, and True where a view has a valid one.

    `distances` and `masks` are [h, w] of each view; distances that are no finite numbers are not valid. Half the size
    is solved first and is where the solution begins. `check` is called during each step, and may raise.
    """
    # Those of other numbers would let the solution go on to the last step.
    masks = [mask & np.isfinite(item) for mask, item in zip(masks, distances, strict=True)]
    known = (np.nan_to_num(item, nan=LEAST, posinf=LEAST, neginf=LEAST) for item in distances)
    logarithms = [np.log(np.clip(item, LEAST, None)) for item in known]
    levels = [sides]
    while max(levels[-1]) > COARSEST_PX:
        levels.append((levels[-1][0] // 2, levels[-1][1] // 2))
    found: torch.Tensor | None = None
    is_seen = torch.zeros(1, 1, dtype=torch.bool)
    for level in reversed(levels):
        start = None
        if found is not None:
            start = functional.interpolate(found[None, None], size=level, mode="bilinear")[0, 0].clamp(min=LEAST).log()
        logarithm, is_seen = _solved(level, views, logarithms, masks, start, check)
        found = logarithm.exp()
    assert found is not None
    return found, is_seen


def _solved(
    sides: tuple[int, int],
    views: Views,
    logarithms: Sequence[Values],
    masks: Sequence[Flags],
    start: torch.Tensor | None,
    check: Callable[[], None],
) -> tuple[torch.Tensor, torch.Tensor]:
    # Only here: a third of a second.
    from scipy.ndimage import map_coordinates  # type: ignore[import-untyped]
    from scipy.sparse.linalg import LinearOperator, lsmr  # type: ignore[import-untyped]

    directions = directions_of(grid(*sides))
    right, down, curved = _Mean(), _Mean(), _Mean()
    is_seen = np.zeros(sides, dtype=bool)
    for rotation, of_view, mask in zip(views.rotations, logarithms, masks, strict=True):
        check()
        places, is_shown = seen_at(directions, rotation)
        pixels = places.clamp(0, 1).numpy() * (np.array(of_view.shape[::-1], dtype=np.float32) - 1)
        at = [pixels[..., 1], pixels[..., 0]]
        logarithm = map_coordinates(of_view, at, order=1, mode="nearest")
        logarithm = np.where(is_shown.numpy(), logarithm, 0).astype(np.float32)
        is_valid = is_shown.numpy() & (map_coordinates(mask.astype(np.uint8), at, order=0, mode="nearest") > 0)
        right.add(to_the_right(logarithm), is_valid & np.roll(is_valid, -1, axis=1))
        wide = around(is_valid)
        down.add(downwards(logarithm), wide[:-1] & wide[1:])
        above, below = beside(is_valid)
        curved.add(curvature(logarithm), right_and_left(is_valid) & is_valid & above & below)
        is_seen |= is_valid
    known = [item.is_known for item in (right, down, curved)]
    wanted = np.concatenate([item.values[flags] for item, flags in zip((right, down, curved), known, strict=True)])
    first = None if start is None else start.double().numpy().ravel()
    changes, transposed = _equations(sides, known, check)
    shape = (len(wanted), sides[0] * sides[1])
    equations = LinearOperator(shape, matvec=changes, rmatvec=transposed, dtype=np.float64)
    solution = lsmr(equations, wanted, atol=TOLERANCE, btol=TOLERANCE, maxiter=MOST_STEPS, x0=first)
    solved = torch.from_numpy(np.asarray(solution[0]).reshape(sides))
    return solved.float(), torch.from_numpy(is_seen)


def _equations(
    sides: tuple[int, int], known: Sequence[Flags], check: Callable[[], None]
) -> tuple[Callable[[Values], Values], Callable[[Values], Values]]:
    """Return changes to the right and down, and curvature, where known, as a function of pixels, and its transpose."""
    ends = np.cumsum([int(flags.sum()) for flags in known])

    def changes(pixels: Values) -> Values:
        check()
        image = pixels.reshape(sides)
        parts = (to_the_right(image), downwards(image), curvature(image))
        return np.concatenate([part[flags] for part, flags in zip(parts, known, strict=True)])

    def transposed(values: Values) -> Values:
        parts = []
        for part, flags in zip(np.split(values, ends[:-1]), known, strict=True):
            whole = np.zeros(flags.shape)
            whole[flags] = part
            parts.append(whole)
        right, down, curved = parts
        image = right - np.roll(right, 1, axis=1) + curvature(curved)
        both = np.pad(down, ((0, 1), (0, 0))) - np.pad(down, ((1, 0), (0, 0)))
        image += both[:, :-1]
        image[:, 0] += both[:, -1]
        return np.asarray(image.ravel())

    return changes, transposed


def around(image: Image) -> Image:
    """Return [H, W + 1]: a panorama with its first column behind the last one."""
    return np.concatenate((image, image[:, :1]), axis=1)


def to_the_right(image: Values) -> Values:
    """Return how much each pixel exceeds the one on its right [H, W]; the last column's is the first."""
    change: Values = image - np.roll(image, -1, axis=1)
    return change


def downwards(image: Values) -> Values:
    """Return how much each pixel exceeds the one below [H - 1, W + 1]; the first column counts twice."""
    wide = around(image)
    change: Values = wide[:-1] - wide[1:]
    return change


def beside(image: Image) -> tuple[Image, Image]:
    """Return the pixels above and below each; those beyond an edge are those at the edge."""
    padded = np.pad(image, ((1, 1), (0, 0)), mode="edge")
    return padded[:-2], padded[2:]


def right_and_left(flags: Flags) -> Flags:
    """Return True where the pixels on both sides are set."""
    both: Flags = np.roll(flags, 1, axis=1) & np.roll(flags, -1, axis=1)
    return both


def curvature(image: Values) -> Values:
    """Return the sum of the four pixels around each less four times its own."""
    above, below = beside(image)
    made: Values = np.roll(image, 1, axis=1) + np.roll(image, -1, axis=1) + above + below - 4 * image
    return made
