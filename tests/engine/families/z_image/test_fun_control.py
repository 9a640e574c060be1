"""Controls of Z-Image: their configuration, files, the blocks that they steer, refining blocks that are not trained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import Shapes
from darkroom.engine.families.z_image.fun_control import ZImageFunControl, ZImageFunControlConfig
from darkroom.engine.families.z_image.nodes.control import z_image_fun_controlnet
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.rotary import rotations
from tests.parity.models import read_layouts

LAYOUTS = {layout.name: layout for layout in read_layouts() if layout.family == "z_image"}
AXES, THETA = (32, 48, 48), 256.0


def shapes_of(name: str) -> Shapes:
    return {key: shape for key, shape in LAYOUTS[name].tensors.items() if not isinstance(shape, str)}


def config_of(name: str) -> ZImageFunControlConfig:
    shapes = shapes_of(name)
    found = registry.recognise_model_patch(shapes)
    assert found is not None and found[0].name == "z_image"
    _, network, names = found
    config = network.configure(registry.shapes_under(names, shapes))
    assert isinstance(config, ZImageFunControlConfig)
    with unfilled():
        built = network.build(config)
    assert {name: tuple(weight.shape) for name, weight in built.state_dict().items()} == dict(
        registry.shapes_under(names, shapes)
    )
    return config


@pytest.mark.parametrize(
    ("name", "hint_channels", "step", "steers_refiners"),
    [("z_image_control", 16, 5, False), ("z_image_control_union", 33, 2, True), ("z_image_control_lite", 33, 10, True)],
)
def test_its_kind_shows_in_its_tensors(name: str, hint_channels: int, step: int, steers_refiners: bool) -> None:
    config = config_of(name)
    assert (config.hint_channels, config.step, config.steers_refiners) == (hint_channels, step, steers_refiners)


@torch.no_grad()
def test_untrained_refining_blocks_are_replaced_by_all_others() -> None:
    control = ZImageFunControl(config_of("z_image_control_union"))
    for weight in control.parameters():
        weight.normal_(0.0, 0.02)
    assert not control.has_untrained_refiners()
    control.get_parameter("control_noise_refiner.0.after_proj.weight").zero_()
    assert control.has_untrained_refiners()
    seen, image, time = torch.rand(1, 4, 256), torch.rand(1, 4, 256), torch.rand(1, 256)
    pe = rotations(torch.zeros(1, 4, 3), AXES, THETA)
    layers: Any = control.control_layers
    added, after = control.refined(0, seen, image, pe, time, is_untrained=True)
    expected, expected_after = layers[0].steer(seen, image, pe, time)
    assert added is not None and torch.equal(added, expected) and torch.equal(after, expected_after)
    second, last = control.refined(1, after, image, pe, time, is_untrained=True)
    expected, seen = layers[1].steer(after, image, pe, time)
    assert second is not None and torch.equal(second, expected)
    for layer in layers[2:]:
        _, seen = layer.steer(seen, image, pe, time)
    assert torch.equal(last, seen)


def test_a_control_without_blocks_for_refining_adds_nothing_there() -> None:
    with unfilled():
        control = ZImageFunControl(config_of("z_image_control"))
        seen = torch.empty(1, 4, 256)
    assert control.refined(0, seen, seen, seen, seen, is_untrained=False) == (None, seen)


def test_a_network_of_pixels_takes_no_control() -> None:
    config = registry.family_named("z_image_pixel").scales["small"].denoiser
    model: Any = SimpleNamespace(
        model=SimpleNamespace(diffusion_model=SimpleNamespace(config=config)), get_model_object=lambda name: None
    )
    control: Any = SimpleNamespace(model=SimpleNamespace(config=config_of("z_image_control")))
    given: dict[str, Any] = {"context": None, "vae": None, "image": torch.zeros(1, 8, 8, 3)}
    with pytest.raises(ValueError, match="got Z-Image in pixel space"):
        z_image_fun_controlnet(model=model, model_patch=control, **given)
