"""The image encoder of Qwen2.5-VL: sizes, patches, windows and tokens."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.layers.qwen25_vl_vision import (
    Qwen25VlVision,
    Qwen25VlVisionConfig,
    grouped,
    patches_of_image,
    qwen25_vl_vision_config,
    seen_size,
    windows_of,
)

CONFIG = Qwen25VlVisionConfig(width=80, inner_width=32, num_blocks=8, out_width=12)


@pytest.mark.parametrize(
    ("size", "seen"),
    [((90, 130), (84, 140)), ((20, 20), (56, 56)), ((5000, 5000), (3556, 3556)), ((1024, 1024), (1036, 1036))],
)
def test_images_are_seen_at_multiples_of_28_pixels(size: tuple[int, int], seen: tuple[int, int]) -> None:
    assert seen_size(*size) == seen


def test_the_four_patches_of_a_token_follow_each_other() -> None:
    image = torch.rand(56, 84, 3)
    patches, size = patches_of_image(image)
    assert size == (4, 6) and patches.shape == (24, 3 * 2 * 14 * 14)
    mean, deviation = 0.48145466, 0.26862954
    fourth = patches[3].view(3, 2, 14, 14)  # the second row and column of the first token
    torch.testing.assert_close(fourth[0, 0], (image[14:28, 14:28, 0] - mean) / deviation)
    assert torch.equal(fourth[:, 0], fourth[:, 1])


def test_windows_cover_every_token_once_and_are_grouped_by_size() -> None:
    windows = windows_of(6, 5)
    assert [window.numel() for window in windows] == [16, 4, 8, 2]
    assert torch.cat(windows).sort().values.tolist() == list(range(30))
    assert windows[1].tolist() == [4, 9, 14, 19]
    assert [tuple(group.shape) for group in grouped(windows_of(8, 5))] == [(2, 64), (2, 16)]


def test_an_image_becomes_a_token_for_each_28_pixels() -> None:
    torch.manual_seed(0)
    tower = Qwen25VlVision(CONFIG).requires_grad_(False)
    assert qwen25_vl_vision_config({name: tuple(item.shape) for name, item in tower.state_dict().items()}) == CONFIG
    for name, weight in tower.named_parameters():
        if "norm" in name or "ln_q" in name:
            weight.fill_(1.0)
    tokens, size = tower(torch.rand(140, 168, 3), torch.float32)
    assert tokens.shape == (30, 12) and size == (5, 6)
    assert torch.isfinite(tokens).all() and tokens.std() > 0


def test_tokens_are_in_the_order_of_rows() -> None:
    torch.manual_seed(0)
    tower = Qwen25VlVision(CONFIG).requires_grad_(False)
    for name, weight in tower.named_parameters():
        if "attn.proj" in name or "down_proj" in name:
            weight.zero_()  # each token is a function of its own pixels
    image = torch.rand(140, 168, 3)  # 5 rows of 6 tokens, in windows of 4 x 4
    swapped = image.clone()
    swapped[:28, 140:] = image[28:56, :28]  # the last token of the first row and the first of the second
    swapped[28:56, :28] = image[:28, 140:]
    tokens, _ = tower(image, torch.float32)
    found, _ = tower(swapped, torch.float32)
    order = [*range(5), 6, 5, *range(7, 30)]
    torch.testing.assert_close(found, tokens[order])
    assert not torch.allclose(found, tokens)
