"""IMAGE in pieces: the frames of a video, decoded while a node takes them, so that they are never held together.

`F` frames, `H W` pixels, `C` channels: images are float32 `[H, W, C]`, 0..1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from darkroom.contract.graph.streamed import Streamed
from darkroom.engine.cancel import check_cancelled

Shape = tuple[int, int, int, int]


class FrameStream(Streamed):
    """Frames of the shape [F, H, W, C]. `decode` begins anew and yields them in order, some at a time, on the CPU.

    `held_bytes` is the RAM of what they are decoded from.
    """

    def __init__(self, shape: Shape, decode: Callable[[], Iterator[torch.Tensor]], held_bytes: int = 0) -> None:
        self.shape = shape
        self._decode = decode
        self._held_bytes = held_bytes

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield every frame [H, W, C]."""
        for piece in self.pieces():
            yield from piece

    def pieces(self) -> Iterator[torch.Tensor]:
        """Yield the frames as they are decoded, [f, H, W, C] each. Raises Interrupted when the run is cancelled."""
        for piece in self._decode():
            check_cancelled()
            yield piece

    def whole(self) -> torch.Tensor:
        """Return all frames in one tensor [F, H, W, C]."""
        frames = torch.empty(self.shape)
        place = 0
        for piece in self.pieces():
            frames[place : place + len(piece)] = piece
            place += len(piece)
        return frames

    def get_ram_usage(self) -> int:
        """Return the bytes that the stream holds while nobody takes it, for the cache of results."""
        return self._held_bytes
