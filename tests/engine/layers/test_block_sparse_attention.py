"""Sparse attention of tiles, compared with attention of all tokens under a mask made by loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.layers.block_sparse_attention import TILE, Tiles, block_sparse_attention, tiles_in_order

Range = tuple[int, int]


def drawn(num_tokens: int) -> list[torch.Tensor]:
    return [torch.randn(2, num_tokens, 2, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


def to_all(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return attention [B, T, H, W] of all tokens to all."""
    q, k, v = (item.transpose(1, 2) for item in (q, k, v))
    return scaled_dot_product_attention(q, k, v).transpose(1, 2)


def chosen(scores: torch.Tensor, sinks: Range, full: Range, share: float) -> torch.Tensor:
    """Return True for the tiles that each tile [N] attends to in full, by scores [N, N]."""
    count = len(scores)
    others = [tile for tile in range(count) if not sinks[0] <= tile < sinks[1]]
    most = max(0, min(len(others) - 1, max(1, round(share * len(others)))))
    kept = torch.zeros(count, count, dtype=torch.bool)
    for tile in range(count):
        best = sorted(others, key=lambda other: -float(scores[tile, other]))[:most]
        near = [other for other in range(count) if abs(other - tile) <= 1]
        everywhere = range(count) if full[0] <= tile < full[1] else range(*sinks)
        kept[tile, [*best, *near, *everywhere]] = True
    return kept


def expected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tile_of: torch.Tensor, kept: torch.Tensor, *, with_means: bool
) -> torch.Tensor:
    """Return attention [T, W] of one head; kept [N, N] are the tiles that count in full, of the others their means."""
    members = [tile_of == tile for tile in range(len(kept))]
    k = k - torch.stack([k[own].mean(dim=0) for own in members]).mean(dim=0)
    out = torch.empty_like(q)
    for tile, own in enumerate(members):
        for row in own.nonzero().flatten():
            seen = kept[tile][tile_of]
            weights, values = [(k[seen] @ q[row] / math.sqrt(8)).exp()], [v[seen]]
            for other in (~kept[tile]).nonzero().flatten() if with_means else ():
                keys = k[members[other]]
                score = keys.mean(dim=0) @ q[own].mean(dim=0) / math.sqrt(8)
                weights.append(len(keys) * score.exp()[None])
                values.append(v[members[other]].mean(dim=0)[None])
            joined = torch.cat(weights)
            out[row] = joined @ torch.cat(values) / joined.sum()
    return out


@pytest.mark.parametrize(("sinks", "full"), [((0, 0), (0, 0)), ((0, 2), (1, 2)), ((0, 1), (0, 1))])
@pytest.mark.parametrize("with_means", [True, False])
def test_a_tile_attends_to_the_best_the_nearest_and_those_that_always_count(
    sinks: Range, full: Range, with_means: bool
) -> None:
    num_tokens, share = 6 * TILE - 20, 0.3
    q, k, v = drawn(num_tokens)
    tiles = tiles_in_order(num_tokens, sinks=sinks, full=full, keeps_means=with_means)
    out = block_sparse_attention(q, k, v, tiles, share)
    tile_of = torch.arange(num_tokens) // TILE
    for item, head in ((0, 0), (1, 1)):
        of_head = q[item, :, head], k[item, :, head], v[item, :, head]
        means = [torch.stack([tensor[tile_of == tile].mean(dim=0) for tile in range(6)]) for tensor in of_head[:2]]
        kept = chosen(means[0] @ means[1].T, sinks, full, share)
        assert not kept.all()
        assert torch.allclose(out[item, :, head], expected(*of_head, tile_of, kept, with_means=with_means), atol=1e-5)


def test_tiles_that_are_not_whole_hold_no_other_tokens() -> None:
    numbers = torch.full((3, TILE), -1)
    numbers[0, :5], numbers[1, :TILE], numbers[2, :3] = torch.arange(67, 72), torch.arange(TILE), torch.arange(64, 67)
    tiles = Tiles.of(numbers, sinks=(0, 0), full=(0, 0))
    assert tiles.slots[[67, 71, 0, 63, 64, 66]].tolist() == [0, 4, 64, 127, 128, 130]
    q, k, v = drawn(72)
    out = block_sparse_attention(q, k, v, tiles, 0.01)  # to the tile itself, its neighbours and the best one
    whole = to_all(q, k, v)
    assert torch.allclose(out[:, :64], whole[:, :64], atol=1e-5), "a tile in the middle attends to all three"


def test_tiles_that_attend_to_all_are_attention_to_all() -> None:
    q, k, v = drawn(4 * TILE)
    out = block_sparse_attention(q, k, v, tiles_in_order(4 * TILE, full=(0, 4)), 0.1)
    whole = to_all(q, k, v)
    assert torch.allclose(out, whole, atol=1e-5)


def test_a_gate_adds_attention_among_means() -> None:
    num_tokens = 3 * TILE
    q, k, v = drawn(num_tokens)
    tiles = tiles_in_order(num_tokens, keeps_means=False)
    gate = torch.randn(q.shape, generator=torch.Generator().manual_seed(9))
    plain, gated = (
        block_sparse_attention(q, k, v, tiles, 0.1, coarse_gate=item) for item in (torch.zeros_like(gate), gate)
    )
    means = (item.view(2, 3, TILE, 2, 8).mean(dim=2) for item in (q, k, v))
    coarse = to_all(*means).repeat_interleave(TILE, dim=1)
    assert torch.allclose(gated - plain, gate * coarse, atol=1e-5)
    assert torch.equal(plain, block_sparse_attention(q, k, v, tiles, 0.1))
