"""Qwen-Image: references, what does not fit, LoRA names, ControlNets, model patches, the nodes of edits."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised, TensorIndex
from darkroom.engine.families.qwen_image.diffsynth_control import (
    DiffSynthControl,
    DiffSynthControlConfig,
    diffsynth_control_config,
)
from darkroom.engine.families.qwen_image.nodes import (
    empty_qwen_image_layered_latent_image,
    text_encode_qwen_image_edit,
    text_encode_qwen_image_edit_plus,
)
from darkroom.engine.families.qwen_image.transformer import QwenImageControlNet, QwenImageTransformer
from darkroom.engine.families.wan.vae import WanVae, WanVaeConfig
from darkroom.engine.families.wan.vae_files import WanLatentFormat
from darkroom.engine.families.z_image.nodes.control import qwen_image_diffsynth_controlnet
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.clip import Clip
from darkroom.engine.models.kinds.load_controlnet import load_controlnet, steering_kind
from darkroom.engine.models.kinds.load_model_patch import load_model_patch
from darkroom.engine.models.load import LoadedDenoiser, LoadTypes, load_vae
from darkroom.engine.models.model import Model
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.models.store import denoiser
from darkroom.engine.models.video_vae import VideoVae
from darkroom.engine.nodes.library.model.lora import with_lora
from darkroom.engine.settings import EngineSettings
from tests.engine.nodes.small_store import node_context, small_store

FAMILY = registry.family_named("qwen_image")
SMALL = FAMILY.scales["small"].denoiser
NOISE = torch.zeros(1, 16, 1, 4, 6)
Values = tuple[Model, Clip, VideoVae]


def model() -> Denoiser:
    with unfilled():
        network = FAMILY.denoiser.build(SMALL)
    return denoiser(LoadedDenoiser(FAMILY, "", FAMILY.parameterisation, network))


def conditions(**options: Any) -> dict[str, Any]:
    given = {"noise": NOISE, "device": torch.device("cpu"), "cross_attn": torch.zeros(1, 3, 32), **options}
    return model().extra_conds(**given)


@pytest.fixture(scope="module")
def values() -> Values:
    """MODEL, CLIP and VAE of random small networks."""
    made, clip, vae = small_store(Path("unused")).random_checkpoint("qwen_image", "small", 0)
    assert clip is not None and isinstance(vae, VideoVae)
    return made, clip, vae


# --- what goes into the network --------------------------------------------------------------------------------------


def test_reference_images_are_scaled_latents_placed_by_the_method() -> None:
    latents = [torch.rand(1, 16, 1, 4, 4), torch.rand(1, 16, 1, 2, 6)]
    found = conditions(reference_latents=latents, reference_latents_method="offset")
    scaled = WanLatentFormat()
    for item, latent in zip(found["ref_latents"].cond, latents, strict=True):
        torch.testing.assert_close(item, scaled.process_in(latent))
        torch.testing.assert_close(scaled.process_out(item), latent)
    assert found["ref_latents_method"].cond == "offset"
    assert "ref_latents_method" not in conditions(reference_latents=latents)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cross_attn": torch.zeros(1, 3, 768)}, r"conditioning: .* got text of width 768, expected 32"),
        ({"noise": torch.zeros(1, 4, 1, 4, 6)}, r"latent_image: .* got a latent of 4 channels, expected 16"),
        ({"noise": torch.zeros(1, 16, 3, 4, 6)}, r"latent_image: .* got a latent of 3 frames, expected 1"),
        (
            {"reference_latents": [NOISE, torch.zeros(1, 4, 8, 8)]},
            r"reference_latents\[1\]: .* got a latent of 4 channels, expected 16",
        ),
    ],
)
def test_inputs_of_other_models_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conditions(**options)


# --- files -----------------------------------------------------------------------------------------------------------


def shapes_of(network: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in network.state_dict().items()}


def test_a_controlnet_is_no_model_of_the_family() -> None:
    with unfilled():
        control = QwenImageControlNet(replace(SMALL, hint_channels=16))
    assert FAMILY.detect(TensorIndex(shapes_of(control))) is None


@pytest.mark.parametrize(("hint_channels", "takes_mask"), [(16, False), (17, True)])
def test_controlnets_read_latents_and_masks_by_their_channels(
    tmp_path: Path, hint_channels: int, takes_mask: bool
) -> None:
    control = QwenImageControlNet(replace(SMALL, num_blocks=1, hint_channels=hint_channels))
    write_safetensors(tmp_path / "control.safetensors", control.state_dict())
    loaded = load_controlnet(tmp_path / "control.safetensors", LoadTypes())
    kind = steering_kind(loaded)
    assert kind is not None and kind.family is FAMILY
    assert isinstance(kind.reading.latent_format, WanLatentFormat) and kind.reading.takes_mask is takes_mask
    assert kind.steers(SMALL) and not kind.steers(replace(SMALL, width=256))


def test_a_vae_of_other_channels_is_refused(tmp_path: Path) -> None:
    _, _, vae = random_networks("small", 0, LoadTypes(), family=FAMILY)
    weights = dict(vae.state_dict())
    weights["conv2.weight"] = torch.zeros(48, 48, 1, 1, 1)
    write_safetensors(tmp_path / "vae.safetensors", weights)
    with pytest.raises(BadModelFile, match="a VAE of videos of 48 latent channels"):
        load_vae(tmp_path / "vae.safetensors", LoadTypes())


def test_a_text_encoder_of_another_size_is_refused() -> None:
    _, text, _ = random_networks("small", 0, LoadTypes(), family=FAMILY)
    shapes = shapes_of(text.encoders()["qwen25_7b"].transformer)
    assert registry.recognise_text_encoders([shapes], "qwen_image")[0] is FAMILY
    smaller = {**shapes, "model.layers.0.self_attn.k_proj.bias": (256,)}
    with pytest.raises(NotRecognised):
        registry.recognise_text_encoders([smaller], "qwen_image")


def test_a_file_that_is_no_model_patch_is_refused(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x.safetensors", {"lora_unet_a.lora_up.weight": torch.zeros(2, 2)})
    with pytest.raises(BadModelFile, match=r"a LoRA.*a model patch of .*Qwen-Image"):
        load_model_patch(tmp_path / "x.safetensors", LoadTypes())


# --- LoRAs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "diffusion_model.transformer_blocks.1.attn.to_q",
        "transformer.transformer_blocks.1.attn.to_q",
        "transformer_blocks.1.attn.to_q",
        "lora_unet_transformer_blocks_1_attn_to_q",
        "lycoris_transformer_blocks_1_attn_to_q",
    ],
)
def test_loras_of_several_trainers_name_the_same_layer(name: str) -> None:
    weights = [f"diffusion_model.{item}" for item in model().diffusion_model.state_dict()]
    keys = FAMILY.denoiser_lora_keys(weights, SMALL)
    assert keys[name] == "diffusion_model.transformer_blocks.1.attn.to_q.weight"


def test_a_lora_of_another_family_has_no_effect_and_is_named(values: Values, caplog: pytest.LogCaptureFixture) -> None:
    lora = {
        "diffusion_model.double_blocks.0.img_attn.proj.lora_A.weight": torch.ones(2, 128),
        "diffusion_model.double_blocks.0.img_attn.proj.lora_B.weight": torch.ones(128, 2),
    }
    changed, _ = with_lora(values[0], None, lora, 1.0, 0.0)
    assert changed is not None and not changed.patches
    named = r"double_blocks\.0\.img_attn\.proj.*expected a LoRA for a model of Qwen-Image"
    assert any(re.search(named, message) for message in caplog.messages)


# --- nodes -----------------------------------------------------------------------------------------------------------


def pixels(height: int, width: int) -> torch.Tensor:
    return torch.rand(1, height, width, 3, generator=torch.Generator().manual_seed(height))


def test_an_edit_sees_the_image_at_a_megapixel(values: Values, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, torch.Size]] = []
    _, clip, vae = values
    tokenize = clip.tokenize

    def noted(text: str, **options: Any) -> Any:
        seen.extend(("seen", item.shape) for item in options.get("images", ()))
        return tokenize(text, **{**options, "images": [item[:, :56, :56] for item in options.get("images", ())]})

    def encoded(image: torch.Tensor) -> torch.Tensor:
        seen.append(("encoded", image.shape))
        return torch.zeros(1, 16, 1, 2, 2)

    monkeypatch.setattr(clip, "tokenize", noted)
    monkeypatch.setattr(vae, "encode", encoded)
    context = node_context(small_store(Path("unused")))
    ((_, options),) = text_encode_qwen_image_edit(context, clip=clip, prompt="x", vae=vae, image=pixels(50, 100))
    assert seen == [("seen", torch.Size([1, 724, 1448, 3])), ("encoded", torch.Size([1, 724, 1448, 3]))]
    assert len(options["reference_latents"]) == 1
    seen.clear()
    ((_, plain),) = text_encode_qwen_image_edit(context, clip=clip, prompt="x", vae=vae)
    assert not seen and "reference_latents" not in plain
    ((_, options),) = text_encode_qwen_image_edit_plus(
        context, clip=clip, prompt="x", vae=vae, image1=pixels(50, 100), image3=pixels(64, 64)
    )
    assert [shape[1:3] for kind, shape in seen if kind == "seen"] == [(272, 543), (384, 384)]
    assert [shape[1:3] for kind, shape in seen if kind == "encoded"] == [(728, 1448), (1024, 1024)]
    assert len(options["reference_latents"]) == 2


def control_patch(config: DiffSynthControlConfig) -> ModulePatcher:
    torch.manual_seed(0)
    network = DiffSynthControl(config).requires_grad_(False)
    assert diffsynth_control_config(shapes_of(network)) == config
    for name, weight in network.named_parameters():
        if name.endswith("_rms.weight"):
            weight.fill_(1.0)
    return ModulePatcher(ModelMemory(EngineSettings(cpu=True)).keep("patch", network))


def test_a_model_patch_adds_to_the_image_and_leaves_references(values: Values) -> None:
    made, _, vae = values
    control = control_patch(DiffSynthControlConfig(128, 3, 17))
    context = node_context(small_store(Path("unused")))
    patched = qwen_image_diffsynth_controlnet(
        context, model=made, model_patch=control, vae=vae, image=pixels(40, 40), mask=torch.ones(1, 40, 40)
    )
    (patch,) = patched.model_options["transformer_options"]["patches"]["double_block"]
    assert patch.models() == [control]
    img = torch.randn(2, 9, 128)
    inputs = {"img": img, "txt": torch.zeros(2, 3, 128), "x": torch.zeros(2, 16, 1, 4, 4), "block_index": 1}
    out = patch.to(torch.device("cpu"))(inputs)["img"]
    assert not torch.equal(out[:, :4], img[:, :4]) and torch.equal(out[:, 4:], img[:, 4:])
    assert "patches" not in made.model_options.get("transformer_options", {})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DiffSynthControlConfig(256, 3, 16), "got width 256 and 3 blocks, expected width 128 and 3 blocks"),
        (DiffSynthControlConfig(128, 2, 16), "got width 128 and 2 blocks, expected width 128 and 3 blocks"),
    ],
)
def test_a_model_patch_of_other_sizes_is_refused(values: Values, config: DiffSynthControlConfig, message: str) -> None:
    made, _, vae = values
    with pytest.raises(ValueError, match=f"model_patch: it does not fit the model; {message}"):
        qwen_image_diffsynth_controlnet(
            node_context(small_store(Path("unused"))), model=made, model_patch=control_patch(config), vae=vae,
            image=pixels(16, 16),
        )  # fmt: skip


def test_a_latent_of_another_vae_is_not_decoded(values: Values) -> None:
    with pytest.raises(ValueError, match=r"samples: .* another VAE .*; got 4 channels, expected 16"):
        values[2].decode(torch.zeros(1, 4, 8, 8))


def test_the_published_network_of_layers_is_known_by_its_tensors() -> None:
    config = replace(FAMILY.scales["full"].denoiser, draws_layers=True)
    with unfilled():
        shapes = {name: tuple(weight.shape) for name, weight in QwenImageTransformer(config).state_dict().items()}
    found = registry.recognise(TensorIndex(shapes, {}))
    assert found.family is FAMILY
    assert FAMILY.denoiser.configure(registry.shapes_under(found.match.names, shapes)) == config


def test_a_network_of_layers_takes_frames_and_others_one_image() -> None:
    with unfilled():
        network = FAMILY.denoiser.build(replace(SMALL, draws_layers=True))
    layered = denoiser(LoadedDenoiser(FAMILY, "", FAMILY.parameterisation, network))
    noise = torch.zeros(1, 16, 3, 4, 6)
    given = {"noise": noise, "device": torch.device("cpu"), "cross_attn": torch.zeros(1, 3, 32)}
    assert "c_crossattn" in layered.extra_conds(**given)
    with pytest.raises(ValueError, match="latent_image: the model draws images; got a latent of 3 frames"):
        model().extra_conds(**given)


def test_a_latent_of_layers_has_the_image_before_them(tmp_path: Path) -> None:
    context = node_context(small_store(tmp_path))
    latent = empty_qwen_image_layered_latent_image(context, width=64, height=32, layers=2, batch_size=3)
    assert latent["samples"].shape == (3, 16, 3, 4, 8)


@pytest.mark.parametrize(("channels", "read"), [(3, 3), (4, 3), (5, 3)])
def test_a_vae_of_three_channels_reads_no_opacity(values: Values, channels: int, read: int) -> None:
    assert values[2].with_channels(torch.zeros(1, 8, 8, channels)).shape[-1] == read


def test_a_vae_with_opacity_takes_images_without_it_for_opaque(tmp_path: Path) -> None:
    with unfilled():
        network = WanVae(WanVaeConfig(base_channels=8, image_channels=4))
    memory = ModelMemory(EngineSettings(cpu=True))
    vae = VideoVae(memory.keep("vae", network.to_empty(device="cpu")))
    pixels = torch.rand(1, 8, 8, 3)
    seen = vae.with_channels(pixels)
    assert torch.equal(seen[..., :3], pixels)
    assert torch.equal(seen[..., 3], torch.ones(1, 8, 8))
    four = torch.rand(1, 8, 8, 4)
    assert torch.equal(vae.with_channels(four), four)
