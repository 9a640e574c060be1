"""Places of tokens on three axes where pictures are among them (Wang et al. 2024, arXiv 2409.12191, section 2.1).

`T` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SeenPicture:
    """The place of a picture's first token among the others, and its rows and columns of tokens."""

    first: int
    rows: int
    columns: int

    @property
    def num_tokens(self) -> int:
        return self.rows * self.columns


def places_among(pictures: Sequence[SeenPicture], num_tokens: int) -> torch.Tensor:
    """Return the places [3, T] of tokens on the axes of time, row and column.

    Text counts on alike on all axes. The tokens of a picture have one time, and rows and columns from there; behind it
    the text goes on as if it had been as long as the picture's longer side.
    """
    places = torch.arange(num_tokens, dtype=torch.float32).expand(3, -1).clone()
    gained = 0  # places that pictures had, less their tokens
    for picture in pictures:
        start, end = picture.first + gained, picture.first + picture.num_tokens
        places[0, picture.first : end] = start
        cells = torch.arange(picture.num_tokens)
        places[1, picture.first : end] = (start + cells // picture.columns).float()
        places[2, picture.first : end] = (start + cells % picture.columns).float()
        longest = max(picture.rows, picture.columns)
        gained += longest - picture.num_tokens
        places[:, end:] = torch.arange(num_tokens - end) + end + gained
    return places
