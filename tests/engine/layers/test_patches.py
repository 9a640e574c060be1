"""Patches of latents: sides of half patches."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.layers.patches import pad_to_patches


@pytest.mark.parametrize("shape", [(1, 2, 3, 5), (1, 2, 4, 3, 5)])
def test_sides_of_half_patches_are_continued_from_the_other_ends(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    whole = pad_to_patches(x, 2)
    assert whole.shape == (*shape[:-2], 4, 6)
    assert torch.equal(whole[..., :3, :5], x)
    assert torch.equal(whole[..., 3, :5], x[..., 0, :]) and torch.equal(whole[..., :3, 5], x[..., 0])
    assert pad_to_patches(whole, 2) is whole
