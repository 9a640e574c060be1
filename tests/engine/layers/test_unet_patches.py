"""FreeU, HyperTile and token merging by what must stay unchanged under them."""

from __future__ import annotations

import torch

from darkroom.engine.layers.freeu import FreeU, low_frequencies_scaled
from darkroom.engine.layers.hyper_tile import HyperTile, random_divisor
from darkroom.engine.layers.token_merging import TokenMerging, match_tokens


def test_freeu_leaves_other_widths_and_factors_of_one() -> None:
    h, skip = torch.randn(2, 8, 6, 6), torch.randn(2, 4, 6, 6)
    for structured in (False, True):
        same_h, same_skip = FreeU({8: (1.0, 1.0)}, is_structured=structured)(h, skip, {})
        assert torch.allclose(same_h, h) and torch.allclose(same_skip, skip, atol=1e-6)
        assert FreeU({16: (2.0, 0.0)}, is_structured=structured)(h, skip, {}) == (h, skip)


def test_freeu_scales_half_of_the_channels_without_touching_the_input() -> None:
    h, skip = torch.ones(1, 8, 4, 4), torch.zeros(1, 4, 4, 4)
    changed, _ = FreeU({8: (1.5, 1.0)}, is_structured=False)(h, skip, {})
    assert torch.equal(changed[:, :4], torch.full((1, 4, 4, 4), 1.5)) and torch.equal(changed[:, 4:], h[:, 4:])
    assert torch.equal(h, torch.ones(1, 8, 4, 4))


def test_the_lowest_frequency_is_the_mean() -> None:
    flat = torch.full((1, 1, 8, 8), 3.0)
    assert torch.allclose(low_frequencies_scaled(flat, 0.5), flat * 0.5, atol=1e-6)


def test_tiles_join_to_what_was_cut() -> None:
    torch.manual_seed(3)
    tiles = HyperTile(256, 1, max_depth=0, scale_depth=False)
    q = torch.randn(2, 64 * 64, 5)
    cut, _, _ = tiles.cut(q, q, q, {"original_shape": [2, 4, 64, 64]})
    assert cut.shape == (2 * 4, 32 * 32, 5)
    assert torch.equal(tiles.join(cut, {}), q)
    assert tiles.join(q, {}) is q


def test_transformers_deeper_than_asked_are_left_whole() -> None:
    tiles = HyperTile(64, 1, max_depth=0, scale_depth=False)
    q = torch.randn(1, 32 * 32, 5)
    assert tiles.cut(q, q, q, {"original_shape": [1, 4, 64, 64]})[0] is q


def test_a_number_without_a_fitting_divisor_is_one_tile() -> None:
    assert random_divisor(13, 8, 4) == 1
    assert random_divisor(64, 32, 1) == 2


def test_merged_tokens_come_back_as_their_destination() -> None:
    torch.manual_seed(5)
    x = torch.randn(2, 6 * 5, 4)
    matching = match_tokens(x, 6, 5, 10)
    merged = matching.merge(x)
    assert merged.shape == (2, 20, 4)
    assert matching.unmerge(merged).shape == x.shape
    nothing_merged = match_tokens(x, 6, 5, 0)
    assert torch.equal(nothing_merged.unmerge(nothing_merged.merge(x)), x)


def test_equal_tokens_merge_without_loss() -> None:
    torch.manual_seed(5)
    x = torch.ones(1, 16, 4)
    merging = TokenMerging(0.5)
    merged, k, _ = merging.merge(x, x, x, {"original_shape": [1, 4, 4, 4]})
    assert merged.shape == (1, 8, 4) and k is x
    assert torch.allclose(merging.unmerge(merged, {}), x)


def test_tokens_of_smaller_transformers_are_not_merged() -> None:
    merging = TokenMerging(0.5)
    q = torch.randn(1, 16, 4)
    assert merging.merge(q, q, q, {"original_shape": [1, 4, 8, 8]})[0] is q
    assert merging.unmerge(q, {}) is q
