"""Layers that are computed by kernels, and those that are not. No kernel runs here."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="triton is not installed")

from darkroom.engine.layers.norms import CentredRmsNorm, OnePlusRmsNorm, RmsNorm, ScaleRmsNorm
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    ResidualNorm,
    RotaryHeads,
)
from darkroom.engine.tuning.fused_forwards import FUSED, norm_form
from darkroom.engine.tuning.kernels.rows import modulator_rows, rows_of


@pytest.mark.parametrize("norm", [RmsNorm(8), ScaleRmsNorm(8), CentredRmsNorm(8), nn.LayerNorm(8)])
def test_weights_of_known_norms_are_read(norm: nn.Module) -> None:
    form = norm_form(norm)
    assert form is not None and form.weight is next(norm.parameters())


def test_norms_that_must_be_called_are() -> None:
    brought, replaced = RmsNorm(8), RmsNorm(8)
    brought.register_forward_pre_hook(lambda norm, given: None)
    replaced.__dict__["forward"] = torch.sin
    assert [norm_form(norm) for norm in (brought, replaced, OnePlusRmsNorm(8), RmsNorm(8, None))] == [None] * 4


def test_what_no_kernel_takes_is_computed_plainly() -> None:
    """Such are modulators of another type than the tokens, and tables of float64."""
    x, scale = torch.randn(2, 3, 8, dtype=torch.bfloat16), torch.randn(2, 1, 8)
    cases = [
        (AdaptiveNorm(), (x, scale)),
        (GatedResidual(), (x, x, scale)),
        (GatedActivation(), (x, scale.expand(x.shape))),
        (ResidualNorm(GatedResidual(), AdaptiveNorm()), (x, x, scale, scale)),
        (
            RotaryHeads(),
            ([(x.view(2, 1, 3, 8), None)], [(x.view(2, 1, 3, 8), None)], torch.randn(1, 1, 3, 4, 2, 2).double()),
        ),
    ]
    for layer, given in cases:
        found, plain = FUSED[type(layer)](layer)(*given), layer(*given)
        assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True)), layer


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((2, 1, 4), (0, 4, 6)), ((1, 6, 4), (4, 0, 1)), ((2, 6, 4), (4, 24, 1)), ((6, 4), (4, 0, 1)), ((4,), (0, 0, 6))],
)
def test_rows_of_modulators(shape: tuple[int, ...], expected: tuple[int, int, int]) -> None:
    rows = modulator_rows(torch.zeros(shape), torch.zeros(2, 6, 4))
    assert rows is not None and (rows.token_stride, rows.batch_stride, rows.group) == expected


def test_a_modulation_of_frames_is_shared_by_their_tokens() -> None:
    x = torch.zeros(2, 3, 5, 7, 4)
    rows = modulator_rows(torch.zeros(2, 3, 1, 1, 4), x)
    assert rows is not None and (rows.num_tokens, rows.group, rows.token_stride) == (105, 35, 4)
    assert modulator_rows(torch.zeros(2, 1, 5, 7, 4), x) is None
    assert modulator_rows(torch.zeros(2, 3, 5, 7, 1), x) is None


def test_tokens_are_copied_only_where_their_channels_are_scattered() -> None:
    joined = torch.zeros(2, 5, 24)
    assert rows_of(joined[:, 1:4, 8:16]).tensor.data_ptr() == joined[:, 1:4, 8:16].data_ptr()
    scattered = joined.transpose(1, 2)
    assert rows_of(scattered).tensor.is_contiguous()
