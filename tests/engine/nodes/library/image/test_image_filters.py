"""The nodes that blend, blur, sharpen, quantize and find edges, by values known beforehand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.images.filters import BLEND_MODES
from darkroom.engine.nodes.library.image import image_filters

context: Any = None


def blended(first: float, second: float, mode: str, factor: float = 1.0) -> float:
    result: torch.Tensor = image_filters.image_blend(
        context,
        image1=torch.full((1, 2, 2, 3), first),
        image2=torch.full((1, 2, 2, 3), second),
        blend_factor=factor,
        blend_mode=mode,
    )
    return float(result[0, 0, 0, 0])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("normal", 0.6),
        ("multiply", 0.12),
        ("screen", 0.68),
        ("overlay", 0.24),
        ("soft_light", 0.2496),
        ("difference", 0),
    ],
)
def test_a_blend_mode_gives_its_formulas_value(mode: str, expected: float) -> None:
    assert blended(0.2, 0.6, mode) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("mode", BLEND_MODES)
def test_at_factor_0_the_first_image_stays(mode: str) -> None:
    assert blended(0.2, 0.6, mode, factor=0.0) == pytest.approx(0.2)


def test_a_second_image_of_another_form_takes_the_firsts() -> None:
    first, second = torch.rand(1, 6, 4, 4), torch.rand(1, 9, 9, 3)
    result = image_filters.image_blend(context, image1=first, image2=second, blend_factor=1.0, blend_mode="normal")
    assert result.shape == first.shape
    assert result[..., 3].min() == 1.0  # an image without alpha is opaque


def test_blur_and_sharpening_leave_a_plain_image_as_it_is() -> None:
    image = torch.full((1, 8, 8, 3), 0.5)
    blurred = image_filters.image_blur(context, image=image, blur_radius=2, sigma=1.0)
    sharpened = image_filters.image_sharpen(context, image=image, sharpen_radius=2, sigma=1.0, alpha=1.0)
    assert torch.allclose(blurred, image, atol=1e-6)
    assert torch.allclose(sharpened, image, atol=1e-5)


def test_the_same_seed_gives_the_same_noise_and_no_strength_none() -> None:
    image = torch.full((1, 4, 4, 3), 0.5)
    first, again = (image_filters.image_add_noise(context, image=image, seed=2**64 - 1, strength=0.1) for _ in "ab")
    assert torch.equal(first, again)
    assert not torch.equal(first, image)
    assert torch.equal(image_filters.image_add_noise(context, image=image, seed=1, strength=0.0), image)


@pytest.mark.parametrize("dither", ["none", "floyd-steinberg", "bayer-2", "bayer-16"])
def test_a_quantized_image_has_no_more_colours_than_asked_for_and_keeps_its_alpha(dither: str) -> None:
    image = torch.rand(2, 16, 16, 4, generator=torch.Generator().manual_seed(1))
    result = image_filters.image_quantize(context, image=image, colors=4, dither=dither)
    assert all(len(item[..., :3].reshape(-1, 3).unique(dim=0)) <= 4 for item in result)
    assert torch.equal(result[..., 3], image[..., 3])


def test_to_yuv_and_back_is_the_same_image() -> None:
    image = torch.rand(1, 4, 4, 3)
    luma, blue, red = image_filters.image_rgb_to_yuv(context, image=image)
    assert luma.shape == image.shape
    assert torch.allclose(image_filters.image_yuv_to_rgb(context, Y=luma, U=blue, V=red), image, atol=1e-6)


def test_edges_are_white_on_black_and_thresholds_the_wrong_way_round_are_refused() -> None:
    image = torch.zeros(1, 16, 16, 3)
    image[:, :, 8:] = 1.0
    edges = image_filters.canny(context, image=image, low_threshold=0.1, high_threshold=0.3)
    assert edges.shape == image.shape
    assert edges[0, 8].max() == 1.0
    assert edges[0, :, :4].max() == 0.0
    with pytest.raises(ValueError, match="low_threshold"):
        image_filters.canny(context, image=image, low_threshold=0.5, high_threshold=0.3)
