"""Nodes of MiniMax H3: what they encode and in which order, and what they refuse before anything is encoded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.nested_latent import streams_of
from darkroom.engine.families.minimax_h3.nodes.guides import minimax_h3_add_guide
from darkroom.engine.families.minimax_h3.nodes.references import minimax_h3_reference_to_video
from darkroom.engine.families.minimax_h3.nodes.videos import empty_minimax_h3_latent_av, minimax_h3_image_to_video
from darkroom.engine.families.minimax_h3.sizes import latent_frames
from darkroom.engine.models.audio_vae import AudioVae
from darkroom.engine.models.vae import Vae

CONTEXT: Any = None  # its nodes ask for none
POSITIVE: Any = [[torch.zeros(1, 4, 8), {}]]


class VideoEncoder(Vae):
    """A VAE of videos that returns zeros, and keeps the sizes of what it is given."""

    latent_channels = 24

    def __init__(self) -> None:
        self.given: list[tuple[int, ...]] = []

    def encode(self, pixel_samples: torch.Tensor) -> torch.Tensor:
        frames, height, width, _ = pixel_samples.shape
        self.given.append((frames, height, width))
        count = 1 if frames == 1 else latent_frames(frames)
        return torch.zeros(1, 24, count, height // 16, width // 16)


class AudioEncoder(AudioVae):
    """A VAE of audio with 40 latent frames a second at 32 kHz."""

    latent_channels = 32
    sample_rate_hz = 32000

    def __init__(self) -> None:
        pass

    def encode(self, pixel_samples: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1, 32, 2, pixel_samples.shape[1] // 800)


class TextEncoder:
    """A CLIP that keeps what it is asked to tokenize."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def tokenize(self, text: str, **kwargs: Any) -> str:
        self.seen = kwargs
        return text

    def encode_from_tokens_scheduled(self, tokens: str) -> Any:
        return [[torch.zeros(1, 4, 8), {"text": tokens}]]


def images(count: int, height: int = 48, width: int = 64) -> torch.Tensor:
    return torch.rand(count, height, width, 3)


def audio(seconds: float) -> Any:
    return {"waveform": torch.zeros(1, 2, int(seconds * 32000)), "sample_rate": 32000}


def empty(length: int = 22) -> Any:
    return empty_minimax_h3_latent_av.function(CONTEXT, width=64, height=96, length=length)


def test_an_empty_latent_has_the_audio_of_its_frames() -> None:
    video, sound = streams_of(empty(20)["samples"])
    assert video.shape == (1, 24, 7, 6, 4)
    assert sound.shape == (1, 32, 2, 37)


def test_a_video_begins_and_ends_with_images() -> None:
    clip, vae = TextEncoder(), VideoEncoder()
    positive, latent = minimax_h3_image_to_video.function(
        CONTEXT, clip=clip, vae=vae, prompt="dusk", width=64, height=96, length=22, first_frame=images(2),
        last_frame=images(1),
    )  # fmt: skip
    guides = positive[0][1]["minimax_keyframes"]
    assert [item["resolved_frame_index"] for item in guides] == [0, 21]
    assert vae.given == [(1, 96, 64), (1, 96, 64)]
    assert [tuple(item.shape) for item in clip.seen["images"]] == [(1, 96, 64, 3)] * 2
    assert streams_of(latent["samples"])[0].shape[2] == 7


def test_a_prompt_alone_has_no_guides() -> None:
    positive, _ = minimax_h3_image_to_video.function(
        CONTEXT, clip=TextEncoder(), vae=VideoEncoder(), prompt="dusk", width=64, height=96, length=5
    )
    assert "minimax_keyframes" not in positive[0][1]


@pytest.mark.parametrize(("count", "shown"), [(1, 1), (4, 1), (5, 5), (21, 5), (22, 22)])
def test_a_guide_shows_as_many_frames_as_a_video_may_have(count: int, shown: int) -> None:
    vae = VideoEncoder()
    minimax_h3_add_guide.function(CONTEXT, positive=POSITIVE, vae=vae, latent=empty(), image=images(count))
    assert vae.given == [(shown, 96, 64)]


