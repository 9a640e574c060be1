"""Noise levels at which MiniMax H3 sees the tokens of its sequence.

`B` batch, `M` noise levels, `K` values of a mask, `n` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from darkroom.engine.families.minimax_h3.layout import Source, Stretch, Time

VIDEO_TIME, AUDIO_TIME = 0.999, 1.0  # least times of what the network is given; 1 is without noise


class Levels(NamedTuple):
    """Noise levels of tokens of a stream: the values [B, K] of a mask, 1 for a token of the stream's own level.

    `by_token` [n] is the index of each token's value.
    """

    values: torch.Tensor
    by_token: torch.Tensor


class NoiseLevels(NamedTuple):
    """Noise levels [B] of both streams, the least times of what is given, and the masks of both streams."""

    sigma: torch.Tensor
    audio_sigma: torch.Tensor
    given: Sequence[float]
    masks: tuple[Levels | None, Levels | None]

    def all(self) -> torch.Tensor:
        """Return the times [B, M] of `Time`, then those of masked tokens; a kept one is seen nearly without noise."""
        video, audio = (1.0 - sigma[:, None] for sigma in (self.sigma, self.audio_sigma))
        times = [video, audio, video.clamp(min=self.given[0]), audio.clamp(min=self.given[1])]
        for mask, sigma, least in zip(
            self.masks, (self.sigma, self.audio_sigma), (VIDEO_TIME, AUDIO_TIME), strict=True
        ):
            if mask is not None:
                most = (1.0 - sigma[:, None]).clamp(min=least)
                times.append(torch.minimum(1.0 - mask.values * sigma[:, None], most))
        return torch.cat(times, dim=1)

    def level_of(self, stretch: Stretch) -> int | torch.Tensor:
        """Return the index of a stretch's time, or of each of its tokens."""
        video, audio = self.masks
        if stretch.time == Time.VIDEO and stretch.source == Source.VIDEO and video is not None:
            return video.by_token + len(Time)
        if stretch.time == Time.AUDIO and audio is not None:
            before = 0 if video is None else video.values.shape[1]
            return audio.by_token + len(Time) + before
        return stretch.time


def levels_of(values: torch.Tensor | None, by_token: torch.Tensor | None) -> Levels | None:
    """Return the levels of inputs of the network, None for a stream without a mask."""
    return None if values is None or by_token is None else Levels(values.float(), by_token[0])
