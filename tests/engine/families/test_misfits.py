"""Parts of another model, refused before a step is sampled, by name and with what would fit; of every family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from darkroom.engine.adapters.lora import lora_patches
from darkroom.engine.adapters.lora_names import target_name
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.diffusion.ksampler import fix_empty_latent_channels
from darkroom.engine.diffusion.nested_latent import NestedLatent
from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily, NotRecognised
from darkroom.engine.families.unsupported import describe
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.log_context import NodeWarning, logged_as
from darkroom.engine.models.load import LoadedDenoiser, LoadTypes, load_text_encoders
from darkroom.engine.models.patching.hooks import EnumWeightTarget, WeightHook
from darkroom.engine.models.patching.lora_keys import denoiser_lora_keys, lora_misfit
from darkroom.engine.models.store import denoiser
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.library.model.lora import with_lora

FAMILIES = registry.families()

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
every_prompted_family = pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family.text], ids=lambda family: family.name
)


def network_of(family: ModelFamily) -> Denoiser:
    """The family's small network without weights."""
    with unfilled():
        unet = family.denoiser.build(family.scales["small"].denoiser)
    return denoiser(LoadedDenoiser(family, "", family.parameterisation, unet))


def text_width(network: Any) -> int:
    config = network.diffusion_model.config
    return int(getattr(config, "context_dim", 0) or config.text_dim)


class Sampled:
    """A MODEL of which only the network is asked."""

    def __init__(self, network: Denoiser) -> None:
        self.model: Any = network

    def get_model_object(self, name: str) -> Any:
        return getattr(self.model, name)

    def clone(self) -> Sampled:
        return self

    def add_patches(self, patches: Any, strength: float, source: object = None) -> set[Any]:
        return set(patches)


@every_prompted_family
def test_text_of_another_encoder_is_refused(family: ModelFamily) -> None:
    network = network_of(family)
    width = text_width(network) + 8
    noise = torch.zeros(1, network.latent_format.latent_channels, 8, 8)
    given = {
        "cross_attn": torch.zeros(1, 4, width),
        "pooled_output": torch.zeros(1, 16),
        "conditioning_llama3": torch.zeros(1, 2, 4, 16),
    }
    with pytest.raises(ValueError, match="conditioning: its text encoder does not fit the model") as refused:
        network.extra_conds(noise=noise, device=torch.device("cpu"), latent_image=noise, **given)
    assert f"got text of width {width}, expected {width - 8}" in str(refused.value)
    assert family.label in str(refused.value)


@every_prompted_family
def test_each_part_of_a_text_is_refused_if_another_encoder_made_it(family: ModelFamily) -> None:
    """Pooled output, a second language model's states, words to draw: named by their key in the conditioning."""
    network = network_of(family)
    noise = torch.zeros(1, network.latent_format.latent_channels, 8, 8)
    widths = {key: width for key, width in network.text_widths().items() if width}
    fitting = {key: torch.zeros(1, 4, width) for key, width in widths.items()}
    network.check_text(fitting)
    for key in set(widths) - {"cross_attn"}:
        given = {**fitting, key: torch.zeros(1, 4, widths[key] + 8)}
        with pytest.raises(ValueError, match=f"got {key} of width {widths[key] + 8}, expected {widths[key]}, as"):
            network.extra_conds(noise=noise, device=torch.device("cpu"), latent_image=noise, **given)


def test_the_parts_of_a_text_that_networks_read_beside_its_tokens() -> None:
    read = {family.name: set(network_of(family).text_widths()) - {"cross_attn"} for family in FAMILIES}
    assert {name: keys for name, keys in read.items() if keys} == {
        "cascade": {"pooled_output"},
        "flux": {"pooled_output"},
        "hidream": {"pooled_output", "conditioning_llama3"},
        "hunyuan_dit": {"conditioning_mt5xl"},
        "hunyuan_image": {"conditioning_byt5small"},
        "hunyuan_image_refiner": {"conditioning_byt5small"},
        "hunyuan_video": {"pooled_output"},
        "kandinsky5": {"pooled_output"},
        "kandinsky5_image": {"pooled_output"},
        "hunyuan_video15": {"conditioning_byt5small"},
        "sd3": {"pooled_output"},
    }