def test_guides_follow_those_before_them_and_count_from_the_end() -> None:
    first = minimax_h3_add_guide.function(
        CONTEXT, positive=POSITIVE, vae=VideoEncoder(), latent=empty(), image=images(1), frame_idx=-1
    )
    second = minimax_h3_add_guide.function(
        CONTEXT, positive=first, audio_vae=AudioEncoder(), latent=empty(), audio=audio(3.0), frame_idx=6
    )
    guides = second[0][1]["minimax_keyframes"]
    assert [item["resolved_frame_index"] for item in guides] == [21, 6]
    assert guides[1]["audio_latent"].shape[-1] == 27  # 37 of the video, less the 10 of six frames
    assert len(first[0][1]["minimax_keyframes"]) == 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "image: nothing to anchor"),
        ({"image": images(1)}, "vae: an image needs a VAE"),
        ({"audio": audio(1.0)}, "audio_vae: audio needs a VAE"),
        ({"image": images(5), "vae": VideoEncoder(), "frame_idx": 18}, "got frame 18 for 5 frames, expected -22 to 17"),
        ({"image": images(1), "vae": VideoEncoder(), "frame_idx": -23}, "frame_idx"),
        ({"image": images(1), "vae": AudioEncoder()}, "vae: one of another family; got a VAE of audio"),
        ({"audio": audio(1.0), "audio_vae": VideoEncoder()}, "audio_vae: one of another family; got a VAE of images"),
    ],
)
def test_guides_that_cannot_be_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        minimax_h3_add_guide.function(CONTEXT, positive=POSITIVE, latent=empty(), **given)


def test_a_latent_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="latent: none of MiniMax H3"):
        minimax_h3_add_guide.function(
            CONTEXT, positive=POSITIVE, latent={"samples": torch.zeros(1, 24, 2, 4, 4)}, image=images(1)
        )


def reference(clip: TextEncoder, **kwargs: Any) -> Any:
    given: dict[str, Any] = {"ref_images": {}, "ref_videos": {}, "ref_video_audios": {}, "ref_audios": {}, **kwargs}
    positive, _ = minimax_h3_reference_to_video.function(
        CONTEXT, clip=clip, vae=VideoEncoder(), audio_vae=AudioEncoder(), prompt="go", width=64, height=64, length=22,
        ref_image_size="match", **given,
    )  # fmt: skip
    return positive[0][1].get("minimax_refs", [])


def test_references_are_seen_in_the_order_in_which_they_are_given_to_the_network() -> None:
    clip = TextEncoder()
    found = reference(
        clip,
        ref_images={"ref_image_0": images(1)},
        ref_videos={"ref_video_0": images(30), "ref_video_1": images(7)},
        ref_video_audios={"ref_video_audio_1": audio(0.5)},
        ref_audios={"ref_audio_2": audio(1.0)},
    )
    assert [item["kind"] for item in found] == ["image", "video", "video_audio", "audio"]
    assert [item["type"] for item in clip.seen["minimax_ref_items"]] == ["image", "video", "audio", "video", "audio"]
    assert [item["latent"].shape[2] for item in found[:3]] == [1, 7, 2]  # of one, 22 and five frames
    assert found[2]["ref_audio_t"] == 20
    video = clip.seen["minimax_ref_items"][1]
    assert video["data"].shape[0] == 2 and video["timestamps"] == [0.0, 0.5]


def test_no_references_are_a_prompt_alone() -> None:
    assert reference(TextEncoder()) == []


def test_a_reference_video_of_a_few_frames_is_refused() -> None:
    with pytest.raises(ValueError, match="got 4 frames, expected at least 5"):
        reference(TextEncoder(), ref_videos={"ref_video_0": images(4)})
