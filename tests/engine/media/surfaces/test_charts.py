"""The layout of a mesh as an image."""

from __future__ import annotations

import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.surfaces.charts import atlas_of


def test_charts_have_colors_with_black_outlines_on_gray() -> None:
    uvs = torch.tensor([[0.0, 0], [0.4, 0], [0, 0.9], [0.6, 0.0], [1.0, 0.0], [1.0, 0.9]])
    image = atlas_of(uvs, torch.tensor([[0, 1, 2], [3, 4, 5]]), 64, CancelToken())
    left, right, outside = image[8, 8], image[8, 56], image[63, 32]
    assert not torch.equal(left, right)
    assert outside.tolist() == [torch.tensor(0.13).item()] * 3
    assert image[0, 10].tolist() == [0, 0, 0]


def test_inner_edges_are_not_drawn() -> None:
    uvs = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]])
    image = atlas_of(uvs, torch.tensor([[0, 1, 2], [0, 2, 3]]), 64, CancelToken())
    assert len(torch.unique(image[1:-1, 1:-1].reshape(-1, 3), dim=0)) == 1