def test_an_image_of_another_encoder_is_refused_by_networks_that_read_one() -> None:
    network: Any = network_of(registry.family_named("wan"))
    network.diffusion_model.config = replace(network.diffusion_model.config, image_dim=80)
    noise = torch.zeros(1, 16, 1, 8, 8)
    seen = SimpleNamespace(penultimate_hidden_states=torch.zeros(1, 4, 88))
    with pytest.raises(ValueError, match="clip_vision_output: .* got tokens of width 88, expected 80, as CLIP ViT-H"):
        network.extra_conds(noise=noise, device=torch.device("cpu"), latent_image=noise, clip_vision_output=seen)


@every_family
def test_a_latent_of_another_vae_is_refused(family: ModelFamily) -> None:
    network: Any = Sampled(network_of(family))
    channels = network.model.latent_format.latent_channels
    with pytest.raises(
        ValueError, match=f"another VAE than the model's; got {channels + 1} channels, expected {channels}"
    ):
        fix_empty_latent_channels(network, torch.ones(1, channels + 1, 8, 8))
    completed = fix_empty_latent_channels(network, torch.zeros(1, channels + 1, 8, 8))
    assert completed.shape[1] == (network.model.latent_format.stream_channels or (channels,))[0]


@every_family
def test_a_latent_of_several_streams_is_refused_by_models_of_one(family: ModelFamily) -> None:
    network: Any = Sampled(network_of(family))
    latent: Any = NestedLatent([torch.zeros(1, 24, 2, 4, 4), torch.zeros(1, 32, 2, 8)])
    if family.name in ("ltx2", "minimax_h3", "triposplat"):
        assert fix_empty_latent_channels(network, latent) is latent
        return
    with pytest.raises(ValueError, match="latent_image: a latent of several streams, of which the model takes one"):
        fix_empty_latent_channels(network, latent)


@every_family
def test_a_lora_without_a_key_of_the_model_is_warned_about(family: ModelFamily) -> None:
    model: Any = Sampled(network_of(family))
    told: list[NodeWarning] = []
    with logged_as("prompt", "1", "LoraLoader", told):
        with_lora(model, None, {"other_model.lora_up.weight": torch.zeros(4, 2)}, 1.0, 1.0)
    assert [warning.type for warning in told] == ["lora_without_effect"]
    assert "got 'other_model.lora_up.weight'" in told[0].message
    assert f"expected a LoRA for a model of {family.label}" in told[0].message


def test_a_hook_s_lora_without_a_key_of_the_model_is_warned_about() -> None:
    hook = WeightHook(strength_model=1.0, strength_clip=1.0)
    hook.weights = {"other_model.lora_up.weight": torch.zeros(4, 2)}
    model: Any = SimpleNamespace(model=network_of(FAMILIES[0]), add_hook_patches=lambda **given: None)
    told: list[NodeWarning] = []
    with logged_as("prompt", "1", "KSampler", told):
        hook._prepare(model, {}, {"target": EnumWeightTarget.Model})
    assert [warning.type for warning in told] == ["lora_without_effect"]


def test_a_lora_s_text_layers_are_expected_to_be_left_out_without_a_text_encoder() -> None:
    model: Any = Sampled(network_of(FAMILIES[0]))
    told: list[NodeWarning] = []
    with logged_as("prompt", "1", "LoraLoaderModelOnly", told):
        with_lora(model, None, {"lora_te_layer.lora_up.weight": torch.zeros(4, 2)}, 1.0, 0.0)
    assert [warning.type for warning in told] == ["lora_without_effect"]


@every_family
def test_a_lora_of_a_network_of_other_widths_is_refused(family: ModelFamily) -> None:
    """Networks of one kind share the names of their layers."""
    network = network_of(family)
    keys = denoiser_lora_keys(network)
    linear = {
        key: layer
        for key, target in keys.items()
        if isinstance(layer := _layer(network, target_name(target)), nn.Linear)
    }
    for extra, is_refused in ((8, True), (0, False)):
        lora = {}
        for key, layer in list(linear.items())[:50]:
            lora[f"{key}.lora_up.weight"] = torch.zeros(layer.out_features, 2)
            lora[f"{key}.lora_down.weight"] = torch.zeros(2, layer.in_features + extra)
        misfit = lora_misfit(network, lora_patches(lora, keys, warn=False))
        assert (misfit is not None) is is_refused
        assert misfit is None or "a change of " in misfit


