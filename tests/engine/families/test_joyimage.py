"""JoyAI-Image: positions of reference images, sizes of seen images, and its prompts' beginning."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.joyimage.nodes import SIZES, nearest_size
from darkroom.engine.families.joyimage.text import seen_image
from darkroom.engine.families.joyimage.transformer import JoyImageConfig, JoyImageTransformer, grid_of, positions_of

TINY = JoyImageConfig(hidden_size=128, num_layers=1, context_dim=24, intermediate_size=64, in_channels=4)


def test_images_follow_each_other_by_frames_and_begin_at_the_same_corner() -> None:
    positions = positions_of([(1, 1, 2), (2, 1, 1)], torch.device("cpu"))
    assert positions[0].tolist() == [[0, 0, 0], [0, 0, 1], [1, 0, 0], [2, 0, 0]]


def test_odd_latents_have_whole_patches() -> None:
    assert grid_of(torch.zeros(1, 4, 2, 5, 7)) == (2, 3, 4)


@torch.no_grad()
def test_a_reference_changes_the_image_whose_size_stays() -> None:
    torch.manual_seed(0)
    network = JoyImageTransformer(TINY).requires_grad_(False).eval()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, 0, 0.05)
    x, times, text = torch.randn(2, 4, 1, 5, 7), torch.tensor([400.0, 400.0]), torch.randn(2, 3, 24)
    alone = network(x, times, text)
    seen = network(x, times, text, ref_latents=[torch.randn(1, 4, 1, 4, 4)])
    assert alone.shape == seen.shape == x.shape
    assert not torch.allclose(alone, seen, atol=1e-4)


def test_sizes_are_of_about_a_megapixel() -> None:
    assert len(SIZES) == len(set(SIZES)) == 49
    assert all(0.84 < height * width / 1024**2 <= 1.04 for height, width in SIZES)


@pytest.mark.parametrize(
    ("size", "expected"), [((300, 300), (1024, 1024)), ((100, 400), (512, 2048)), ((90, 160), (768, 1344))]
)
def test_an_image_gets_the_size_of_the_nearest_ratio(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert nearest_size(*size) == expected


def test_small_images_are_enlarged_to_the_least_that_the_encoder_reads() -> None:
    assert seen_image(torch.rand(2, 50, 60, 4)).shape == (1, 256, 288, 3)
    image = torch.rand(1, 256, 320, 3)
    assert torch.equal(seen_image(image), image)
