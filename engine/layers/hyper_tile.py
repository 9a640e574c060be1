"""HyperTile (tfernd, github.com/tfernd/HyperTile): self-attention within tiles, its queries cut and put back.

Tokens `[B, h * w, C]` of one transformer; sizes in latent cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from darkroom.engine.layers.call_options import CallOptions


@dataclass(slots=True)
class HyperTile:
    """Two patches of a UNet: `cut` before self-attention and `join` behind it.

    Transformers down to `max_depth` halvings of the latent take part; `scale_depth` makes their tiles grow with it.
    Only queries are cut: keys and values stay those of the whole image, as in ComfyUI.
    """

    tile_size_px: int
    swap_size: int
    max_depth: int
    scale_depth: bool
    cut_as: tuple[int, int, int, int] | None = None  # tiles along both sides, and the sides; between cut and join

    def cut(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: CallOptions
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        height, width = options["original_shape"][-2:]
        depths = [(height / 2**depth) * (width / 2**depth) for depth in range(self.max_depth + 1)]
        num_tokens = q.shape[1]
        if num_tokens not in depths:
            return q, k, v
        aspect = width / height
        # Odd but ComfyUI's: the sides are the other way round (rows get the root of tokens times width / height), so
        # that tiles of an image that is not square are not rectangles of it.
        rows, columns = round(math.sqrt(num_tokens * aspect)), round(math.sqrt(num_tokens / aspect))
        smallest = max(32, self.tile_size_px) // 8 * (2 ** depths.index(num_tokens) if self.scale_depth else 1)
        tiles_down = random_divisor(rows, smallest, self.swap_size)
        tiles_across = random_divisor(columns, smallest, self.swap_size)
        if tiles_down * tiles_across > 1:
            batch, _, channels = q.shape
            q = q.reshape(batch, tiles_down, rows // tiles_down, tiles_across, columns // tiles_across, channels)
            q = q.transpose(2, 3).reshape(batch * tiles_down * tiles_across, -1, channels)
            self.cut_as = (tiles_down, tiles_across, rows, columns)
        return q, k, v

    def join(self, out: torch.Tensor, options: CallOptions) -> torch.Tensor:
        if self.cut_as is None:
            return out
        tiles_down, tiles_across, rows, columns = self.cut_as
        self.cut_as = None
        channels = out.shape[-1]
        out = out.reshape(-1, tiles_down, tiles_across, rows // tiles_down, columns // tiles_across, channels)
        return out.transpose(2, 3).reshape(out.shape[0], rows * columns, channels)


def random_divisor(value: int, smallest: int, max_options: int) -> int:
    """Return the number of tiles for `value`: one of its `max_options` smallest divisors from `smallest` up.

    Drawn with torch's global generator. The last of several is never drawn, as in the original.
    """
    smallest = min(smallest, value)
    counts = [value // side for side in range(smallest, value + 1) if value % side == 0][:max_options]
    return counts[int(torch.randint(0, len(counts) - 1, (1,)).item())] if len(counts) > 1 else counts[0]
