"""The sequence of tokens that MiniMax H3 works on: text, conditions, audio, video, and their positions.

Positions have three axes: time, row and column. Time counts tokens of text, frames of the audio's latent (40 a second)
and `FRAME_SPAN` for each frame of the video (24 a second), so that both streams have one time line. Rows and columns
are those of an image of 32 x 32 units of area, whatever its size. `S` tokens of the sequence, `n` of a stretch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from typing import NamedTuple

import torch

FRAMES_PER_LATENT = (1, 4, 4, 4, 4)  # of the video by latent frame, again and again
FRAME_SPAN = 5.0 / 3.0  # of the time line, of a frame of the video
UNITS = 32.0  # a side of an image as large as it is wide
CELLS = 2  # a side of a token
AUDIO_CHANNELS = 2  # whose tokens follow each other


class Source(IntEnum):
    """Stream or text that tokens come from, and the set of modulations that they use by themselves."""

    VIDEO = 0
    TEXT = 1
    AUDIO = 2


class Time(IntEnum):
    """Noise level at which the network sees tokens."""

    VIDEO = 0
    AUDIO = 1
    GIVEN_VIDEO = 2
    GIVEN_AUDIO = 3


class Stretch(NamedTuple):
    """`num_tokens` tokens of one source with one noise level; `modality` is the set of modulations."""

    source: int
    time: int
    modality: int
    num_tokens: int


class Sequencing(NamedTuple):
    """The stretches of a sequence, and the frames, rows and columns of cells of the video, which is the last one."""

    stretches: Sequence[Stretch]
    size: tuple[int, int, int]

    @property
    def grid(self) -> tuple[int, int, int]:
        """Frames, rows and columns of tokens of the video."""
        frames, rows, columns = self.size
        return frames, -(-rows // CELLS), -(-columns // CELLS)

    def ends(self) -> tuple[int, int]:
        """Return how many tokens are before the audio that is made, and before the video that is made."""
        total = sum(item.num_tokens for item in self.stretches)
        audio, video = (item.num_tokens for item in self.stretches[-2:])
        return total - video - audio, total - video


def flat(stretches: Sequence[Stretch]) -> tuple[int, ...]:
    """Return stretches as numbers alone, as inputs of networks are."""
    return tuple(number for stretch in stretches for number in stretch)


def from_flat(numbers: Sequence[int]) -> list[Stretch]:
    """Return the stretches that `flat` was given."""
    size = len(Stretch._fields)
    return [Stretch(*numbers[first : first + size]) for first in range(0, len(numbers), size)]


@dataclass(frozen=True, slots=True)
class Guide:
    """Latents that the network is given at a frame of the video: frames [1, C, t, h, w], audio [1, C, 2, T]."""

    frame: int
    video: torch.Tensor | None = None
    audio: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """An image (one latent frame), a video, its audio, or audio alone, that the network sees beside the video.

    `is_image`: it has no length on the time line but that of one token.
    """

    video: torch.Tensor | None = None
    audio: torch.Tensor | None = None
    is_image: bool = False

    @property
    def span(self) -> float:
        """Length on the time line."""
        if self.is_image:
            return 1.0
        audio = 0.0 if self.audio is None else float(self.audio.shape[-1])
        return audio if self.video is None else max(audio, sum(frame_spans(self.video.shape[2])))


@dataclass(slots=True)
class PackedLayout:
    """The stretches of the sequence, and the positions [S, 3] of its tokens, float64."""

    stretches: list[Stretch] = field(default_factory=list)
    positions: list[torch.Tensor] = field(default_factory=list)

    def add(self, source: Source, time: Time, positions: torch.Tensor) -> None:
        """Add tokens of a source at their positions [n, 3]."""
        self.stretches.append(Stretch(source, time, source, len(positions)))
        self.positions.append(positions)

    def add_text(self, modalities: Sequence[int]) -> None:
        """Add a text, of which `modalities` has that of each token: images within it have the video's."""
        starts = [i for i, item in enumerate(modalities) if i == 0 or modalities[i - 1] != item]
        for start, end in zip(starts, [*starts[1:], len(modalities)], strict=True):
            self.stretches.append(Stretch(Source.TEXT, Time.VIDEO, modalities[start], end - start))
        positions = torch.zeros(len(modalities), 3, dtype=torch.float64)
        positions[:, 0] = torch.arange(len(modalities), dtype=torch.float64)
        self.positions.append(positions)


