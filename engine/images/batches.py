"""Positions in batches of images or latents. Pure."""

from __future__ import annotations


def position_in_batch(index: int, num_items: int) -> int:
    """Return the position, 0 to `num_items - 1`, nearest to an index; a negative one counts from the end."""
    return max(0, min(num_items - 1, index + num_items if index < 0 else index))
