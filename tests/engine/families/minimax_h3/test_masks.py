"""Masks at the size of MiniMax H3's tokens."""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.nested_latent import packed, unpacked
from darkroom.engine.families.minimax_h3.masks import pooled, token_levels, token_masks

SHAPES = ((1, 24, 1, 4, 5), (1, 32, 2, 3))


def mask(video: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
    return packed([video.expand(SHAPES[0]), audio.expand(SHAPES[1])])


def test_a_token_has_the_largest_value_of_its_cells() -> None:
    cells = torch.zeros(1, 1, 1, 4, 5)
    cells[..., 1, 3] = 0.25
    cells[..., 3, 4] = 1.0  # within the token that the last column makes alone
    assert pooled(cells)[0, 0, 0].tolist() == [[0, 0.25, 0], [0, 0, 1]]
    video, audio = token_masks(mask(cells, torch.ones(1, 1, 1, 1)), SHAPES)
    assert video.shape == SHAPES[0] and audio.shape == SHAPES[1]
    assert bool((video[0, 5, 0, :2, 2:4] == 0.25).all())


def test_values_are_rounded_up_to_what_every_type_has() -> None:
    video, _ = token_masks(mask(torch.full((1, 1, 1, 4, 5), 0.301), torch.ones(1, 1, 1, 1)), SHAPES)
    value = video.flatten()[0].item()
    assert value == 78 / 256
    assert torch.tensor(value, dtype=torch.bfloat16).item() == value


def test_a_stream_that_is_painted_as_a_whole_has_no_levels() -> None:
    video, audio = token_levels(mask(torch.ones(1, 1, 1, 1, 1), torch.zeros(1, 1, 1, 1)), SHAPES)
    assert video is None
    assert audio is not None
    assert audio.values.tolist() == [[0.0]]
    assert audio.by_token.tolist() == [[0] * 6]


def test_each_token_names_its_level() -> None:
    cells = torch.ones(1, 1, 1, 4, 5)
    cells[..., :2, :4] = 0.0
    cells[..., :2, 2:4] = 0.5
    video, _ = token_levels(mask(cells, torch.ones(1, 1, 1, 1)), SHAPES)
    assert video is not None
    assert video.values[0, video.by_token[0]].tolist() == [0, 0.5, 1, 1, 1, 1]
    assert unpacked(mask(cells, torch.ones(1, 1, 1, 1)), SHAPES)[0].shape == SHAPES[0]
