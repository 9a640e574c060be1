"""Images, videos and audio that a prompt refers to as `<Picture 1>`, `<Video 1>` and `<Audio 1>`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch

from darkroom.engine.families.minimax_h3.conditions import REFERENCES
from darkroom.engine.families.minimax_h3.nodes.inputs import (
    CATEGORY,
    MODULE,
    Length,
    Positive,
    Prompt,
    Side,
    empty_latent,
    encoded,
    encoded_audio,
    resized,
)
from darkroom.engine.families.minimax_h3.sizes import (
    CELL_PX,
    FPS,
    LEAST_FRAMES,
    canvas_size,
    frames_above,
    frames_below,
    reference_size,
)
from darkroom.engine.families.minimax_h3.text import SEEN_PER_SECOND
from darkroom.engine.media.video import Audio
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_options
from darkroom.engine.nodes.markers import Optional, Socket
from darkroom.engine.nodes.parameters import Field, Growing
from darkroom.engine.nodes.sockets import CLIP, LATENT, VAE
from darkroom.engine.nodes.widgets import Combo


def _grown(name: str, socket: str, most: int) -> Growing:
    return Growing(item=Field(name, Socket(socket)), prefix=f"{name}_", min=0, max=most)


Images = Annotated[Mapping[str, torch.Tensor], _grown("ref_image", "IMAGE", 9), Optional()]
Videos = Annotated[Mapping[str, torch.Tensor], _grown("ref_video", "IMAGE", 3), Optional()]
VideoAudios = Annotated[Mapping[str, Audio], _grown("ref_video_audio", "AUDIO", 3), Optional()]
Audios = Annotated[Mapping[str, Audio], _grown("ref_audio", "AUDIO", 3), Optional()]

Seen = list[dict[str, Any]]  # for the text encoder, in the order of the references
Given = list[dict[str, Any]]  # for the network


@node("MiniMaxH3ReferenceToVideo", display_name="MiniMax H3 Reference to Video", category=CATEGORY,
      python_module=MODULE)  # fmt: skip
def minimax_h3_reference_to_video(
    context: NodeContext,
    *,
    clip: CLIP,
    vae: VAE,
    audio_vae: VAE,
    prompt: Prompt,
    width: Side = 1344,
    height: Side = 768,
    length: Length = 124,
    ref_image_size: Annotated[str, Combo(("match", "max"))] = "match",
    ref_images: Images,
    ref_videos: Videos,
    ref_video_audios: VideoAudios,
    ref_audios: Audios,
) -> tuple[Positive, LATENT]:
    """Encode a prompt with its references, and return the empty latent of the video.

    Images are made at most as large as the video with `match`, with a short side of at most 2048 pixels with `max`.
    The audio of the same number belongs to a video. Reference videos are cut to the length of the generated one.
    """
    frames = frames_above(length)
    seen: Seen = []
    given: Given = []
    for image in _present(ref_images).values():
        _add_image(vae, image, width * height if ref_image_size == "match" else None, seen, given)
    video_audios = _present(ref_video_audios)
    for name, video in _present(ref_videos).items():
        audio = video_audios.get(f"ref_video_audio_{name.rpartition('_')[2]}")
        _add_video(vae, video[:frames], seen, given, None if audio is None else encoded_audio(audio_vae, audio))
    for audio in _present(ref_audios).values():
        seen.append({"type": "audio"})
        given.append(_audio(encoded_audio(audio_vae, audio)))
    positive = clip.encode_from_tokens_scheduled(clip.tokenize(prompt, minimax_ref_items=seen))
    positive = with_options(positive, **{REFERENCES: given}) if given else positive
    return positive, empty_latent(width, height, frames)


def _present(items: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: item for name, item in (items or {}).items() if item is not None}


def _add_image(vae: VAE, image: torch.Tensor, area: int | None, seen: Seen, given: Given) -> None:
    """Add an image [B, H, W, C], of which the first item counts."""
    width, height = reference_size(image.shape[2], image.shape[1], area)
    pixels = resized(image[:1], width, height, crops=False)
    seen.append({"type": "image", "data": pixels})
    given.append(
        {
            "kind": "image", "latent_h": height // CELL_PX, "latent_w": width // CELL_PX,
            "latent": encoded(vae, pixels),
        }
    )  # fmt: skip


def _add_video(vae: VAE, video: torch.Tensor, seen: Seen, given: Given, audio: torch.Tensor | None) -> None:
    """Add the frames of a video [F, H, W, C] and the latent of its audio.

    Raises:
        ValueError: the video has fewer than five frames.
    """
    if video.shape[0] < LEAST_FRAMES:
        raise ValueError(
            f"ref_videos: a video is too short; got {video.shape[0]} frames, expected at least {LEAST_FRAMES}"
        )
    width, height = canvas_size(video.shape[2], video.shape[1])
    frames = resized(video[: frames_below(video.shape[0])], width, height, crops=False)
    if audio is not None:
        seen.append({"type": "audio"})
    sampled = frames[:: FPS // SEEN_PER_SECOND]
    seen.append(
        {"type": "video", "data": sampled, "timestamps": [index / SEEN_PER_SECOND for index in range(len(sampled))]}
    )
    latent = encoded(vae, frames)
    has_audio = audio is not None and bool(audio.shape[-1])
    given.append(
        {
            "kind": "video_audio" if has_audio else "video", "latent_t": latent.shape[2],
            "latent_h": height // CELL_PX, "latent_w": width // CELL_PX, "latent": latent,
            "ref_audio_t": audio.shape[-1] if audio is not None else 0, "audio_latent": audio,
        }
    )  # fmt: skip


def _audio(latent: torch.Tensor) -> dict[str, object]:
    return {"kind": "audio", "ref_audio_t": latent.shape[-1], "audio_latent": latent}


NODES = (minimax_h3_reference_to_video,)
