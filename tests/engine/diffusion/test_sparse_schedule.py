"""Where attention is sparse: levels, numbers of tokens, blocks, and calls that stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.sparse_attention import SparseOverride, SparseSchedule, block_ranges
from darkroom.engine.layers.attention import optimized_attention

ALWAYS = SparseSchedule(1.0, 0.0, 0)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("", []),
        ("0, 1, 47-49", [0, 1, 47, 48, 49]),
        ("5 - 3; 9", [3, 4, 5, 9]),
        ("none", []),
    ],
)
def test_blocks_are_named_by_numbers_and_ranges(text: str, blocks: list[int]) -> None:
    assert [number for found in block_ranges(text) for number in found] == blocks


def test_a_range_of_any_size_is_read_at_once() -> None:
    (found,) = block_ranges("0-" + "9" * 10_000)
    assert 10**5 in found


@pytest.mark.parametrize(
    ("sigma", "num_tokens", "block", "is_sparse"),
    [
        (0.5, 100, 3, True),
        (0.9, 100, 3, False),
        (0.1, 100, 3, False),
        (0.5, 99, 3, False),
        (0.5, 100, 4, False),
        (0.5, 100, None, True),
    ],
)
def test_levels_tokens_and_blocks_say_where(sigma: float, num_tokens: int, block: int | None, is_sparse: bool) -> None:
    schedule = SparseSchedule(0.8, 0.2, 100, block_ranges("4-5"))
    assert schedule.is_sparse({"sigmas": torch.tensor([sigma])}, num_tokens, block) is is_sparse


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
    narrow = heads_of(500, 64)
    assert torch.equal(attended(override, *narrow), optimized_attention(*narrow, 2))
    assert calls == [500, 90, 500]
    attended(override, q, k, v)
    assert len(calls) == 3
