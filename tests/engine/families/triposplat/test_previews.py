"""Previews of TripoSplat: discs in front of each other, and runs that go on without them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from PIL import Image

from darkroom.engine.cancel import CancelToken
from darkroom.engine.diffusion.nested_latent import nested
from darkroom.engine.errors import Interrupted, OutOfMemory
from darkroom.engine.families import registry
from darkroom.engine.families.triposplat.nodes.previews import SIDE_PX, PreviewView, SplatPreviews, disc_image
from darkroom.engine.media.splats.splat import Splat, harmonics_of
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.models.splat_vae import SplatVae
from darkroom.engine.models.vae_of import vae_of
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.running_call import call_of
from darkroom.engine.settings import EngineSettings

FRONT = PreviewView(num_gaussians=1024, num_levels=2, yaw=0.0, pitch=0.0, largest_radius_px=3)
MIDDLE = SIDE_PX // 2
RED, GREEN = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]
NUM_STEPS = 3


def splat_of(
    positions: list[list[float]], colors: list[list[float]], opacity: float = 1.0, scale: float = 1.0
) -> Splat:
    count = len(positions)
    return Splat(
        torch.tensor(positions), torch.full((count, 3), scale), torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(count, 1),
        torch.full((count, 1), opacity), harmonics_of(torch.tensor(colors)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def vae() -> SplatVae:
    *_, network = random_networks("small", 1, LoadTypes(), family=registry.family_named("triposplat"))
    made = vae_of(ModelMemory(EngineSettings(cpu=True)).keep("splats", network, role="vae"))
    assert isinstance(made, SplatVae)
    return made


def sampled(vae: SplatVae, denoised: Any) -> tuple[list[Image.Image], list[int]]:
    """Sample steps that find `denoised`; return the images shown, and the steps given to the sampler's callback."""
    shown: list[Image.Image] = []
    steps: list[int] = []

    def sample(*args: Any, callback: Callable[..., None]) -> str:
        for step in range(NUM_STEPS):
            callback(step, denoised, denoised, NUM_STEPS)
        return "sampled"

    def own(step: int, *rest: Any) -> None:
        steps.append(step)

    context = NodeContext(
        "1", "p", CancelToken(), lambda value, total: None, lambda preview: shown.append(preview[1]), None, None
    )
    with call_of(context):
        assert SplatPreviews(vae, FRONT).wrap_run(sample, callback=own) == "sampled"
    return shown, steps


class FailingVae:
    """A VAE of splats that fails with an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def decode_splat(self, *args: object) -> None:
        raise self.error


# --- discs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_turned", [False, True])
def test_the_nearest_disc_is_in_front(is_turned: bool) -> None:
    positions, colors = [[0.0, 0.0, -0.2], [0.0, 0.0, 0.2]], [RED, GREEN]
    if is_turned:
        positions, colors = positions[::-1], colors[::-1]
    image = disc_image(splat_of(positions, colors), FRONT)
    assert image.shape == (SIDE_PX, SIDE_PX, 3)
    assert image[MIDDLE, MIDDLE].tolist() == RED and image[0, 0].tolist() == [0.0, 0.0, 0.0]


def test_a_camera_turned_half_around_has_the_other_one_in_front() -> None:
    splat = splat_of([[0.0, 0.0, -0.2], [0.0, 0.0, 0.2]], [RED, GREEN])
    behind = PreviewView(num_gaussians=1024, num_levels=2, yaw=180.0, pitch=0.0, largest_radius_px=3)
    assert disc_image(splat, behind)[MIDDLE, MIDDLE].tolist() == GREEN


def test_a_large_gaussian_is_a_disc_of_the_largest_radius() -> None:
    lit = (disc_image(splat_of([[0.0, 0.0, 0.0]], [RED]), FRONT)[..., 0] > 0).nonzero()
    assert lit.amax(dim=0).tolist() == [MIDDLE + 3] * 2 and lit.amin(dim=0).tolist() == [MIDDLE - 3] * 2
    assert len(lit) == sum(math.hypot(x, y) <= 3 for x in range(-3, 4) for y in range(-3, 4))


def test_what_is_nearly_clear_or_behind_the_camera_is_not_shown() -> None:
    assert not disc_image(splat_of([[0.0, 0.0, 0.0]], [RED], opacity=0.005), FRONT).any()
    assert not disc_image(splat_of([[0.0, 0.0, -3.0]], [RED]), FRONT).any()


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_packed", [False, True])
def test_every_step_shows_the_gaussians_of_its_latent(vae: SplatVae, is_packed: bool) -> None:
    draw = torch.Generator().manual_seed(1)
    latent, camera = torch.randn(1, 8192, 16, generator=draw), torch.zeros(1, 1, 5)
    packed = torch.cat([latent.flatten(1), camera.flatten(1)], dim=1)[:, None]
    shown, steps = sampled(vae, packed if is_packed else nested([latent, camera]))
    assert [image.size for image in shown] == [(SIDE_PX, SIDE_PX)] * NUM_STEPS and steps == list(range(NUM_STEPS))
    assert len(shown[0].getcolors(SIDE_PX**2) or ()) > 10


def test_a_latent_of_another_model_is_sampled_without_previews(vae: SplatVae, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert sampled(vae, torch.zeros(1, 4, 8, 8)) == ([], list(range(NUM_STEPS)))
    (record,) = caplog.records
    assert record.getMessage() == (
        "previews of splats stopped: latent: none of splats; got 256 numbers, expected 131072"
    )


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, OutOfMemory])
def test_a_preview_that_is_out_of_memory_is_the_last_one_of_its_run(
    kind: Callable[[str], Exception], caplog: pytest.LogCaptureFixture
) -> None:
    failing = cast(SplatVae, FailingVae(kind("no memory is left")))
    with caplog.at_level(logging.WARNING):
        assert sampled(failing, torch.zeros(1, 8192, 16)) == ([], list(range(NUM_STEPS)))
    (record,) = caplog.records
    assert record.getMessage() == "previews of splats stopped: no memory is left"


def test_a_cancellation_ends_the_run() -> None:
    with pytest.raises(Interrupted):
        sampled(cast(SplatVae, FailingVae(Interrupted())), torch.zeros(1, 8192, 16))
