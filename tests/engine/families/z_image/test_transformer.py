"""Z-Image with reference images: batches, sizes, inputs that are left out, and what patches of blocks are given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.families.lumina2.layers import FLOAT32_EPS
from darkroom.engine.families.lumina2.transformer import Lumina2Transformer
from darkroom.engine.families.z_image.transformer import ZImageConfig, ZImageTransformer

CONFIG = ZImageConfig(
    width=256, heads=2, key_heads=2, inner_width=64, num_layers=1, context_dim=24, time_width=40, time_inner=48,
    num_refiners=1, in_channels=4, axes=(32, 48, 48), theta=256.0, time_factor=1000.0, activates_time=False,
    pads_tokens=True, query_eps=FLOAT32_EPS, vision_dim=8,
)  # fmt: skip
PLAIN = replace(CONFIG, vision_dim=0)


def network(config: ZImageConfig, kind: type[Lumina2Transformer] = ZImageTransformer) -> Lumina2Transformer:
    torch.manual_seed(0)
    made = kind(config).requires_grad_(False)
    for name, weight in sorted(made.named_parameters()):
        weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(sum(name.encode()))) * 0.1)
        if "norm" in name:
            weight.add_(1.0)
    return made


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def given(batch: int = 2) -> dict[str, Any]:
    return {
        "x": noise(batch, 4, 6, 8), "timesteps": torch.full((batch,), 0.6), "context": noise(batch, 5, 24, seed=2),
        "ref_latents": [noise(batch, 4, 4, 6, seed=3), noise(batch, 4, 2, 4, seed=4)],
        "ref_contexts": [noise(batch, 3, 24, seed=5), noise(batch, 2, 24, seed=6), noise(batch, 1, 24, seed=7)],
        "siglip_feats": [noise(batch, 2, 3, 8, seed=8)],
    }  # fmt: skip


def item(inputs: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the inputs of one item of a batch."""
    return {
        name: [tensor[index : index + 1] for tensor in value] if isinstance(value, list) else value[index : index + 1]
        for name, value in inputs.items()
    }


@pytest.mark.parametrize("config", [CONFIG, PLAIN], ids=["omni", "plain"])
def test_items_of_a_batch_do_not_depend_on_each_other(config: ZImageConfig) -> None:
    made, inputs = network(config), given()
    out = made(**inputs)
    assert out.shape == (2, 4, 6, 8)
    alone = torch.cat([made(**item(inputs, index)) for index in range(2)])
    torch.testing.assert_close(out, alone, atol=1e-5, rtol=1e-5)


def test_without_references_it_is_the_network_of_a_prompt() -> None:
    inputs = {name: value for name, value in given().items() if name in ("x", "timesteps", "context")}
    out = network(PLAIN)(**inputs)
    assert torch.equal(out, network(PLAIN, Lumina2Transformer)(**inputs))
    assert torch.equal(out, network(PLAIN)(**{**given(), "ref_latents": []}))


@pytest.mark.parametrize("name", ["ref_latents", "ref_contexts", "siglip_feats"])
def test_every_input_of_references_counts(name: str) -> None:
    made, inputs = network(CONFIG), given()
    out = made(**inputs)
    for index in range(len(inputs[name])):
        changed = [tensor + (place == index) for place, tensor in enumerate(inputs[name])]
        assert not torch.allclose(made(**{**inputs, name: changed}), out, atol=1e-6)


def test_texts_and_image_tokens_may_be_fewer_than_the_references() -> None:
    inputs = {**given(), "ref_contexts": [], "siglip_feats": []}
    assert network(CONFIG)(**inputs).isfinite().all()


def test_references_of_odd_sizes_are_padded() -> None:
    inputs = given()
    odd = [torch.cat([inputs["ref_latents"][0], noise(2, 4, 1, 6)], dim=2)[..., :5]]
    padded = torch.nn.functional.pad(odd[0], (0, 1, 0, 1), mode="circular")
    made = network(CONFIG)
    assert torch.equal(made(**{**inputs, "ref_latents": odd}), made(**{**inputs, "ref_latents": [padded]}))


def test_patches_of_blocks_are_given_the_generated_image_alone() -> None:
    seen: list[tuple[str, int, tuple[int, ...]]] = []

    def patch(inputs: dict[str, Any]) -> dict[str, Any]:
        kind = inputs.get("block_type", "double_block")
        seen.append((kind, inputs["img"].shape[1], tuple(inputs["pe"].shape[1:3])))
        assert torch.equal(inputs["x"], given()["x"])
        return {"img": inputs["img"] * 0.0} if kind == "double_block" else {}

    options = {"patches": {"noise_refiner": [patch], "double_block": [patch]}}
    made = network(CONFIG)
    out = made(**given(), transformer_options=options)
    assert seen == [("noise_refiner", 32, (1, 32)), ("double_block", 32, (1, 32))]
    assert torch.allclose(out, out[:, :, :2, :2].repeat(1, 1, 3, 4))  # what the patch returned is read on
