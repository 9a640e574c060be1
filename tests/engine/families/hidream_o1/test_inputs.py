"""The inputs of HiDream-O1: positions of its tokens, sizes of reference images, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.hidream_o1.denoiser import HiDreamO1Denoiser
from darkroom.engine.families.hidream_o1.positions import positions_of
from darkroom.engine.families.hidream_o1.references import prepared
from darkroom.engine.families.hidream_o1.transformer import HiDreamO1Transformer

FAMILY = registry.family_named("hidream_o1")


def test_an_image_lies_at_a_fixed_position() -> None:
    positions = positions_of(3, (2, 2))
    assert positions[:, :3].tolist() == [[0, 1, 2]] * 3
    assert (positions[:, 3:] - 4096).tolist() == [[0] * 4, [0, 0, 1, 1], [0, 1, 0, 1]]


def test_references_lie_in_the_text_and_behind_the_image() -> None:
    positions = positions_of(5, (1, 3), [(1, 2), (2, 1)], [(1, 1), (2, 2)])
    rows = positions[1].tolist()
    # Three tokens, a mark, an image of two cells and a mark, the same of an image of two rows, two tokens.
    assert rows[:13] == [0, 1, 2, 3, 4, 4, 6, 7, 8, 9, 10, 11, 12]
    assert rows[13:16] == [4096] * 3 and rows[16:] == [4099, 4100, 4100, 4101, 4101]


@pytest.mark.parametrize(
    ("count", "side", "seen"), [(1, 128, 384), (2, 96, 384), (4, 64, 384), (5, 32, 288), (9, 32, 192)]
)
def test_references_become_smaller_the_more_there_are(count: int, side: int, seen: int) -> None:
    images = prepared([torch.rand(1, 200, 200, 3)] * count, 128, 96)
    assert len(images) == count
    assert images[0].grid == (side // 32, side // 32) and images[0].patches.shape == (1, (side // 32) ** 2, 3072)
    assert images[0].seen.shape == (seen, seen, 3) and images[0].seen_grid == (seen // 32, seen // 32)


def test_references_keep_their_proportions_in_whole_patches() -> None:
    (image,) = prepared([torch.rand(1, 50, 1600, 4)], 256, 256)
    assert image.grid == (1, 45) and image.seen.shape == (32, 2560, 3)


def test_patches_are_of_the_first_image_of_a_batch() -> None:
    batch = torch.stack([torch.zeros(64, 64, 3), torch.ones(64, 64, 3)])
    (image,) = prepared([batch], 64, 64)
    assert torch.equal(image.patches, -torch.ones(1, 4, 3072))


@pytest.fixture
def denoiser() -> HiDreamO1Denoiser:
    config = FAMILY.sizes["small"]
    return HiDreamO1Denoiser(HiDreamO1Transformer(config).requires_grad_(False))


def conds(denoiser: HiDreamO1Denoiser, **given: Any) -> dict[str, Any]:
    tokens = torch.tensor([[1, 2, 3, 40, 50]])
    options = {"noise": torch.zeros(1, 3, 64, 96), "device": torch.device("cpu"), "text_input_ids": tokens}
    return denoiser.extra_conds(**{**options, **given})


def test_images_stand_behind_the_beginning_of_a_text(denoiser: HiDreamO1Denoiser) -> None:
    found = conds(denoiser, reference_latents=[torch.rand(1, 64, 64, 3)])
    ids = found["input_ids"].cond[0].tolist()
    assert ids[:4] == [1, 2, 3, 151652] and ids[4:148] == [151655] * 144 and ids[148:] == [151653, 40, 50]
    assert found["ref_spans"].cond == [(4, 144)] and found["ref_tokens"].cond.shape == (1, 144, 128)
    assert found["cosines"].cond.shape[1] == len(ids) + 6 + found["ref_patches"].cond.shape[1]


def test_references_count_in_the_memory_up_to_the_drawn_size(denoiser: HiDreamO1Denoiser) -> None:
    alone = denoiser.memory_required((1, 3, 64, 96))
    for shape, times in (
        ((1, 64, 96, 3), 2.0),
        ((2, 32, 96, 3), 2.0),
        ((1, 6400, 9600, 3), 2.0),
        ((1, 32, 48, 3), 1.25),
    ):
        assert denoiser.memory_required((1, 3, 64, 96), {"ref_latents": [shape]}) == pytest.approx(times * alone)


def test_an_area_has_positions_of_its_own_size(denoiser: HiDreamO1Denoiser) -> None:
    found = conds(denoiser, area=(32, 64, 32, 64))  # the lower right corner, of which 32 pixels are in the image
    assert found["cosines"].cond.shape == (1, 5 + 1, 64)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"noise": torch.zeros(1, 3, 64, 80)}, "multiples of 32"),
        ({"noise": torch.zeros(1, 16, 64, 64)}, "3 channels"),
        ({"reference_latents": [torch.zeros(1, 3, 64, 64)]}, "reads images, not latents"),
        ({"text_input_ids": None}, "without the numbers of its tokens"),
        ({"text_input_ids": torch.tensor([[200000]])}, "got 200000, expected 0 to 151935"),
        ({"text_input_ids": torch.tensor([[5, -1]])}, "got -1, expected 0 to 151935"),
    ],
)
def test_inputs_of_other_models_are_refused(denoiser: HiDreamO1Denoiser, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conds(denoiser, **given)
