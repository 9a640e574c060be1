"""Flux's tools: attention masks of style models, tokens of style."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from darkroom.engine.families.flux.denoiser import fitted_mask
from darkroom.engine.families.flux.uso import UsoProjector, UsoProjectorConfig
from darkroom.engine.families.flux.uso_files import StyleTokens, layer_outputs

NUM_TEXT = 3


def test_a_mask_of_the_image_s_size_is_taken_as_it_is() -> None:
    mask = torch.rand(1, NUM_TEXT + 6, NUM_TEXT + 6)
    assert fitted_mask(mask, (2, 3), 2, 3) is mask


def test_a_mask_made_for_one_patch_holds_for_all_patches() -> None:
    mask = torch.rand(1, NUM_TEXT + 1, NUM_TEXT + 1)
    fitted = fitted_mask(mask, (1, 1), 2, 3)
    assert fitted.shape == (1, NUM_TEXT + 6, NUM_TEXT + 6)
    assert torch.equal(fitted[:, :NUM_TEXT, :NUM_TEXT], mask[:, :NUM_TEXT, :NUM_TEXT])
    torch.testing.assert_close(fitted[:, :NUM_TEXT, NUM_TEXT:], mask[:, :NUM_TEXT, NUM_TEXT:].expand(-1, -1, 6))
    torch.testing.assert_close(fitted[:, NUM_TEXT:, :NUM_TEXT], mask[:, NUM_TEXT:, :NUM_TEXT].expand(-1, 6, -1))
    torch.testing.assert_close(fitted[:, NUM_TEXT:, NUM_TEXT:], mask[:, NUM_TEXT:, NUM_TEXT:].expand(-1, 6, 6))


def test_a_larger_mask_is_resized_by_rows_and_columns_of_the_image() -> None:
    row = torch.arange(4.0).reshape(1, 1, 2, 2)  # what a token of the text gives each patch of two by two
    mask = torch.zeros(5, 5)
    mask[0, 1:] = row.flatten()
    mask[1:, 0] = row.flatten()
    fitted = fitted_mask(mask, (2, 2), 4, 2)
    expected = functional.interpolate(row, size=(4, 2), mode="bilinear").flatten()
    torch.testing.assert_close(fitted[0, 0, 1:], expected)
    torch.testing.assert_close(fitted[0, 1:, 0], expected)


def test_tokens_of_style_stand_before_the_text_without_places() -> None:
    torch.manual_seed(0)
    network = UsoProjector(UsoProjectorConfig(num_tokens=5, num_styles=2, width=6, inner_width=8))
    projector: Any = SimpleNamespace(in_use=lambda: nullcontext(network.requires_grad_(False)))
    output = SimpleNamespace(all_hidden_states=torch.randn(1, 24, 5, 6), penultimate_hidden_states=torch.randn(1, 5, 6))
    patch = StyleTokens(projector, layer_outputs(output))
    inputs = {"img": torch.randn(2, 4, 8), "txt": torch.randn(2, 3, 8), "txt_ids": torch.ones(2, 3, 3)}
    changed = patch(inputs)
    assert changed["txt"].shape == (2, 9, 8) and changed["txt_ids"].shape == (2, 9, 3)
    assert torch.equal(changed["txt"][:, 6:], inputs["txt"]) and changed["img"] is inputs["img"]
    assert not changed["txt_ids"][:, :6].any()
    high = network.get_submodule("high_embedding_linear")(output.penultimate_hidden_states.transpose(1, 2))
    normed = network.get_submodule("high_layer_norm")(high.transpose(1, 2))
    expected = network.get_submodule("high_projection")(normed)
    torch.testing.assert_close(changed["txt"][0, :2], expected[0])


def test_an_encoder_of_one_layer_cannot_give_a_style() -> None:
    with pytest.raises(ValueError, match="got those of a CLIP vision model, expected those of SigLIP's"):
        layer_outputs(SimpleNamespace(penultimate_hidden_states=torch.zeros(1, 5, 6)))
