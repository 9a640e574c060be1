"""Masks of objects: how they overlap, their small holes, packed pixels, and how they are drawn."""

from __future__ import annotations

import torch

from darkroom.engine.images.object_labels import with_objects
from darkroom.engine.images.object_masks import distinct, overlaps, without_covered, without_specks
from darkroom.engine.images.packed_masks import numbers_in, packed, unpacked


def square(side: int, left: int = 0) -> torch.Tensor:
    mask = torch.full((16, 16), -1.0)
    mask[:side, left : left + side] = 1.0
    return mask


def test_a_mask_within_another_overlaps_wholly() -> None:
    shared = overlaps(torch.stack([square(8)]), torch.stack([square(4), square(8, 4), square(4, 12)]))
    assert shared.tolist() == [[1.0, 0.5, 0.0]]


def test_of_overlapping_masks_the_best_is_kept() -> None:
    masks = torch.stack([square(4), square(5), square(4, 12)])
    assert distinct(masks, torch.tensor([0.6, 0.9, 0.7]), 0.5) == [1, 2]
    assert distinct(masks[:0], torch.zeros(0), 0.5) == []


def test_small_holes_are_filled_and_small_islands_removed() -> None:
    mask = square(10)
    mask[4, 4], mask[14, 14] = -1.0, 1.0
    cleaned = without_specks(mask[None, None], 3)[0, 0] > 0
    assert cleaned.equal(square(10) > 0)


def test_an_island_that_is_half_of_a_mask_stays() -> None:
    mask = torch.full((1, 1, 8, 8), -1.0)
    mask[..., 0, 0] = mask[..., 4, 4] = mask[..., 7, 7] = 1.0
    assert without_specks(mask, 0).equal(mask)
    alone = torch.full((1, 1, 8, 8), -1.0)
    alone[..., 0, 0] = 1.0
    assert without_specks(alone, 4).equal(alone)


def test_a_mask_that_others_cover_is_hidden() -> None:
    masks = torch.stack([2 * square(4), square(5), square(8, 2)])[:, None]  # the second keeps 9 of 25 pixels
    assert without_covered(masks, 0.3, -10.0).equal(masks)
    hidden = without_covered(masks, 0.4, -10.0)
    assert hidden[::2].equal(masks[::2]) and bool((hidden[1] == -10.0)[masks[1] > 0].all())


def test_packed_pixels_come_back() -> None:
    masks = torch.randn(2, 3, 8, 24, generator=torch.Generator().manual_seed(0))
    assert packed(masks).shape == (2, 3, 8, 3) and unpacked(packed(masks)).equal(masks > 0)


def test_numbers_are_those_of_objects() -> None:
    assert numbers_in(f" 2, 0,x,²,-1,9,{'9' * 5000}", 3) == [2, 0]


def test_objects_are_drawn_in_their_colours_with_numbers() -> None:
    mask = torch.zeros(2, 64, 64, dtype=torch.bool)
    mask[0, 8:56, 8:56] = mask[1, :40, :40] = True
    drawn = with_objects(torch.zeros(64, 64, 3), mask, [1.0, 0.5], 0.5)
    assert torch.allclose(drawn[55, 55], torch.tensor([0.06, 0.235, 0.355]))  # half of the first colour
    assert torch.allclose(drawn[0, 0], torch.tensor([0.5, 0.25, 0.025]))
    assert bool((drawn == torch.tensor([0.12, 0.47, 0.71])).all(-1).any())  # the number 0
    assert not drawn[60, 60].any()
