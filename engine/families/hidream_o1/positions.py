"""Positions of HiDream-O1's tokens on three axes: those of a text are counted, those of images lie in grids.

Images among the text's tokens follow what is before them. The image that is drawn lies at a fixed position, reference
images as patches behind it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

DRAWN_POSITION = 4096  # of the first patch of the image that is drawn, on each axis
NUM_BEFORE_IMAGES = 3  # tokens of the text before those of images: the beginning of the user's turn
Grid = tuple[int, int]  # rows and columns


class PositionCounter:
    """The positions [3, T] of tokens that follow each other, frame, row and column; `next` is behind the furthest."""

    def __init__(self) -> None:
        self.next = 0
        self._parts: list[torch.Tensor] = []

    def text(self, num_tokens: int) -> None:
        """Add tokens that count on all axes."""
        self._parts.append(torch.arange(self.next, self.next + num_tokens).expand(3, -1))
        self.next += num_tokens

    def image(self, grid: Grid, first: int | None = None) -> None:
        """Add the cells of an image, row by row, the first of them at this position on each axis."""
        first = self.next if first is None else first
        rows, columns = grid
        row = torch.arange(rows)[:, None].expand(rows, columns).flatten()
        column = torch.arange(columns)[None].expand(rows, columns).flatten()
        self._parts.append(torch.stack([torch.zeros_like(row), row, column]) + first)
        self.next = first + max(rows, columns)

    def all(self) -> torch.Tensor:
        """Return the positions of all tokens."""
        return torch.cat(self._parts, dim=1)


def positions_of(num_text: int, drawn: Grid, seen: Sequence[Grid] = (), patches: Sequence[Grid] = ()) -> torch.Tensor:
    """Return the positions [3, T] of a text's tokens, of the drawn image's patches, and of those of references.

    `num_text` are the text's tokens without those of the images among them, whose grids are `seen`; before and behind
    each of these there is a mark. `patches` are the grids of the same images as patches.
    """
    counter = PositionCounter()
    if seen:
        counter.text(NUM_BEFORE_IMAGES)
        for grid in seen:
            counter.text(1)
            counter.image(grid)
            counter.text(1)
        counter.text(num_text - NUM_BEFORE_IMAGES)
    else:
        counter.text(num_text)
    counter.image(drawn, DRAWN_POSITION)
    for grid in patches:
        counter.image(grid)
    return counter.all()
