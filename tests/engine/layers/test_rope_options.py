"""Positions of rotary embeddings by the options of a MODEL."""

from __future__ import annotations

import torch

from darkroom.engine.families.flux.transformer import places_of
from darkroom.engine.families.lumina2.transformer import image_places
from darkroom.engine.families.wan.transformer import video_places
from darkroom.engine.layers.rope_options import axis_positions

CPU = torch.device("cpu")
OPTIONS = {
    "rope_options": {"scale_x": 0.5, "shift_x": 3.0, "scale_y": 2.0, "shift_y": -1.0, "scale_t": 4.0, "shift_t": 1.5}
}


def test_positions_are_scaled_from_the_first_one_and_shifted() -> None:
    assert axis_positions(3, "x", OPTIONS, CPU, first=10).tolist() == [13.0, 13.5, 14.0]
    assert axis_positions(3, "x", None, CPU, first=10).tolist() == [10.0, 11.0, 12.0]
    assert axis_positions(2, "y", {"rope_options": {"shift_y": 2.0}}, CPU).tolist() == [2.0, 3.0]


def test_families_place_their_images_by_the_options() -> None:
    latent = torch.zeros(1, 16, 4, 4)  # two rows of two patches
    assert places_of(latent, options=OPTIONS)[0].tolist() == [
        [1.5, -1.0, 3.0], [1.5, -1.0, 3.5], [1.5, 1.0, 3.0], [1.5, 1.0, 3.5],
    ]  # fmt: skip
    assert image_places(1, 2, 7, CPU, OPTIONS)[0].tolist() == [[7.0, -1.0, 3.0], [7.0, -1.0, 3.5]]
    assert video_places(2, 1, 1, device=CPU, options=OPTIONS)[0].tolist() == [[1.5, -1.0, 3.0], [5.5, -1.0, 3.0]]
