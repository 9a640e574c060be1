"""LoRAs under every spelling that ComfyUI takes for any model: of every family the same weights are changed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.adapters.lora import lora_patches
from darkroom.engine.adapters.lora_names import DENOISER_PREFIX, encoder_set_keys
from darkroom.engine.adapters.weight_adapters import LoraAdapter
from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.models.patching.lora_keys import denoiser_lora_keys, renamed_lora
from tests.parity.layout import weightless_denoiser

FAMILIES = registry.families()
every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)

# From the name of a layer in the network to that in a file.
SPELLINGS: dict[str, Callable[[str], str]] = {
    "own": lambda name: f"diffusion_model.{name}",
    "kohya": lambda name: "lora_unet_" + name.replace(".", "_"),
    "kohya with an empty module": lambda name: "lora_unet__" + name.replace(".", "_"),
}
FACTORS = (
    ("lora_up.weight", "lora_down.weight"), ("lora_B.weight", "lora_A.weight"), ("lora.up.weight", "lora.down.weight"),
    ("lora_B", "lora_A"), ("lora_linear_layer.up.weight", "lora_linear_layer.down.weight"),
    ("lora_B.default.weight", "lora_A.default.weight"),
)  # fmt: skip


def network_of(family: ModelFamily) -> Any:
    """The family's small network without weights, with the names that a model has for them."""
    unet = weightless_denoiser(family.name, "small")
    names = {f"{DENOISER_PREFIX}{name}": weight for name, weight in unet.state_dict().items()}
    return SimpleNamespace(model_config=SimpleNamespace(family=family), diffusion_model=unet, state_dict=lambda: names)


def patches_of(network: Any, lora: dict[str, torch.Tensor]) -> dict[Any, Any]:
    return lora_patches(renamed_lora(network, lora), denoiser_lora_keys(network))


@every_family
def test_every_spelling_changes_the_same_weights(family: ModelFamily, caplog: pytest.LogCaptureFixture) -> None:
    network = network_of(family)
    layers = [name for name, weight in network.diffusion_model.state_dict().items() if weight.ndim == 2]
    layers = [name.removesuffix(".weight") for name in layers if name.endswith(".weight")]
    wanted = {f"{DENOISER_PREFIX}{name}.weight" for name in layers}
    for spelled in SPELLINGS.values():
        for up, down in FACTORS:
            lora: dict[str, torch.Tensor] = {}
            for name in layers:
                lora |= {f"{spelled(name)}.{up}": torch.zeros(4, 1), f"{spelled(name)}.{down}": torch.zeros(1, 4)}
            patches = patches_of(network, lora)
            assert set(patches) == wanted
            assert all(isinstance(item, LoraAdapter) for item in patches.values())
    assert not caplog.records  # every key is used


@every_family
def test_weights_that_are_none_of_layers_are_changed_by_their_own_names(family: ModelFamily) -> None:
    network = network_of(family)
    others = [name for name in network.state_dict() if not name.endswith(".weight")]
    patches = patches_of(network, {f"{name}.diff": torch.zeros(1) for name in others})
    assert set(patches) == set(others)


@every_family
def test_factors_of_norms_are_found_by_either_name(family: ModelFamily) -> None:
    network = network_of(family)
    layers = {
        name.removesuffix(".scale"): weight
        for name, weight in network.diffusion_model.state_dict().items()
        if name.endswith(".scale")
    }
    wanted = {f"{DENOISER_PREFIX}{layer}.scale" for layer in layers}
    for end in (".scale.diff", ".diff"):
        lora = {f"{DENOISER_PREFIX}{layer}{end}": torch.zeros(weight.shape) for layer, weight in layers.items()}
        assert set(patches_of(network, lora)) == wanted


def test_text_encoders_of_any_set_are_named_as_in_comfyui() -> None:
    names = ["qwen3_4b.transformer.model.layers.0.mlp.up_proj.weight", "qwen3_4b.logit_scale"]
    assert encoder_set_keys(names) == {
        "text_encoders.qwen3_4b.transformer.model.layers.0.mlp.up_proj": names[0],
        "text_encoders.transformer.model.layers.0.mlp.up_proj": names[0],
        "lora_te_layers_0_mlp_up_proj": names[0],
    }
    clip = "clip_l.transformer.text_model.encoder.layers.0.mlp.fc1.weight"
    assert encoder_set_keys([clip, names[0]]) == {
        f"text_encoders.{clip.removesuffix('.weight')}": clip,
        "text_encoders.qwen3_4b.transformer.model.layers.0.mlp.up_proj": names[0],
        "text_encoders.transformer.model.layers.0.mlp.up_proj": names[0],
    }


@pytest.mark.parametrize("family", [item for item in FAMILIES if item.text], ids=lambda family: family.name)
def test_names_of_a_set_lead_to_its_weights_in_every_family(family: ModelFamily) -> None:
    names = [f"{encoder.encoding.key}.transformer.a.{encoder.encoding.slot}.weight" for encoder in family.text]
    keys = family.text_lora_keys(names)
    assert {f"text_encoders.{name.removesuffix('.weight')}" for name in names} <= set(keys)
