"""Attention in parts where a batch is too large for one kernel."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.layers import attention as module
from darkroom.engine.layers.attention import attention, optimized_attention


@pytest.mark.parametrize("mask_shape", [None, (5, 4), (7, 5, 4), (1, 2, 5, 4), (7, 2, 5, 4)])
def test_a_batch_too_large_for_a_cards_kernels_is_attended_to_in_parts(
    monkeypatch: pytest.MonkeyPatch, mask_shape: tuple[int, ...] | None
) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(7, 5, 8), torch.randn(7, 4, 8), torch.randn(7, 4, 8)
    mask = None if mask_shape is None else torch.randn(mask_shape)
    whole, in_heads = attention(q, k, v, 2, mask), optimized_attention(q, k, v, 2, mask, skip_output_reshape=True)
    monkeypatch.setattr(module, "MOST_AT_ONCE", 3)
    torch.testing.assert_close(attention(q, k, v, 2, mask), whole)
    torch.testing.assert_close(attention(q, k, v, 2, mask, slices=2), whole)
    torch.testing.assert_close(optimized_attention(q, k, v, 2, mask, skip_output_reshape=True), in_heads)
