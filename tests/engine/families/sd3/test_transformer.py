"""The transformer of Stable Diffusion 3: sizes of latents, places, controls, replaced blocks, configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.families.sd3.transformer import Sd3Config, Sd3Transformer, sd3_config

CONFIG = Sd3Config(
    num_blocks=3, width=64, context_dim=24, label_dim=12, in_channels=4, out_channels=4, position_side=8,
    norms_queries=True, dual_blocks=frozenset({1}),
)  # fmt: skip


@pytest.fixture(scope="module")
def network() -> Sd3Transformer:
    torch.manual_seed(0)
    made = Sd3Transformer(CONFIG).requires_grad_(False)
    made.pos_embed.normal_()
    return made


def inputs(height: int = 6, width: int = 8) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(1, 4, height, width, generator=generator),
        "timesteps": torch.tensor([500.0]),
        "context": torch.randn(1, 5, 24, generator=generator),
        "y": torch.randn(1, 12, generator=generator),
    }


@pytest.mark.parametrize(("height", "width"), [(6, 8), (5, 8), (7, 3)])
def test_a_latent_of_any_size_keeps_its_size(network: Sd3Transformer, height: int, width: int) -> None:
    assert network(**inputs(height, width)).shape == (1, 4, height, width)


def test_a_latent_that_is_no_multiple_of_the_patch_is_wrapped_around(network: Sd3Transformer) -> None:
    odd = inputs(5, 7)
    wrapped = torch.cat([odd["x"], odd["x"][:, :, :1]], dim=2)
    wrapped = torch.cat([wrapped, wrapped[:, :, :, :1]], dim=3)
    assert torch.equal(network(**odd), network(**{**odd, "x": wrapped})[:, :, :5, :7])


def test_places_are_taken_from_the_middle_of_the_table(network: Sd3Transformer) -> None:
    before = network(**inputs(4, 4))
    table = network.pos_embed.clone()
    square = network.pos_embed.view(1, 8, 8, 64)
    square[:, :3], square[:, 5:], square[:, :, :3], square[:, :, 5:] = 0, 0, 0, 0
    assert torch.equal(network(**inputs(4, 4)), before)
    square[:, 3, 3] += 1
    assert not torch.equal(network(**inputs(4, 4)), before)
    network.pos_embed.copy_(table)


def test_a_latent_beyond_the_table_is_refused(network: Sd3Transformer) -> None:
    with pytest.raises(ValueError, match="table of places; got 18 x 4, expected"):
        network(**inputs(4, 18))


def test_a_replaced_block_sees_both_streams_and_can_call_the_original(network: Sd3Transformer) -> None:
    seen: list[Any] = []

    def replacement(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        seen.append((args["img"].shape, args["txt"].shape, args["vec"].shape))
        out: dict[str, Any] = extra["original_block"](args)
        return out

    options = {"patches_replace": {"dit": {("double_block", index): replacement for index in range(3)}}}
    assert torch.equal(network(**inputs(), transformer_options=options), network(**inputs()))
    assert seen == [((1, 12, 64), (1, 5, 64), (1, 64))] * 3
    skipped = {"patches_replace": {"dit": {("double_block", 1): lambda args, extra: args}}}
    assert not torch.equal(network(**inputs(), transformer_options=skipped), network(**inputs()))


def test_a_control_is_added_behind_its_block(network: Sd3Transformer) -> None:
    addition = torch.randn(1, 12, 64)

    def added(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        out = extra["original_block"](args)
        return {**out, "img": out["img"] + addition}

    options = {"patches_replace": {"dit": {("double_block", 1): added}}}
    controlled = network(**inputs(), control={"output": [None, addition]})
    assert torch.equal(controlled, network(**inputs(), transformer_options=options))


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, norms_queries=False, dual_blocks=frozenset())])
def test_the_configuration_is_read_from_the_shapes(config: Sd3Config) -> None:
    shapes = {name: tuple(item.shape) for name, item in Sd3Transformer(config).state_dict().items()}
    assert sd3_config(shapes) == config