def test_a_lora_of_stable_diffusion_1_does_not_pass_for_one_of_xl() -> None:
    """Many of its layers have the same names and widths; those that read the text do not."""
    first, other = network_of(registry.family_named("sd15")), network_of(registry.family_named("sdxl"))
    widths = {text_width(first), text_width(other)}
    assert len(widths) == 2
    lora: dict[str, torch.Tensor] = {}
    keys = denoiser_lora_keys(other)
    for key, target in keys.items():
        layer = _layer(other, target_name(target))
        if isinstance(layer, nn.Linear) and key.startswith("lora_unet_"):
            inputs = text_width(first) if layer.in_features == text_width(other) else layer.in_features
            lora[f"{key}.lora_up.weight"] = torch.zeros(layer.out_features, 2)
            lora[f"{key}.lora_down.weight"] = torch.zeros(2, inputs)
    misfit = lora_misfit(other, lora_patches(lora, keys, warn=False))
    assert misfit is not None and misfit.endswith(f"expected {text_width(other)}")


def _layer(network: nn.Module, name: str) -> nn.Module | None:
    try:
        return network.get_submodule(name.removesuffix(".weight"))
    except AttributeError:
        return None


@every_family
def test_a_controlnet_steers_no_other_family(family: ModelFamily) -> None:
    own = family.scales["small"].denoiser
    for other in FAMILIES:
        steered = other.scales["small"].denoiser
        if type(steered) is type(own):
            continue  # told apart by widths
        assert not any(kind.steers(own, steered) for kind in family.control_networks)


@every_prompted_family
def test_a_text_encoder_of_another_family_is_refused_by_its_type(family: ModelFamily, tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    write_safetensors(path, {"some.weight": torch.zeros(2, 2)})
    for text_type in family.comfyui.text_types:
        with pytest.raises(BadModelFile, match=r"encoder.safetensors: .*; expected") as refused:
            load_text_encoders([path], LoadTypes(), text_type)
        assert all(name in str(refused.value) for name in (repr(text_type), family.label, family.text[0].encoding.key))


@pytest.mark.parametrize(("owner", "slot", "found"), [
    ("sd15", "l", "sd15"), ("sd2", "h", "sd2"), ("cascade", "g", "sdxl_refiner"), ("flux", "t5xxl", "mochi"),
    ("aura_flow", "pile_t5xl", "aura_flow"), ("lumina2", "gemma2_2b", "lumina2"), ("omnigen2", "qwen25_3b", "omnigen2"),
    ("qwen_image", "qwen25_7b", "qwen_image"), ("z_image", "qwen3_4b", "z_image"), ("wan", "umt5xxl", None),
    ("hunyuan_image", "byt5", None), ("hunyuan_dit", "mt5xl", None),
])  # fmt: skip
def test_the_default_type_says_nothing_of_a_text_encoder(owner: str, slot: str, found: str | None) -> None:
    """ComfyUI's loader has it until somebody sets another: the file decides. An explicit type of another is refused."""
    family = registry.family_named(owner)
    encoder = next(item for item in family.text if item.encoding.slot == slot)
    with unfilled():
        network = encoder.network.build(family.scales["full"].text[slot])
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    if found is None:
        with pytest.raises(NotRecognised):
            registry.recognise_text_encoders([shapes], "stable_diffusion")
        return
    recognised, ((read, _),) = registry.recognise_text_encoders([shapes], "stable_diffusion")
    assert recognised.name == found and read.encoding.slot == slot
    with pytest.raises(NotRecognised):
        registry.recognise_text_encoders([shapes], "krea2")


@pytest.mark.parametrize(
    ("prefix", "what"),
    [("model.", "a language model"), ("model.language_model.", "a language model that sees images")],
)
def test_a_language_model_of_another_family_is_named_by_its_size(prefix: str, what: str) -> None:
    shapes = {f"{prefix}embed_tokens.weight": (100, 2048), f"{prefix}layers.27.mlp.up_proj.weight": (8, 2048)}
    assert describe(shapes) == f"{what}, of 28 layers and width 2048"


@every_family
def test_latents_of_another_vae_are_not_decoded(family: ModelFamily) -> None:
    with unfilled():
        network: Any = family.vae.build(family.scales["small"].vae)
    channels = network.latent_channels
    checked: Any = SimpleNamespace(first_stage_model=network)
    with pytest.raises(ValueError, match=f"got {channels + 1} channels, expected"):
        Vae._check_channels(checked, torch.zeros(1, channels + 1, 4, 4))
