"""The nodes that prepare a latent for inpainting: masks grown, rounded, thawed step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.model_sampling import EpsDiscrete
from darkroom.engine.nodes.library.conditioning import inpainting as nodes

CONTEXT: Any = None


class PixelVae:
    """A VAE whose latents are the red of every eighth pixel; it keeps what it was shown."""

    downscale_ratio = 8

    def __init__(self) -> None:
        self.shown: list[torch.Tensor] = []

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        self.shown.append(pixels)
        return pixels[:, ::8, ::8, :1].movedim(-1, 1).repeat(1, 4, 1, 1)


def test_a_noise_mask_gets_a_channel_and_the_latent_is_not_changed() -> None:
    latent: Any = {"samples": torch.zeros(1, 4, 2, 2)}
    masked = nodes.set_latent_noise_mask(CONTEXT, samples=latent, mask=torch.ones(2, 16, 16))
    assert masked["noise_mask"].shape == (2, 1, 16, 16)
    assert "noise_mask" not in latent


def test_the_image_is_grey_under_the_mask() -> None:
    vae: Any = PixelVae()
    mask = torch.zeros(1, 16, 16)
    mask[:, 4:8, 4:8] = 0.9
    latent = nodes.vae_encode_for_inpaint(CONTEXT, pixels=torch.ones(1, 16, 16, 3), vae=vae, mask=mask, grow_mask_by=0)
    assert bool((vae.shown[0][:, 4:8, 4:8] == 0.5).all())
    assert float(vae.shown[0].sum()) == 3 * (256 - 16 / 2)
    assert torch.equal(latent["noise_mask"], mask.round().unsqueeze(1))


@pytest.mark.parametrize(("grow", "first", "last"), [(3, 3, 8), (6, 2, 10)])
def test_a_grown_mask_reaches_so_far(grow: int, first: int, last: int) -> None:
    mask = torch.zeros(1, 16, 16)
    mask[:, 4:8, 4:8] = 1
    latent = nodes.vae_encode_for_inpaint(
        CONTEXT, pixels=torch.ones(1, 16, 16, 3), vae=PixelVae(), mask=mask, grow_mask_by=grow
    )
    rows = torch.where(latent["noise_mask"][0, 0])[0]
    assert latent["noise_mask"].shape == (1, 1, 16, 16)
    assert (int(rows.min()), int(rows.max())) == (first, last)


def test_images_of_odd_size_are_cut_in_the_middle_with_their_mask() -> None:
    vae: Any = PixelVae()
    pixels = torch.rand(1, 21, 19, 3)
    latent = nodes.vae_encode_for_inpaint(CONTEXT, pixels=pixels, vae=vae, mask=torch.zeros(1, 21, 19), grow_mask_by=6)
    assert torch.allclose(vae.shown[0], pixels[:, 2:18, 1:17])
    assert latent["noise_mask"].shape == (1, 1, 16, 16)


@pytest.mark.parametrize("has_noise_mask", [True, False])
def test_an_inpainting_network_receives_mask_and_masked_image(has_noise_mask: bool) -> None:
    given: Any = [[torch.zeros(1, 77, 8), {"pooled_output": None}]]
    positive, negative, latent = nodes.inpaint_model_conditioning(
        CONTEXT, positive=given, negative=given, vae=PixelVae(), pixels=torch.ones(1, 16, 16, 3),
        mask=torch.ones(1, 16, 16), noise_mask=has_noise_mask,
    )  # fmt: skip
    for conditioning in (positive, negative):
        options = conditioning[0][1]
        assert bool((options["concat_latent_image"] == 0.5).all()) and options["concat_mask"].shape == (1, 1, 16, 16)
    assert bool((latent["samples"] == 1.0).all())
    assert ("noise_mask" in latent) == has_noise_mask
    assert "concat_mask" not in given[0][1]


def test_an_editing_network_receives_the_image_and_starts_from_nothing() -> None:
    given: Any = [[torch.zeros(1, 77, 8), {}]]
    positive, _, latent = nodes.instruct_pix_to_pix_conditioning(
        CONTEXT, positive=given, negative=given, vae=PixelVae(), pixels=torch.ones(1, 20, 16, 3)
    )
    assert positive[0][1]["concat_latent_image"].shape == (1, 4, 2, 2)
    assert not bool(latent["samples"].any())


def test_cells_thaw_when_their_mask_value_is_reached() -> None:
    sampling = EpsDiscrete()
    model: Any = SimpleNamespace(inner_model=SimpleNamespace(model_sampling=sampling))
    patched: list[Any] = []
    given: Any = SimpleNamespace(clone=lambda: SimpleNamespace(set_model_denoise_mask_function=patched.append))
    nodes.differential_diffusion(CONTEXT, model=given, strength=1.0)
    nodes.differential_diffusion(CONTEXT, model=given, strength=0.5)
    mask = torch.tensor([0.1, 0.5, 1.0]).view(1, 1, 1, 3)
    options = {"model": model, "sigmas": torch.tensor([float(sampling.sigma_max), 1.0, 0.0])}
    at = {percent: sampling.sigmas[int(percent * 999)].view(1) for percent in (0.05, 0.4, 1.0)}
    assert patched[0](at[1.0], mask, extra_options=options).flatten().tolist() == [0, 0, 1]
    assert patched[0](at[0.4], mask, extra_options=options).flatten().tolist() == [0, 1, 1]
    assert patched[0](at[0.05], mask, extra_options=options).flatten().tolist() == [1, 1, 1]
    assert patched[1](at[0.4], mask, extra_options=options).flatten().tolist() == pytest.approx([0.05, 0.75, 1.0])
