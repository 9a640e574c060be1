"""The transformer of videos: places, patches, and blocks that custom nodes replace."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families.wan.config import WanConfig, wan_config
from darkroom.engine.families.wan.transformer import WanTransformer, video_places

CONFIG = WanConfig(width=128, num_blocks=2, inner_width=96, context_dim=24, in_channels=4, out_channels=4)


@pytest.fixture(scope="module")
def network() -> WanTransformer:
    torch.manual_seed(0)
    made = WanTransformer(CONFIG).requires_grad_(False)
    for name, weight in made.named_parameters():
        if ".norm_" in name:
            weight.fill_(1.0)
        elif name.endswith("modulation"):
            weight.normal_(0.0, 0.5)
    return made


def inputs(frames: int = 3, height: int = 4, width: int = 6) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(2, 4, frames, height, width, generator=generator),
        "timesteps": torch.tensor([500.0, 500.0]),
        "context": torch.randn(2, 5, 24, generator=generator),
    }


def test_configuration_is_read_from_the_shapes(network: WanTransformer) -> None:
    shapes = {name: tuple(item.shape) for name, item in network.state_dict().items()}
    assert wan_config(shapes) == CONFIG


def test_patches_lie_frame_by_frame_and_row_by_row() -> None:
    places = video_places(2, 2, 3, device=torch.device("cpu"))
    assert places.shape == (1, 12, 3)
    assert places[0, 0].tolist() == [0, 0, 0] and places[0, 4].tolist() == [0, 1, 1]
    assert places[0, -1].tolist() == [1, 1, 2]


@pytest.mark.parametrize(("frames", "height", "width"), [(1, 4, 6), (3, 5, 7)])
def test_a_video_of_any_size_keeps_its_size(network: WanTransformer, frames: int, height: int, width: int) -> None:
    assert network(**inputs(frames, height, width)).shape == (2, 4, frames, height, width)


def test_each_frame_sees_the_others(network: WanTransformer) -> None:
    given = inputs()
    plain = network(**given)
    given["x"] = given["x"].clone()
    given["x"][:, :, 2] += 1.0
    assert not torch.allclose(network(**given)[:, :, 0], plain[:, :, 0], atol=1e-5)


def test_a_replaced_block_is_called_with_its_inputs(network: WanTransformer) -> None:
    seen: list[list[str]] = []

    def unchanged(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, torch.Tensor]:
        seen.append(sorted(args))
        out: dict[str, torch.Tensor] = extra["original_block"](args)
        return out

    def skipped(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        return args

    plain = network(**inputs())
    options = {"patches_replace": {"dit": {("double_block", 1): unchanged}}}
    torch.testing.assert_close(network(**inputs(), transformer_options=options), plain)
    assert seen == [["img", "pe", "transformer_options", "txt", "vec"]]
    options = {"patches_replace": {"dit": {("double_block", 1): skipped}}}
    assert not torch.allclose(network(**inputs(), transformer_options=options), plain, atol=1e-4)
