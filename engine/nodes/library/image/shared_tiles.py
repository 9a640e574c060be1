"""Tiles of one upscale that several engines compute at the same time, handed over as files of a folder they share.

The engine that owns the picture takes tiles from its beginning, helpers take them from its end. A tile belongs to the
engine that creates its claim. The owner blends all of them in their order, so that the picture has the bits of one
engine. It waits for no helper: a tile that is claimed and does not come is computed by the owner itself.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from engine.architectures.tiles import cut, tiles_of
from engine.cancel import CancelToken
from names.tiles import SHARED_TILES_FOLDER

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
LOOK_SECONDS: Final = 0.01
LEAST_WAIT_SECONDS: Final = 5.0
PATIENCE: Final = 3  # times as long as the owner's slowest tile took

Network = Callable[[torch.Tensor], torch.Tensor]


class TileExchange:
    """Folder of the tiles of one upscale. Raises ValueError for a name that is none."""

    def __init__(self, output_folder: Path, name: str) -> None:
        if not NAME.fullmatch(name) or ".." in name:
            raise ValueError(f"exchange: not a name; got {name[:80]!r}, expected letters, digits, '.', '_' and '-'")
        self._folder = output_folder / SHARED_TILES_FOLDER / name

    def open(self) -> None:
        """Make the folder. For the owner: a helper that comes too late finds none."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def claim(self, number: int) -> bool:
        """Return True if the tile is the caller's from now on."""
        try:
            os.close(os.open(self._folder / f"{number}.claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except (FileExistsError, FileNotFoundError):  # the folder is removed when the upscale is done
            return False
        return True

    def put(self, number: int, tile: torch.Tensor) -> None:
        """Hand a tile over, in its type: blending rounds by it."""
        tile = tile.detach().cpu()
        part = self._folder / f"{number}.part"
        with part.open("wb") as file:
            # NumPy has no bfloat16: its bits travel as integers, which no tile is otherwise.
            np.save(
                file, (tile.view(torch.int16) if tile.dtype == torch.bfloat16 else tile).numpy(), allow_pickle=False
            )
        part.replace(self._folder / f"{number}.npy")

    def take(self, number: int) -> torch.Tensor | None:
        """Return a tile that was handed over; None while it is not there, and for a file that is broken."""
        file = self._folder / f"{number}.npy"
        try:
            tile = torch.from_numpy(np.load(file, allow_pickle=False))
        except (OSError, ValueError):
            return None
        file.unlink(missing_ok=True)
        return tile.view(torch.bfloat16) if tile.dtype == torch.int16 else tile


class OwnersNetwork:
    """The network of the owner: computes the tiles that it can claim, and takes the others from helpers."""

    def __init__(self, network: Network, exchange: TileExchange, cancel: CancelToken) -> None:
        self._network = network
        self._exchange = exchange
        self._cancel = cancel
        self._number = -1
        self._slowest_seconds = 0.0

    def __call__(self, tile: torch.Tensor) -> torch.Tensor:
        self._number += 1
        if not self._exchange.claim(self._number):
            taken = self._awaited()
            if taken is not None:
                return taken
        began = time.monotonic()
        made = self._network(tile)
        self._slowest_seconds = max(self._slowest_seconds, time.monotonic() - began)
        return made

    def _awaited(self) -> torch.Tensor | None:
        until = time.monotonic() + max(LEAST_WAIT_SECONDS, PATIENCE * self._slowest_seconds)
        while (tile := self._exchange.take(self._number)) is None:
            self._cancel.check()
            if time.monotonic() > until:
                return None
            time.sleep(LOOK_SECONDS)
        return tile


def help_with_tiles(
    pixels: torch.Tensor, network: Any, exchange: TileExchange, *, tile_px: int, overlap_px: int, cancel: CancelToken
) -> int:
    """Compute tiles of `pixels` [B, C, H, W] from the end, until none is left to claim. Returns how many."""
    num_made = 0
    for number, (index, place) in reversed(list(enumerate(tiles_of(pixels, (tile_px, tile_px), overlap_px)))):
        cancel.check()
        if not exchange.claim(number):
            continue
        exchange.put(number, network(cut(pixels[index : index + 1], place)))
        num_made += 1
    return num_made
