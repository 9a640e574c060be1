"""Normalized attention guidance against what its equations say of features."""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.normalized_attention import NormalizedAttention

POSITIVE, NEGATIVE = torch.tensor([[[1.0, 2.0], [3.0, -1.0]]]), torch.tensor([[[1.0, 0.0], [2.0, -2.0]]])
BOTH = torch.cat([NEGATIVE, POSITIVE])
SIDES = {"cond_or_uncond": [1, 0]}


def test_features_move_away_from_the_negative_ones_within_tau_of_their_norm() -> None:
    out = NormalizedAttention(scale=3.0, alpha=1.0, tau=1.5)(BOTH, SIDES)
    moved = 3 * POSITIVE - 2 * NEGATIVE  # [[1, 6], [5, 1]], of L1 norms 7 and 6; before 3 and 4
    assert torch.allclose(out[1], torch.stack([moved[0, 0] * 4.5 / 7, moved[0, 1]]))
    assert torch.equal(out[0], NEGATIVE[0])


def test_alpha_blends_with_the_features_before() -> None:
    assert torch.allclose(NormalizedAttention(3.0, 0.0, 1.5)(BOTH, SIDES), BOTH)
    half = NormalizedAttention(3.0, 0.5, 10.0)(BOTH, SIDES)
    assert torch.allclose(half[1], (4 * POSITIVE[0] - 2 * NEGATIVE[0]) / 2)


def test_joint_attention_changes_image_tokens_of_both_sides_alone() -> None:
    out = NormalizedAttention(3.0, 1.0, 10.0)(BOTH, {**SIDES, "img_slice": (1, 2)})
    assert torch.equal(out[:, 0], BOTH[:, 0])
    assert torch.allclose(out[:, 1], (3 * POSITIVE - 2 * NEGATIVE)[:, 1].expand(2, 2))


def test_a_batch_of_one_side_stays() -> None:
    assert NormalizedAttention(3.0, 1.0, 1.5)(POSITIVE, {"cond_or_uncond": [0]}) is POSITIVE
