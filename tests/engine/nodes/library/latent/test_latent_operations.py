"""Operations on latents during or after sampling: tone mapping and sharpening."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.nodes.library.latent import latent_operations as nodes

context: Any = None


def test_tone_mapping_keeps_directions_and_shortens() -> None:
    latent = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    operation = nodes.latent_operation_tonemap_reinhard(context, multiplier=1.0)
    mapped = operation(latent=latent, sigma=None)
    ratio = mapped / latent
    assert torch.allclose(ratio, ratio[:, :1].expand_as(ratio), atol=1e-4)
    assert float(ratio.max()) < 1.0
    assert float(ratio.min()) > 0.0


def test_each_item_is_tone_mapped_by_itself() -> None:
    latent = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    both, first = (nodes.tonemap_reinhard(item, 0.5) for item in (latent, latent[:1]))
    assert torch.allclose(both[:1], first)


def test_sharpening_leaves_a_plain_latent_as_it_is() -> None:
    operation = nodes.latent_operation_sharpen(context, sharpen_radius=2, sigma=1.0, alpha=0.5)
    latent = torch.full((1, 4, 8, 8), 2.0)
    assert torch.allclose(operation(latent=latent), latent, atol=1e-4)


def test_an_operation_is_applied_to_the_samples_alone() -> None:
    given: Any = {"samples": torch.ones(1, 4, 2, 2), "batch_index": [3]}
    result = nodes.latent_apply_operation(context, samples=given, operation=lambda latent: latent * 2)
    assert result["samples"].unique().tolist() == [2.0]
    assert result["batch_index"] == [3]
