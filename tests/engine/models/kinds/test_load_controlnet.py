"""ControlNets load from the original layout and from that of the diffusers library, for every family that has some."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.layers.diffusers_names import unet_names
from darkroom.engine.layers.unet import UnetConfig
from darkroom.engine.models.kinds.controlnet import ControlNetModel
from darkroom.engine.models.kinds.load_controlnet import load_controlnet
from darkroom.engine.models.kinds.union_controlnet import UnionControlNetModel
from darkroom.engine.models.load import LoadTypes

FAMILIES = [family for family in registry.families() if family.controls is not None]
NUM_TYPES = 8

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def drawn(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(weight.shape, generator=generator) * 0.05 for name, weight in network.state_dict().items()
    }


def as_diffusers(config: UnetConfig, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights under the names that the diffusers library gives them."""
    theirs = {ours: name for name, ours in unet_names(config).items()}
    last = max(int(name.split(".")[1]) for name in weights if name.startswith("input_hint_block."))
    renamed = {}
    for name, weight in weights.items():
        head, _, rest = name.partition(".")
        number, kind = rest.split(".")[0], name.split(".")[-1]
        if head == "zero_convs":
            renamed[f"controlnet_down_blocks.{number}.{kind}"] = weight
        elif head == "middle_block_out":
            renamed[f"controlnet_mid_block.{kind}"] = weight
        elif head == "input_hint_block":
            place = {0: "conv_in", last: "conv_out"}.get(int(number), f"blocks.{int(number) // 2 - 1}")
            renamed[f"controlnet_cond_embedding.{place}.{kind}"] = weight
        else:
            renamed[theirs.get(name, name.replace(".in_proj.", ".in_proj_"))] = weight
    return renamed


def assert_holds(network: object, weights: dict[str, torch.Tensor]) -> None:
    assert isinstance(network, ControlNetModel)
    found = network.state_dict()
    assert found.keys() == weights.keys()
    assert not [name for name, weight in weights.items() if not torch.equal(found[name], weight)]


@every_family
@pytest.mark.parametrize("prefix", ["", "control_model."])
def test_the_original_layout(family: ModelFamily, prefix: str, tmp_path: Path) -> None:
    weights = drawn(ControlNetModel(family.scales["small"].denoiser))
    write_safetensors(tmp_path / "c.safetensors", {prefix + name: weight for name, weight in weights.items()})
    assert_holds(load_controlnet(tmp_path / "c.safetensors", LoadTypes()), weights)


@every_family
def test_the_layout_of_diffusers(family: ModelFamily, tmp_path: Path) -> None:
    config = family.scales["small"].denoiser
    weights = drawn(ControlNetModel(config))
    write_safetensors(tmp_path / "c.safetensors", as_diffusers(config, weights))
    assert_holds(load_controlnet(tmp_path / "c.safetensors", LoadTypes()), weights)


def test_a_difference_is_completed_by_the_weights_of_its_base(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = drawn(ControlNetModel(registry.default_family().scales["small"].denoiser))
    file = {f"control_model.{name}": weight for name, weight in weights.items()}
    write_safetensors(tmp_path / "c.safetensors", {**file, "difference": torch.zeros(())})
    base = {name: torch.ones_like(weight) for name, weight in weights.items() if name.startswith("input_blocks.")}
    completed = load_controlnet(tmp_path / "c.safetensors", LoadTypes(), base.get)
    assert_holds(completed, {name: weight + 1 if name in base else weight for name, weight in weights.items()})
    assert not caplog.messages
    assert_holds(load_controlnet(tmp_path / "c.safetensors", LoadTypes()), weights)
    assert caplog.messages == ["c.safetensors: the difference to a UNet, loaded without one: use DiffControlNetLoader"]


@every_family
def test_a_union_controlnet_shows_how_many_types_it_has(family: ModelFamily, tmp_path: Path) -> None:
    config = family.scales["small"].denoiser
    weights = drawn(UnionControlNetModel(config, num_types=NUM_TYPES))
    write_safetensors(tmp_path / "c.safetensors", as_diffusers(config, weights))
    network = load_controlnet(tmp_path / "c.safetensors", LoadTypes())
    assert isinstance(network, UnionControlNetModel) and network.num_control_type == NUM_TYPES
    assert_holds(network, weights)


def test_a_small_controlnet_without_transformers_is_known_by_its_labels(tmp_path: Path) -> None:
    family = registry.family_named("sdxl")
    config = family.scales["small"].denoiser
    plain = tuple(block[:1] for block in config.input_blocks)
    small = UnetConfig(
        4, 4, config.model_channels, plain, (config.middle_block[0], config.middle_block[2]), (), label_dim=2816
    )
    weights = drawn(ControlNetModel(small))
    write_safetensors(tmp_path / "c.safetensors", as_diffusers(small, weights))
    assert_holds(load_controlnet(tmp_path / "c.safetensors", LoadTypes()), weights)
