"""Resizing, cropping and the way between tensors and Pillow's images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from darkroom.engine.images.pixels import (
    IMAGE_METHODS,
    bislerp,
    colours_of,
    crop_to_aspect,
    from_pillow,
    resize,
    resize_to_area,
    to_pillow,
    to_uint8,
)


def noise(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("method", [*IMAGE_METHODS, "bislerp"])
def test_every_method_gives_the_asked_size_and_keeps_a_flat_image_flat(method: str) -> None:
    flat = torch.full((2, 3, 12, 20), 51 / 255)
    resized = resize(flat, 33, 7, method)
    assert resized.shape == (2, 3, 7, 33) and resized.dtype == torch.float32
    torch.testing.assert_close(resized, torch.full_like(resized, 51 / 255))


def test_lanczos_of_one_channel_is_not_turned() -> None:
    image = torch.zeros(2, 1, 6, 9)
    image[:, :, :, 5:] = 1.0  # the right is white
    result = resize(image, 18, 12, "lanczos")
    assert result.shape == (2, 1, 12, 18)
    assert torch.equal(result[0, 0, :, -1], torch.ones(12)) and torch.equal(result[1, 0, :, 0], torch.zeros(12))


def test_a_side_of_no_pixels_is_refused() -> None:
    with pytest.raises(ValueError, match="got 0x8, expected at least 1x1"):
        resize(torch.zeros(1, 3, 4, 4), 0, 8, "bilinear")


def test_lanczos_is_pillows() -> None:
    image = noise(1, 3, 31, 17)
    eight_bits = (image[0].movedim(0, -1).numpy() * 255).astype(np.uint8)
    expected = np.array(Image.fromarray(eight_bits).resize((40, 9), Image.Resampling.LANCZOS)) / 255
    np.testing.assert_allclose(resize(image, 40, 9, "lanczos")[0].movedim(0, -1).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "kept"),
    [
        ((32, 32), (slice(0, 20), slice(10, 30))),
        ((40, 10), (slice(5, 15), slice(0, 40))),
        ((80, 40), (slice(0, 20),) * 2),
    ],
)
def test_the_middle_is_kept_when_sides_are_cut_off(size: tuple[int, int], kept: tuple[slice, slice]) -> None:
    image = noise(1, 3, 20, 40)
    expected = image[..., *kept] if size != (80, 40) else image
    assert torch.equal(crop_to_aspect(image, *size), expected)


def slerp_by_hand(first: torch.Tensor, second: torch.Tensor, ratio: float) -> torch.Tensor:
    """Shoemake's formula on the directions, the lengths linear."""
    a, b = first.double(), second.double()
    angle = torch.acos(torch.dot(a / a.norm(), b / b.norm()))
    direction = (torch.sin((1 - ratio) * angle) * a / a.norm() + torch.sin(ratio * angle) * b / b.norm()) / angle.sin()
    expected: torch.Tensor = direction * (a.norm() * (1 - ratio) + b.norm() * ratio)
    return expected


def test_bislerp_goes_along_the_sphere_between_neighbours() -> None:
    latent = torch.randn(1, 4, 1, 2, generator=torch.Generator().manual_seed(1))
    wide = bislerp(latent, 4, 1)
    left, right = latent[0, :, 0, 0], latent[0, :, 0, 1]
    for column, ratio in ((1, 0.25), (2, 0.75)):  # half-pixel centres: columns 0 and 3 are the originals
        torch.testing.assert_close(wide[0, :, 0, column].double(), slerp_by_hand(left, right, ratio))
    torch.testing.assert_close(wide[0, :, 0, 0], left)
    torch.testing.assert_close(wide[0, :, 0, 3], right)


def test_bislerp_survives_zero_and_opposite_vectors() -> None:
    zero = torch.zeros(1, 4, 2, 2)
    assert torch.equal(bislerp(zero, 5, 5), torch.zeros(1, 4, 5, 5))
    opposite = torch.tensor([1.0, -1.0]).reshape(1, 1, 1, 2)
    torch.testing.assert_close(bislerp(opposite, 4, 1).flatten(), torch.tensor([1.0, 0.5, -0.5, -1.0]))


def test_bislerp_keeps_the_type() -> None:
    assert bislerp(noise(1, 4, 3, 3).half(), 5, 4).dtype == torch.float16


def test_pixels_are_clamped_and_cut_to_whole_numbers() -> None:
    values = torch.tensor([[-1.0, 0.0, 0.5, 0.999, 1.0, 2.0]])
    assert to_uint8(values).tolist() == [[0, 0, 127, 254, 255, 255]]


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
def test_images_survive_the_way_to_pillow_and_back(channels: int, mode: str) -> None:
    eight_bits = (noise(5, 6, channels) * 255).floor() / 255
    image = to_pillow(eight_bits + 1e-4)
    assert image.mode == mode
    torch.testing.assert_close(from_pillow(image).reshape(5, 6, channels), eight_bits)


def test_the_colours_of_images_are_those_without_opacity_and_greys_have_none() -> None:
    image = noise(2, 5, 6, 4)
    assert torch.equal(colours_of(image, "image"), image[..., :3])
    with pytest.raises(ValueError, match=r"image: no colours; got 1 channels, expected at least 3"):
        colours_of(image[..., :1], "image")


def test_images_are_resized_to_an_area_in_units() -> None:
    assert resize_to_area(noise(1, 30, 60, 4), 5000).shape == (1, 50, 100, 3)
    assert resize_to_area(noise(1, 30, 60, 4), 5000, 16).shape == (1, 48, 96, 3)
