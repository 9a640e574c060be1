"""UNETLoader: weights in the decided type or as float8, computed alike, and patched and restored bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.models.load import LoadTypes, load_checkpoint
from darkroom.engine.models.model import Model
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.models.store import ModelStore
from darkroom.engine.nodes.library.conditioning.text import clip_text_encode
from darkroom.engine.nodes.library.model.loaders import WEIGHT_TYPES, unet_loader
from darkroom.engine.nodes.library.sampling.sampling import ksampler
from tests.engine.nodes.small_store import node_context, small_store

KEY = "diffusion_model.input_blocks.1.1.proj_in.weight"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unet_loader")
    write_random_checkpoint(folder / "checkpoints" / "a.safetensors", "small", seed=0)
    unet = load_checkpoint(folder / "checkpoints" / "a.safetensors", LoadTypes()).unet
    write_safetensors(folder / "diffusion_models" / "u.safetensors", unet.state_dict())
    return folder


@pytest.fixture
def store(models: Path) -> ModelStore:
    return small_store(models)


def loaded(store: ModelStore, weight_dtype: str) -> Model:
    model: Model = unet_loader(node_context(store), unet_name="u.safetensors", weight_dtype=weight_dtype)
    return model


def sampled(store: ModelStore, model: Model) -> torch.Tensor:
    _, clip, _ = store.checkpoint("a.safetensors")
    context = node_context(store)
    prompt = clip_text_encode(context, text="a fox", clip=clip)
    samples: torch.Tensor = ksampler(
        context, model=model, seed=3, steps=2, cfg=4.0, sampler_name="euler", scheduler="normal", positive=prompt,
        negative=prompt, latent_image={"samples": torch.zeros(1, 4, 8, 8)},
    )["samples"]  # fmt: skip
    return samples


@pytest.mark.parametrize("weight_dtype", ["fp8_e4m3fn", "fp8_e4m3fn_fast"])
def test_float8_weights_compute_in_the_type_of_the_others(store: ModelStore, weight_dtype: str) -> None:
    model, whole = loaded(store, weight_dtype), loaded(store, "default")
    assert model.model_dtype() is WEIGHT_TYPES[weight_dtype] and model.model.compute_dtype is whole.model.compute_dtype
    exact = sampled(store, whole)
    difference = (sampled(store, model) - exact).norm() / exact.norm()
    assert 0.0 < difference < 0.3, "rounded weights, the same image"


def test_each_type_is_a_model_of_its_own(store: ModelStore) -> None:
    assert loaded(store, "fp8_e5m2").model is not loaded(store, "default").model
    assert loaded(store, "fp8_e4m3fn").model is loaded(store, "fp8_e4m3fn_fast").model


def test_a_patch_on_float8_weights_shows_and_is_undone_bit_for_bit(store: ModelStore) -> None:
    model = loaded(store, "fp8_e4m3fn")
    before, plain = model.weights.original_weight(KEY).clone(), sampled(store, model)
    patched = model.clone()
    patched.add_patches({KEY: ("diff", (torch.full((64, 64, 1, 1), 0.05),))})
    assert not torch.equal(sampled(store, patched), plain)
    assert torch.equal(sampled(store, model), plain)
    assert torch.equal(model.weights.current_weight(KEY).float(), before.float())
