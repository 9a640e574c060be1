"""The size of what a node of a prompt makes: pixels, batch and frames of pictures, seconds of sounds. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from contract.unit import UNIT_PIXELS

MOST: Final = 1e9  # upper bound of any number, far above every limit
SOUND_PIXELS_PER_SECOND: Final = 1400.0  # of a latent of sound, as the cells of Stable Audio are counted


@dataclass(frozen=True, slots=True)
class Picture:
    """The size of a node's output. None: unknown. A `field` is the input that determines a size.

    `seconds` are those of a sound, 0 for pictures. `frames_from` is the node and input that gave the frames or the
    batch, also at the nodes behind it.
    """

    width_px: float | None = None
    height_px: float | None = None
    batch: float = 1.0
    frames: float = 1.0
    seconds: float = 0.0
    size_field: str = ""
    batch_field: str = ""
    frames_field: str = ""
    seconds_field: str = ""
    frames_from: tuple[str, str] | None = None

    @property
    def pixels(self) -> float | None:
        """The pixels of one picture or frame."""
        return None if self.width_px is None or self.height_px is None else self.width_px * self.height_px

    @property
    def all_frames(self) -> float:
        """The pictures of a video of it: a batch is one after the other."""
        return self.frames * self.batch

    @property
    def sampled_pixels(self) -> float:
        """The pixels of the whole latent; four frames of a video share one latent frame, a sound counts by seconds."""
        if self.seconds:
            return self.seconds * SOUND_PIXELS_PER_SECOND * self.batch
        pixels = UNIT_PIXELS if self.pixels is None else self.pixels
        return pixels * self.batch * ((self.frames - 1) // 4 + 1)

    @property
    def video_pixels(self) -> float | None:
        """The pixels of all frames of one video; None where they are unknown, and for a picture."""
        return None if self.pixels is None or not self.frames_field else self.pixels * self.frames

    def scaled(self, factor: float, field: str) -> Picture:
        if self.width_px is None or self.height_px is None:
            return self
        width, height = min(self.width_px * factor, MOST), min(self.height_px * factor, MOST)
        return replace(self, width_px=width, height_px=height, size_field=field)


def with_sides(picture: Picture, width: float | None, height: float | None, field: str) -> Picture:
    """Return a picture with the given sides; a side of 0 keeps the proportions, as in ComfyUI's scalers."""
    if width is None or height is None:
        return replace(picture, width_px=None, height_px=None)
    if not width and not height:
        return picture
    if not (width and height):
        ratio = picture.width_px / picture.height_px if picture.width_px and picture.height_px else 1.0
        width, height = width or height * ratio, height or width / ratio
    return replace(picture, width_px=abs(width), height_px=abs(height), size_field=field)


def stitched(picture: Picture, taken: list[Picture], *, is_beside: bool) -> Picture:
    wide, high = [item.width_px or 0.0 for item in taken], [item.height_px or 0.0 for item in taken]
    width, height = (sum(wide), max(high)) if is_beside else (max(wide), sum(high))
    return replace(picture, width_px=min(width, MOST), height_px=min(height, MOST), size_field="image2")
