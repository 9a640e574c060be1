"""A Control-LoRA is the ControlNet of its differences to the UNet in use, patches included, for one sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.families.registry import default_family
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.models.kinds.control_lora_value import ControlLora
from darkroom.engine.models.kinds.controlnet import ControlNetModel
from darkroom.engine.models.preloaded_models import PreloadedModels
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.models.store import ModelStore
from darkroom.engine.nodes.library.conditioning.controlnet import controlnet_apply_advanced
from darkroom.engine.nodes.library.conditioning.text import clip_text_encode
from darkroom.engine.nodes.library.sampling.sampling import ksampler
from tests.engine.nodes.small_store import node_context, small_store
from tests.engine.simulated_card import MIB, engine_of, latent_of, run, workflow, write_small_models

RANK = 2
OWN = ("zero_convs", "input_hint_block", "middle_block_out")  # layers that the UNet does not have
PATCHED = "diffusion_model.input_blocks.1.1.proj_in.weight"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, a Control-LoRA, and the ControlNet that it makes of the checkpoint's UNet."""
    folder = tmp_path_factory.mktemp("control_lora")
    write_random_checkpoint(folder / "checkpoints" / "a.safetensors", "small", seed=0)
    model, _, _ = small_store(folder).checkpoint("a.safetensors")
    unet = model.model.diffusion_model.state_dict()
    torch.manual_seed(0)
    lora: dict[str, torch.Tensor] = {"lora_controlnet": torch.zeros(())}
    whole: dict[str, torch.Tensor] = {}
    for name, made in ControlNetModel(default_family().scales["small"].denoiser).state_dict().items():
        weight = torch.randn(made.shape) * 0.05 if name.startswith(OWN) else unet[name].clone()
        if not name.startswith(OWN) and weight.ndim > 1:
            layer = name.removesuffix(".weight")
            up, down = torch.randn(weight.shape[0], RANK) * 0.1, torch.randn(RANK, weight[0].numel()) * 0.1
            lora |= {f"{layer}.up": up, f"{layer}.down": down}
            weight = weight + (up @ down).reshape(weight.shape)
        else:
            lora[name] = weight
        whole[f"control_model.{name}"] = weight
    write_safetensors(folder / "controlnet" / "lora.safetensors", lora)
    write_safetensors(folder / "controlnet" / "whole.safetensors", whole)
    return folder


@pytest.fixture
def store(models: Path) -> ModelStore:
    return small_store(models)


def sampled(store: ModelStore, model: Any, clip: Any, net: Any) -> torch.Tensor:
    context = node_context(store)
    prompt = clip_text_encode(context, text="a fox", clip=clip)
    positive, negative = controlnet_apply_advanced(
        context, positive=prompt, negative=prompt, control_net=net, image=torch.full((1, 64, 64, 3), 0.5),
        strength=1.0, start_percent=0.0, end_percent=1.0,
    )  # fmt: skip
    latent = {"samples": torch.zeros(1, 4, 8, 8)}
    samples: torch.Tensor = ksampler(
        context, model=model, seed=3, steps=2, cfg=4.0, sampler_name="euler", scheduler="normal",
        positive=positive, negative=negative, latent_image=latent,
    )["samples"]  # fmt: skip
    return samples


def test_it_controls_as_the_whole_controlnet_that_it_stands_for(store: ModelStore) -> None:
    model, clip, _ = store.checkpoint("a.safetensors")
    lora, whole = store.auxiliary.controlnet("lora.safetensors"), store.auxiliary.controlnet("whole.safetensors")
    assert isinstance(lora, ControlLora)
    torch.testing.assert_close(
        sampled(store, model, clip, lora), sampled(store, model, clip, whole), rtol=1e-4, atol=1e-4
    )


def test_it_follows_the_patches_of_the_model(store: ModelStore) -> None:
    model, clip, _ = store.checkpoint("a.safetensors")
    lora, whole = store.auxiliary.controlnet("lora.safetensors"), store.auxiliary.controlnet("whole.safetensors")
    patched = model.clone()
    patched.add_patches({PATCHED: ("diff", (torch.randn(64, 64, 1, 1),))})
    assert not torch.allclose(sampled(store, patched, clip, lora), sampled(store, patched, clip, whole), atol=1e-3)


def test_its_network_lasts_for_one_sampling(store: ModelStore) -> None:
    model, clip, _ = store.checkpoint("a.safetensors")
    lora = store.auxiliary.controlnet("lora.safetensors")
    before = {name: weight.clone() for name, weight in model.model.state_dict().items()}
    sampled(store, model, clip, lora)
    assert isinstance(lora, ControlLora) and lora.control_model is None and lora.get_models() == []
    assert all(torch.equal(weight, before[name]) for name, weight in model.model.state_dict().items())


def test_the_memory_it_needs_is_that_of_its_layers(store: ModelStore) -> None:
    lora = store.auxiliary.controlnet("lora.safetensors")
    config = default_family().scales["small"].denoiser
    with unfilled():
        num_weights = sum(weight.numel() for weight in ControlNetModel(config).parameters())
    assert lora.inference_memory_requirements(torch.float16) == 2 * (num_weights + 1)  # and its mark


def test_differences_of_another_models_shapes_are_refused_by_layer(store: ModelStore) -> None:
    model, clip, _ = store.checkpoint("a.safetensors")
    lora = store.auxiliary.controlnet("lora.safetensors")
    assert isinstance(lora, ControlLora)
    weights = dict(lora.control_weights)
    weights["time_embed.0.up"] = torch.zeros(7, RANK)
    with pytest.raises(ValueError, match=r"Control-LoRA: time_embed\.0 does not fit the model; got a difference of 7"):
        sampled(store, model, clip, ControlLora(weights))


def test_loading_it_ahead_of_use_takes_no_memory(store: ModelStore) -> None:
    assert PreloadedModels(store).load("controlnet", "lora.safetensors") == 0


def test_beside_an_offloaded_and_patched_unet_it_draws_the_same_bits(tmp_path: Path) -> None:
    write_small_models(tmp_path / "models")
    config = default_family().scales["small"].denoiser
    lora: dict[str, torch.Tensor] = {"lora_controlnet": torch.zeros(())}
    for name, made in ControlNetModel(config).state_dict().items():
        weight = torch.randn(made.shape, generator=torch.Generator().manual_seed(len(name))) * 0.05
        if name.startswith(OWN):
            lora[name] = weight
        elif weight.ndim > 1:
            layer = name.removesuffix(".weight")
            lora |= {f"{layer}.up": weight.flatten(1)[:, :RANK].contiguous(), f"{layer}.down": weight[:RANK] * 2}
    write_safetensors(tmp_path / "models" / "controlnet" / "c.safetensors", lora)
    prompt, latents = workflow(second=None, lora=0.8), []
    for card_bytes in (None, 12 * MIB):
        with engine_of(tmp_path, card_bytes=card_bytes) as engine:
            latents.append(latent_of(engine, run(engine, prompt)[0]))
    assert torch.equal(*latents)
