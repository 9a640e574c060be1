"""Guides and references of CONDITIONING, as MiniMax H3's network reads them beside the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from darkroom.engine.families.minimax_h3.layout import Guide, Reference
from darkroom.engine.families.minimax_h3.tokens import audio_tokens, video_tokens

KEYFRAMES, REFERENCES, TAGS = "minimax_keyframes", "minimax_refs", "minimax_token_tags"  # ComfyUI's options
VIDEO_NOISE, AUDIO_NOISE = "minimax_visual_cond_noise_aug", "minimax_audio_cond_noise_aug"


def guides_of(condition: Mapping[str, Any], size: tuple[int, int]) -> list[Guide]:
    """Return the guides of a condition for a video of so many rows and columns of cells.

    Raises:
        ValueError: a guide was encoded for a video of another size.
    """
    guides = []
    for item in condition.get(KEYFRAMES) or ():
        video: torch.Tensor | None = item.get("latent")
        if video is not None and tuple(video.shape[-2:]) != size:
            raise ValueError(
                f"positive: a guide was made for a video of another size; got {list(video.shape[-2:])} rows and "
                f"columns of latent cells, expected {list(size)}"
            )
        guides.append(Guide(int(item["resolved_frame_index"]), video, item.get("audio_latent")))
    return guides


def references_of(condition: Mapping[str, Any]) -> list[Reference]:
    """Return the references of a condition."""
    return [
        Reference(item.get("latent"), item.get("audio_latent"), item["kind"] == "image")
        for item in condition.get(REFERENCES) or ()
    ]


def given_tokens(
    items: Sequence[Guide | Reference], times: tuple[float, float], seed: int
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the tokens of all videos [1, n, 4 C] and of all audio [1, n, C] that the network is given, float32.

    They are mixed with noise up to the `times` at which the network sees them, at most 1. Each is mixed with the first
    numbers of the seed, the audio with those of the next one, as in ComfyUI.
    """
    videos = [video_tokens(item.video.float()) for item in items if item.video is not None]
    audio = [audio_tokens(item.audio.float()) for item in items if item.audio is not None and item.audio.shape[-1]]
    return (
        _joined([_with_noise(item, times[0], seed) for item in videos]),
        _joined([_with_noise(item, times[1], seed + 1) for item in audio]),
    )


def _with_noise(tokens: torch.Tensor, time: float, seed: int) -> torch.Tensor:
    if time >= 1.0:
        return tokens
    noise = torch.randn(tokens.shape[1:], generator=torch.Generator("cpu").manual_seed(seed))
    return time * tokens + (1.0 - time) * noise.to(tokens.device)


def _joined(tokens: Sequence[torch.Tensor]) -> torch.Tensor | None:
    return torch.cat([item.cpu() for item in tokens], dim=1) if tokens else None
