"""Attention that an override makes sparse, and calls that stay as they are."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.sparse_schedule import SparseSchedule
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.models.patching.sparse_override import SparseOverride

ALWAYS = SparseSchedule(1.0, 0.0, 0)


def heads_of(num_tokens: int, head_dim: int = 128) -> list[torch.Tensor]:
    return [
        torch.randn(1, num_tokens, 2 * head_dim, generator=torch.Generator().manual_seed(seed)) for seed in range(3)
    ]


def attended(override: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: Any) -> torch.Tensor:
    return optimized_attention(q, k, v, 2, transformer_options={"optimized_attention_override": override}, **more)


def test_both_forms_of_inputs_are_attended_to_alike() -> None:
    q, k, v = heads_of(500)
    override = SparseOverride(ALWAYS, 0.1)
    flat = attended(override, q, k, v)
    assert not torch.allclose(flat, optimized_attention(q, k, v, 2), atol=1e-3)
    split = [item.view(1, 500, 2, 128).transpose(1, 2) for item in (q, k, v)]
    out = attended(override, *split, skip_reshape=True, skip_output_reshape=True)
    assert torch.allclose(out.transpose(1, 2).flatten(2), flat, atol=1e-5)


def test_other_attention_is_left_to_what_was_set_before() -> None:
    calls: list[int] = []

    def before(function: Any, q: torch.Tensor, *args: Any, **more: Any) -> torch.Tensor:
        calls.append(q.shape[1])
        out: torch.Tensor = function(q, *args, **more)
        return out

    override = SparseOverride(ALWAYS, 0.1, before)
    q, k, v = heads_of(500)
    mask = torch.zeros(1, 500, 500)
    assert torch.equal(attended(override, q, k, v, mask=mask), optimized_attention(q, k, v, 2, mask))
    assert torch.equal(attended(override, q[:, :90], k, v), optimized_attention(q[:, :90], k, v, 2))
    a, b, c = heads_of(500, 64)
    assert torch.equal(attended(override, a, b, c), optimized_attention(a, b, c, 2))
    assert calls == [500, 90, 500]
    attended(override, q, k, v)
    assert len(calls) == 3
