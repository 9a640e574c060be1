"""Stable Video Diffusion and SV3D: how their files are told apart, and what their networks are given."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.families.base import ModelFamily, NotRecognised, TensorIndex
from darkroom.engine.families.registry import family_named, recognise, recognise_vae
from darkroom.engine.families.sd15.unet_files import PREFIX
from darkroom.engine.families.sd15.vae_files import AUTOENCODER_KL
from darkroom.engine.families.svd.denoisers import OrbitDenoiser, PoseDenoiser, VideoDenoiser
from darkroom.engine.families.svd.family import unet_config
from darkroom.engine.families.svd.vae import SvdVae
from darkroom.engine.families.svd.vae_files import ORBIT_PREFIX
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.unet import UnetModel
from darkroom.engine.layers.unet_layers import timestep_embedding
from darkroom.engine.layers.vae_kl import AutoencoderKl

NUM_FRAMES = 3


@pytest.fixture(scope="module")
def family() -> ModelFamily:
    return family_named("svd")


def unet_shapes(label_dim: int) -> dict[str, tuple[int, ...]]:
    with unfilled():
        unet = UnetModel(unet_config(model_channels=320, context_dim=1024, label_dim=label_dim))
    return {PREFIX + name: tuple(weight.shape) for name, weight in unet.state_dict().items()}


@pytest.mark.parametrize(("label_dim", "variant"), [(768, ""), (256, "orbit"), (1280, "pose")])
def test_the_form_of_its_network_is_known_by_its_labels(label_dim: int, variant: str) -> None:
    found = recognise(TensorIndex(unet_shapes(label_dim)))
    assert (found.family.name, found.match.variant) == ("svd", variant)


def test_a_video_network_of_other_labels_is_refused() -> None:
    with pytest.raises(NotRecognised):
        recognise(TensorIndex(unet_shapes(512)))


@pytest.mark.parametrize("is_video", [True, False])
def test_the_decoder_is_that_of_videos_or_of_images(family: ModelFamily, is_video: bool) -> None:
    with unfilled():
        kind = family.vae if is_video else AUTOENCODER_KL
        vae: torch.nn.Module = kind.build(kind.sizes["small"])
    weights = vae.state_dict()
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    with unfilled():
        built = family.vae.build(family.vae.configure(shapes))
    assert type(built) is (SvdVae if is_video else AutoencoderKl)
    prefix = "first_stage_model." if is_video else ORBIT_PREFIX
    assert set(family.vae.saved(weights)) == {prefix + name for name in shapes}
    assert (recognise_vae(shapes)[0] is family) == is_video


# --- what the networks see -------------------------------------------------------------------------------------------


def _inputs(kind: type[Denoiser], **options: Any) -> dict[str, Any]:
    noise = torch.zeros(NUM_FRAMES, 4, 8, 6)
    model = kind(torch.nn.Module())
    return model.extra_conds(noise=noise, device=torch.device("cpu"), **options)


def test_the_image_is_shown_beside_every_frame() -> None:
    image = torch.rand(1, 4, 8, 6)
    inputs = _inputs(VideoDenoiser, concat_latent_image=image)
    assert torch.equal(inputs["c_concat"].cond, image.expand(NUM_FRAMES, -1, -1, -1))
    assert inputs["num_video_frames"].cond == NUM_FRAMES
    assert torch.equal(_inputs(VideoDenoiser)["c_concat"].cond, torch.zeros(NUM_FRAMES, 4, 8, 6))


def test_an_image_of_another_size_is_fitted() -> None:
    assert _inputs(VideoDenoiser, concat_latent_image=torch.rand(1, 4, 5, 9))["c_concat"].cond.shape == (3, 4, 8, 6)


def test_labels_are_frames_per_second_less_one_motion_and_noise() -> None:
    labels = _inputs(VideoDenoiser, fps=12, motion_bucket_id=40, augmentation_level=0.5)["y"].cond
    wanted = timestep_embedding(torch.tensor([11.0, 40.0, 0.5]), 256).flatten()[None]
    assert labels.shape == (1, 768) and torch.equal(labels, wanted)
    usual = timestep_embedding(torch.tensor([5.0, 127.0, 0.0]), 256).flatten()[None]
    assert torch.equal(_inputs(VideoDenoiser)["y"].cond, usual)


def test_an_orbit_s_label_is_the_noise_alone() -> None:
    labels = _inputs(OrbitDenoiser, augmentation_level=0.25)["y"].cond
    assert torch.equal(labels, timestep_embedding(torch.tensor([0.25]), 256))


def test_a_pose_s_labels_are_the_polar_angle_and_the_azimuth_of_each_frame() -> None:
    labels = _inputs(PoseDenoiser, elevation=[30.0] * NUM_FRAMES, azimuth=[0.0, 180.0, 360.0])["y"].cond
    assert labels.shape == (NUM_FRAMES, 1280)
    assert torch.allclose(labels[:, 256:768], timestep_embedding(torch.full((3,), math.radians(60)), 512), atol=1e-4)
    assert torch.equal(labels[0, 768:], labels[2, 768:]) and not torch.equal(labels[0, 768:], labels[1, 768:])