def packed_layout(
    modalities: Sequence[int],
    size: tuple[int, int, int],
    audio_frames: int,
    guides: Sequence[Guide] = (),
    references: Sequence[Reference] = (),
) -> PackedLayout:
    """Return the layout for a video of `size` latent frames, rows and columns, and its audio of so many latent frames.

    `modalities` are those of the tokens of the text. Rows and columns are multiples of `CELLS`. Guides have the same.
    """
    frames, height, width = size
    cells = cells_of(height, width)
    ends = (float(_axis(width, height * width)[0]), float(_axis(width, height * width)[-1]))
    layout = PackedLayout()
    layout.add_text(modalities)
    first = float(len(modalities))
    starts = list(accumulate((reference.span for reference in references), initial=first))
    for guide in guides:
        start = starts[-1] + FRAME_SPAN * guide.frame
        if guide.video is not None:
            layout.add(Source.VIDEO, Time.GIVEN_VIDEO, video_positions(guide.video.shape[2], cells, start))
        if guide.audio is not None:
            layout.add(Source.AUDIO, Time.GIVEN_AUDIO, audio_positions(guide.audio.shape[-1], start, ends))
    for reference, start in zip(references, starts, strict=False):
        _add_reference(layout, reference, start, ends)
    layout.add(Source.AUDIO, Time.AUDIO, audio_positions(audio_frames, starts[-1], ends))
    layout.add(Source.VIDEO, Time.VIDEO, video_positions(frames, cells, starts[-1]))
    return layout


def _add_reference(layout: PackedLayout, reference: Reference, start: float, ends: tuple[float, float]) -> None:
    """Add a reference: its audio at both ends of its video, or of the one that is made (`ends`), then its video."""
    cells = None
    if reference.video is not None:
        height, width = reference.video.shape[-2:]
        cells = cells_of(height, width)
        ends = (float(_axis(width, height * width)[0]), float(_axis(width, height * width)[-1]))
    if reference.audio is not None and reference.audio.shape[-1]:
        layout.add(Source.AUDIO, Time.GIVEN_AUDIO, audio_positions(reference.audio.shape[-1], start, ends))
    if reference.video is not None and cells is not None:
        layout.add(Source.VIDEO, Time.GIVEN_VIDEO, video_positions(reference.video.shape[2], cells, start))


def frame_spans(num_frames: int) -> list[float]:
    """Return the length on the time line of each latent frame of a video."""
    return [FRAME_SPAN * FRAMES_PER_LATENT[i % len(FRAMES_PER_LATENT)] for i in range(num_frames)]


def cells_of(height: int, width: int) -> torch.Tensor:
    """Return the row and column [n, 2] of each token of a latent frame of so many rows and columns of cells."""
    rows, columns = torch.meshgrid(_axis(height, height * width), _axis(width, height * width), indexing="ij")
    return torch.stack([rows.reshape(-1), columns.reshape(-1)], dim=-1)


def _axis(side: int, area: int) -> torch.Tensor:
    """Return the positions [side / 2] along a side of an image of that area; its middle is that of `UNITS`."""
    ratio = side / math.sqrt(area)
    count = side // CELLS
    return (torch.arange(count, dtype=torch.float64) * (ratio / count) + (1.0 - ratio) / 2.0) * UNITS


def video_positions(num_frames: int, cells: torch.Tensor, start: float) -> torch.Tensor:
    """Return the positions [n, 3] of a video's tokens, frame by frame, from `start` of the time line."""
    spans = torch.tensor([0.0, *frame_spans(num_frames)[:-1]], dtype=torch.float64)
    positions = torch.empty(num_frames, len(cells), 3, dtype=torch.float64)
    positions[..., 0] = (start + spans.cumsum(0))[:, None]
    positions[..., 1:] = cells
    return positions.reshape(-1, 3)


def audio_positions(num_frames: int, start: float, ends: tuple[float, float]) -> torch.Tensor:
    """Return the positions [n, 3] of the tokens of audio: the left channel at the image's left end, then the right."""
    positions = torch.zeros(AUDIO_CHANNELS, num_frames, 3, dtype=torch.float64)
    positions[..., 0] = start + torch.arange(num_frames, dtype=torch.float64)
    positions[..., 2] = torch.tensor(ends, dtype=torch.float64)[:, None]
    return positions.reshape(-1, 3)
