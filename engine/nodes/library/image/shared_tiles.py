"""Tiles of one upscale that several engines compute at the same time.

The engine that owns the picture takes tiles from its beginning, helpers take them from its end. The owner blends all of
them in their order, so that the picture has the bits of one engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from engine.cancel import CancelToken
from engine.layers.tiles import cut, tiles_of
from engine.nodes.exchange import Exchange

Network = Callable[[torch.Tensor], torch.Tensor]


class OwnersNetwork:
    """The network of the owner: computes the tiles that it can claim, and takes the others from helpers."""

    def __init__(self, network: Network, exchange: Exchange, cancel: CancelToken) -> None:
        self._network = network
        self._exchange = exchange
        self._cancel = cancel
        self._number = -1
        self._slowest_seconds = 0.0

    def __call__(self, tile: torch.Tensor) -> torch.Tensor:
        self._number += 1
        piece = str(self._number)
        if not self._exchange.claim(piece):
            taken = self._exchange.wait_for(piece, self._slowest_seconds, self._cancel)
            if taken is not None:
                return taken
        began = time.monotonic()
        made = self._network(tile)
        self._slowest_seconds = max(self._slowest_seconds, time.monotonic() - began)
        return made


def help_with_tiles(
    pixels: torch.Tensor, network: Any, exchange: Exchange, *, tile_px: int, overlap_px: int, cancel: CancelToken
) -> int:
    """Compute tiles of `pixels` [B, C, H, W] from the end, until none is left to claim. Returns how many."""
    num_made = 0
    for number, (index, place) in reversed(list(enumerate(tiles_of(pixels, (tile_px, tile_px), overlap_px)))):
        cancel.check()
        if not exchange.claim(str(number)):
            continue
        exchange.put(str(number), network(cut(pixels[index : index + 1], place)))
        num_made += 1
    return num_made
