"""Node classes of families for conditioning by an image: cameras, orbits, videos and enlargements."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.families.sd2.nodes.lotus import empty_prompt
from darkroom.engine.families.sd2.nodes.upscaling import sd_4x_upscale_conditioning
from darkroom.engine.families.svd.nodes import sv3d_conditioning, svd_img2vid_conditioning
from darkroom.engine.families.zero123.nodes import camera, stable_zero123_conditioning_batched
from tests.engine.nodes.small_store import node_context, small_store


class Vision:
    """An image encoder of four numbers."""

    def encode_image(self, image: torch.Tensor) -> Any:
        return SimpleNamespace(image_embeds=torch.arange(4.0).expand(image.shape[0], -1))


class Encoder:
    """A VAE whose latent is the image itself, a pixel of eight a side."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.movedim(-1, 1)[:, :, ::8, ::8]


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Any]:
    return {
        "context": node_context(small_store(tmp_path), tmp_path), "clip_vision": Vision(), "vae": Encoder(),
        "init_image": torch.rand(1, 20, 40, 3), "width": 32, "height": 16,
    }  # fmt: skip


def test_a_camera_is_its_elevation_s_difference_and_the_azimuth_s_sine_and_cosine() -> None:
    assert torch.allclose(camera(0.0, 0.0), torch.tensor([[[0.0, 0.0, 1.0, math.pi / 2]]]))
    turned = camera(30.0, 90.0)
    assert turned.shape == (1, 1, 4)
    assert torch.allclose(turned[0, 0, :3], torch.tensor([-math.pi / 6, 1.0, 0.0]), atol=1e-6)


def test_a_batch_of_views_has_a_camera_each_and_the_same_noise(inputs: dict[str, Any]) -> None:
    positive, negative, latent = stable_zero123_conditioning_batched(
        **inputs, batch_size=3, elevation=10.0, azimuth=0.0, elevation_batch_increment=0.0, azimuth_batch_increment=90.0
    )
    tokens, options = positive[0]
    assert tokens.shape == (3, 1, 8) and torch.allclose(tokens[1, 0, 4:], camera(10.0, 90.0)[0, 0])
    assert negative[0][0].shape == (1, 1, 4) and not negative[0][0].any()
    assert options["concat_latent_image"].shape == (1, 3, 2, 4) and not negative[0][1]["concat_latent_image"].any()
    assert latent["samples"].shape == (3, 4, 2, 4) and latent["batch_index"] == [0, 0, 0]


def test_an_orbit_goes_once_around_in_equal_steps(inputs: dict[str, Any]) -> None:
    positive, _, latent = sv3d_conditioning(**inputs, video_frames=5, elevation=12.0)
    assert positive[0][1]["azimuth"] == [0, 90, 180, 270, 360] and positive[0][1]["elevation"] == [12.0] * 5
    assert latent["samples"].shape == (5, 4, 2, 4)


def test_a_video_s_motion_goes_into_both_conditionings(inputs: dict[str, Any]) -> None:
    both = svd_img2vid_conditioning(**inputs, video_frames=2, motion_bucket_id=30, fps=8, augmentation_level=0.0)[:2]
    for conditioning in both:
        assert conditioning[0][1]["motion_bucket_id"] == 30 and conditioning[0][1]["fps"] == 8
    noisy = svd_img2vid_conditioning(**inputs, video_frames=2, motion_bucket_id=30, fps=8, augmentation_level=1.0)[0]
    difference = noisy[0][1]["concat_latent_image"] - both[0][0][1]["concat_latent_image"]
    assert difference.std() > 0.3


def test_the_upscaler_is_shown_the_image_in_the_latents_size(inputs: dict[str, Any]) -> None:
    entry = [[torch.zeros(1, 1, 4), {}]]
    positive, negative, latent = sd_4x_upscale_conditioning(
        inputs["context"], images=torch.ones(2, 16, 24, 3), positive=entry, negative=entry, scale_ratio=3.0,
        noise_augmentation=0.2,
    )  # fmt: skip
    assert latent["samples"].shape == (2, 4, 12, 18)
    for conditioning in (positive, negative):
        options = conditioning[0][1]
        assert options["noise_augmentation"] == 0.2
        assert torch.allclose(options["concat_image"], torch.ones(2, 3, 12, 18))


def test_lotus_s_prompt_is_two_tokens_of_the_text_encoder_s_width() -> None:
    prompt = empty_prompt()
    assert prompt.shape == (1, 2, 1024) and prompt.dtype == torch.float32
    assert prompt[0, 0, 0].item() == -0.3134765625 and 0.5 < prompt.std() < 2
