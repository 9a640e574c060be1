"""The transformer of Flux: patches and places, reference images, guidance, controls, replaced blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.families.flux.transformer import (
    FluxConfig,
    FluxTransformer,
    flux_config,
    places_of,
    reference_corners,
)
from darkroom.engine.layers.patches import patches_of
from darkroom.engine.layers.rotary import rotated, rotations

CONFIG = FluxConfig(width=128, num_double=2, num_single=2, context_dim=24, label_dim=12, in_channels=4, out_channels=4)


@pytest.fixture(scope="module")
def network() -> FluxTransformer:
    torch.manual_seed(0)
    made = FluxTransformer(CONFIG).requires_grad_(False)
    for name, weight in made.named_parameters():
        if name.endswith(".scale"):
            weight.fill_(1.0)
    return made


def inputs(height: int = 6, width: int = 8) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(1, 4, height, width, generator=generator),
        "timesteps": torch.tensor([0.5]),
        "context": torch.randn(1, 5, 24, generator=generator),
        "y": torch.randn(1, 12, generator=generator),
        "guidance": torch.tensor([3.5]),
    }


def test_patches_have_channels_outermost_and_lie_row_by_row() -> None:
    latent = torch.arange(2 * 4 * 6.0).view(1, 2, 4, 6)
    tokens = patches_of(latent)
    assert tokens.shape == (1, 6, 8)
    assert torch.equal(tokens[0, 4], latent[0, :, 2:4, 2:4].flatten())


def test_scores_depend_on_the_difference_of_places_alone() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 128, dtype=torch.float64)

    def score(first: tuple[int, int, int], second: tuple[int, int, int]) -> torch.Tensor:
        turned = [
            rotated(item, rotations(torch.tensor([[place]]).float()).double())
            for item, place in ((q, first), (k, second))
        ]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score((1, 4, 9), (0, 2, 3)), score((1, 12, 6), (0, 10, 0)), atol=1e-5, rtol=1e-5)
    assert (score((1, 4, 9), (0, 2, 3)) - score((1, 4, 9), (0, 2, 4))).abs() > 1e-3
    torch.testing.assert_close(score((0, 0, 0), (0, 0, 0)), (q * k).sum())


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("offset", [(1, 0, 0), (1, 10, 0), (1, 0, 12)]),
        ("index", [(1, 0, 0), (2, 0, 0), (3, 0, 0)]),
        ("uxo", [(0, 16, 12), (0, 26, 20), (0, 30, 32)]),
    ],
)
def test_reference_images_are_placed_by_the_method(method: str, expected: list[tuple[int, int, int]]) -> None:
    assert reference_corners([(10, 8), (4, 12), (6, 6)], (16, 12), method) == expected


def test_places_count_rows_and_columns_from_the_corner() -> None:
    places = places_of(torch.zeros(1, 4, 4, 6), index=2, row=3, column=5)
    assert places[0].tolist() == [[2, row, column] for row in (3, 4) for column in (5, 6, 7)]


@pytest.mark.parametrize(("height", "width"), [(6, 8), (5, 8), (7, 3)])
def test_a_latent_of_any_size_keeps_its_size(network: FluxTransformer, height: int, width: int) -> None:
    assert network(**inputs(height, width)).shape == (1, 4, height, width)


def test_a_reference_image_is_seen_but_not_drawn(network: FluxTransformer) -> None:
    reference = torch.randn(1, 4, 5, 4)
    plain, seen = network(**inputs()), network(**inputs(), ref_latents=[reference])
    assert seen.shape == plain.shape and not torch.allclose(seen, plain, atol=1e-4)
    by_index = network(**inputs(), ref_latents=[reference, reference], ref_latents_method="index")
    assert not torch.allclose(by_index, network(**inputs(), ref_latents=[reference, reference]), atol=1e-5)


def test_guidance_may_be_left_out(network: FluxTransformer) -> None:
    without = {**inputs(), "guidance": None}
    assert not torch.allclose(network(**without), network(**inputs()), atol=1e-4)
    distilled = FluxTransformer(replace(CONFIG, has_guidance=False)).requires_grad_(False)
    distilled.load_state_dict({name: network.state_dict()[name] for name in distilled.state_dict()})
    assert torch.equal(distilled(**inputs()), network(**without))


def test_replaced_blocks_can_call_the_original_and_be_skipped(network: FluxTransformer) -> None:
    blocks = [(kind, index) for kind in ("double_block", "single_block") for index in range(2)]
    seen: list[Any] = []

    def original(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        seen.append(tuple(args["img"].shape))
        out: dict[str, Any] = extra["original_block"](args)
        return out

    plain = network(**inputs())
    options = {"patches_replace": {"dit": dict.fromkeys(blocks, original)}}
    assert torch.equal(network(**inputs(), transformer_options=options), plain)
    assert seen == [(1, 12, 128)] * 2 + [(1, 17, 128)] * 2
    for block in blocks:
        skipped = {"patches_replace": {"dit": {block: lambda args, extra: args}}}
        assert not torch.equal(network(**inputs(), transformer_options=skipped), plain)


def test_controls_are_added_to_the_image_alone(network: FluxTransformer) -> None:
    addition = torch.randn(1, 12, 128)
    out = network(**inputs(), control={"input": [addition], "output": [None, addition]})

    def double(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        found = extra["original_block"](args)
        return {**found, "img": found["img"] + addition}

    def single(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        x = extra["original_block"](args)["img"]
        return {"img": torch.cat([x[:, :5], x[:, 5:] + addition], dim=1)}

    options = {"patches_replace": {"dit": {("double_block", 0): double, ("single_block", 1): single}}}
    torch.testing.assert_close(out, network(**inputs(), transformer_options=options))


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, has_guidance=False, in_channels=12)])
def test_the_configuration_is_read_from_the_shapes(config: FluxConfig) -> None:
    shapes = {name: tuple(item.shape) for name, item in FluxTransformer(config).state_dict().items()}
    assert flux_config(shapes) == config
