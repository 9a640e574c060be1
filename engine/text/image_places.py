"""Places of tokens on three axes where images are among them (Wang et al. 2024, arXiv 2409.12191, section 2.1).

`T` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SeenImage:
    """The place of an image's first token among the others, and its rows and columns of tokens."""

    first: int
    rows: int
    columns: int

    @property
    def num_tokens(self) -> int:
        return self.rows * self.columns


def places_among(images: Sequence[SeenImage], num_tokens: int) -> torch.Tensor:
    """Return the places [3, T] of tokens on the axes of time, row and column.

    Text counts on alike on all axes. The tokens of an image have one time, and rows and columns from there; behind it
    the text goes on as if it had been as long as the image's longer side.
    """
    places = torch.arange(num_tokens, dtype=torch.float32).expand(3, -1).clone()
    gained = 0  # places that images had, less their tokens
    for image in images:
        start, end = image.first + gained, image.first + image.num_tokens
        places[0, image.first : end] = start
        cells = torch.arange(image.num_tokens)
        places[1, image.first : end] = (start + cells // image.columns).float()
        places[2, image.first : end] = (start + cells % image.columns).float()
        longest = max(image.rows, image.columns)
        gained += longest - image.num_tokens
        places[:, end:] = torch.arange(num_tokens - end) + end + gained
    return places
