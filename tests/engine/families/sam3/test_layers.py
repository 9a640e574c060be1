"""Layers that the parts of SAM 3 share."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.sam3.layers import smoothed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_masks_of_every_type_are_made_smaller_without_jagged_edges(dtype: torch.dtype) -> None:
    stripes = torch.arange(16).remainder(2).to(dtype).expand(1, 1, 16, 16)
    small = smoothed(stripes, (4, 4))
    assert small.dtype == dtype and small.shape == (1, 1, 4, 4)
    assert torch.allclose(small[..., 1:3].float(), torch.tensor(0.5), atol=0.05)
