"""Frames before and after a network restores them: filled up for it, then cut back, with the colours of the originals.

IMAGE is float32 `[F, H, W, C]`, 0..1, or `[B, F, H, W, C]`, which are several videos.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch.nn import functional

from darkroom.engine.images.restored_colors import METHODS

SIDE_PX = 16
WORKING_FRAMES = 14  # float32, that the correction of one takes: measured of L*a*b*, the largest
FRAMES_RATIO = 4
COLORS = 3


def padded_video(images: torch.Tensor, check_bytes: Callable[[int], None]) -> torch.Tensor:
    """Return images as videos [B, F, H, W, C] of at most three channels whose sides are multiples of 16 pixels.

    They have black pixels at the right and below, and the last frame again until there are 1 + 4n. `check_bytes` is
    called with the size of the result before it is made.
    """
    videos = images[..., :COLORS] if images.ndim == 5 else images[None, ..., :COLORS]
    batch, frames, height, width, channels = videos.shape
    length = frames + (1 - frames) % FRAMES_RATIO
    rows, columns = (side + -side % SIDE_PX for side in (height, width))
    check_bytes(math.prod((batch, length, rows, columns, channels)) * videos.element_size())
    padded = videos.new_zeros(batch, length, rows, columns, channels)
    padded[:, :frames, :height, :width] = videos.clamp(0.0, 1.0)
    padded[:, frames:] = padded[:, frames - 1 : frames]
    return padded


class RestoredFrames:
    """Restored frames at the size of the originals, an even number of pixels a side, computed as they are taken.

    `images` are the restored frames, in pieces or at once; `originals` give the size, alpha, and the colours unless
    `method` is `none`. Only as many frames are left as there are originals. Raises ValueError for images of other
    channels than the originals.
    """

    def __init__(self, images: Iterable[torch.Tensor], originals: torch.Tensor, method: str) -> None:
        shape: tuple[int, ...] = tuple(images.shape)  # type: ignore[attr-defined]  # a tensor's, or a stream's
        self._images, self._method = images, method
        videos = originals if originals.ndim == 5 else originals[None]
        self._alpha = videos[..., COLORS:] if videos.shape[-1] == COLORS + 1 else None
        self._references = videos if self._alpha is None else videos[..., :COLORS]
        is_plain = len(shape) == 4
        batch, length, height, width, channels = (1, *shape) if is_plain else shape
        if batch == 1 and length % videos.shape[0] == 0 and length // videos.shape[0] >= videos.shape[1]:
            batch, length = videos.shape[0], length // videos.shape[0]
        self._given_frames = length
        self._num_videos, self._num_frames = min(batch, videos.shape[0]), min(length, videos.shape[1])
        self._height, self._width = min(height, videos.shape[2]), min(width, videos.shape[3])
        if method != "none" and channels != self._references.shape[-1]:
            raise ValueError(
                f"images: other channels than the originals; got {channels}, expected {self._references.shape[-1]}"
            )
        frame = (self._height // 2 * 2, self._width // 2 * 2, channels + (self._alpha is not None))
        counted = (self._num_videos, self._num_frames)
        self.shape: tuple[int, ...] = (math.prod(counted), *frame) if is_plain else (*counted, *frame)

    def __len__(self) -> int:
        return self._num_videos * self._num_frames

    @property
    def working_bytes(self) -> int:
        """Memory that the correction of a frame takes on its device."""
        if self._method == "none":
            return 0
        return WORKING_FRAMES * self._height * self._width * COLORS * torch.float32.itemsize

    def restored(self, device: torch.device) -> Iterator[torch.Tensor]:
        """Yield each frame [H, W, C], float32 on the CPU, with its colors corrected on a device."""
        last = (self._num_videos - 1) * self._given_frames + self._num_frames
        for index, frame in enumerate(itertools.islice(self._frames(), last)):
            video, place = divmod(index, self._given_frames)
            if place < self._num_frames:
                yield self._restored(frame, video, place, device)

    def _frames(self) -> Iterator[torch.Tensor]:
        for item in self._images:
            if item.ndim == 4:
                yield from item
            else:
                yield item

    def _restored(self, frame: torch.Tensor, video: int, place: int, device: torch.device) -> torch.Tensor:
        frame = frame[: self._height, : self._width]
        transfer = METHODS.get(self._method)
        if transfer is not None:
            pair = (item.to(device, torch.float32) for item in (frame, self._reference(video, place)))
            restored = transfer(*(item.movedim(-1, 0) * 2.0 - 1.0 for item in pair))
            frame = ((restored + 1.0) / 2.0).clamp(0.0, 1.0).movedim(0, -1).to("cpu")
        if self._alpha is not None:
            frame = torch.cat([frame, self._alpha[video, place, : self._height, : self._width].to(frame)], dim=-1)
        return frame[: self._height // 2 * 2, : self._width // 2 * 2].float()

    def _reference(self, video: int, place: int) -> torch.Tensor:
        """Return the original frame [H, W, C] at the size of the restored one."""
        frame = self._references[video, place]
        if frame.shape[:2] == (self._height, self._width):
            return frame
        resized = functional.interpolate(
            frame.movedim(-1, 0)[None].float(), (self._height, self._width), mode="bicubic", antialias=True
        )
        return resized[0].movedim(0, -1)
