"""INTERP_MODEL: a network that computes the frames between two frames of a video."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.nn import functional

from darkroom.engine.models.network_value import NetworkAsModel

VALUE_BYTES = 4  # the networks compute in float32


class FrameInterpolator(NetworkAsModel):
    """A network that interpolates frames, `Rife` or `Film`."""

    def find_problem(self, height: int, width: int, channels: int) -> str | None:
        """Return the reason why frames of this shape cannot be interpolated, None where they can."""
        if channels != 3:
            return f"got {channels} channels, expected 3"
        network, side = self.model, min(height, width)
        reflected = max(-height % network.multiple, -width % network.multiple)
        smallest = max(network.smallest_side_px, network.multiple // 2 + 1 if reflected else 1)
        if side < smallest or -height % network.multiple >= height or -width % network.multiple >= width:
            return f"frames too small; got {width}x{height} px, expected at least {smallest} px a side"
        return None

    @torch.no_grad()
    def between(self, frames: Iterable[torch.Tensor], multiplier: int) -> Iterator[torch.Tensor]:
        """Yield the frames of a video with `multiplier` times as many, [1, H, W, 3], 0..1, on the CPU.

        Each is computed as it is taken, so that no more than two frames are held. `frames` are [H, W, 3]; the last one
        has none behind it.
        """
        times = [index / multiplier for index in range(1, multiplier)]
        before = None
        for frame in frames:
            height, width = frame.shape[:2]
            with self.patcher.in_use(working_bytes=self._working_bytes(height, width)) as network:
                pixels = self._padded(frame)
                seen = (pixels, network.features(pixels))
                if before is not None:
                    for made in network.between((before[0], pixels), (before[1], seen[1]), times):
                        yield _as_image(made[0, :, :height, :width].movedim(0, -1))
            before = seen
            yield _as_image(frame)

    def _working_bytes(self, height: int, width: int) -> int:
        num_bytes: int = self.model.bytes_per_pixel * height * width * VALUE_BYTES
        return num_bytes

    def _padded(self, frame: torch.Tensor) -> torch.Tensor:
        """Return a frame [H, W, 3] as [1, 3, H, W] on the device, reflected on the right and below to a multiple."""
        height, width = frame.shape[:2]
        pixels = frame.movedim(-1, 0)[None].to(self.load_device, torch.float32)
        missing = (0, -width % self.model.multiple, 0, -height % self.model.multiple)
        return functional.pad(pixels, missing, mode="reflect") if any(missing) else pixels


def _as_image(frame: torch.Tensor) -> torch.Tensor:
    return frame[None].float().clamp(0, 1).cpu()
