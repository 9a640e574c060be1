"""The nodes that every workflow has, from checkpoint to image, with a small network of random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.errors import BadModelFile, Interrupted
from darkroom.engine.models.store import ModelStore
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.library.conditioning.text import clip_set_last_layer, clip_text_encode
from darkroom.engine.nodes.library.sampling.sampling import ksampler
from tests.engine.nodes.small_store import small_store
from tests.tiny_checkpoint import make_tiny_checkpoint


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ModelStore:
    models = tmp_path_factory.mktemp("models")
    make_tiny_checkpoint(models / "checkpoints")
    return small_store(models)


def _context(store: ModelStore, cancel: CancelToken | None = None, steps: list[float] | None = None) -> NodeContext:
    told = [] if steps is None else steps
    return NodeContext("1", "p", cancel or CancelToken(), lambda value, total: told.append(value), None, store, None)


def _sample(store: ModelStore, context: NodeContext, **changes: object) -> torch.Tensor:
    model, clip, _ = store.checkpoint("tiny.safetensors")
    prompt = clip_text_encode(context, text="a fox", clip=clip)
    inputs = {
        "model": model, "seed": 3, "steps": 3, "cfg": 4.0, "sampler_name": "euler", "scheduler": "normal",
        "positive": prompt, "negative": prompt, "latent_image": {"samples": torch.zeros(1, 4, 8, 8)},
    }  # fmt: skip
    samples: torch.Tensor = ksampler(context, **{**inputs, **changes})["samples"]
    return samples


def test_the_same_seed_draws_the_same_image_and_every_step_is_reported(store: ModelStore) -> None:
    steps: list[float] = []
    context = _context(store, steps=steps)
    first = _sample(store, context)
    assert steps == [1, 2, 3]
    assert torch.equal(first, _sample(store, context))
    assert not torch.equal(first, _sample(store, context, seed=4))
    assert bool(first.isfinite().all())


def test_a_cancelled_run_stops_within_a_step(store: ModelStore) -> None:
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(Interrupted):
        _sample(store, _context(store, cancel))


def test_a_file_in_use_is_not_loaded_twice(store: ModelStore) -> None:
    first, clip, vae = store.checkpoint("tiny.safetensors")
    second = store.checkpoint("tiny.safetensors")[0]
    assert first.is_clone(second)
    assert first.clone().is_clone(first)


def test_a_clones_patches_are_its_own(store: ModelStore) -> None:
    model = store.checkpoint("tiny.safetensors")[0]
    patched = model.clone()
    weight = torch.ones_like(model.model.state_dict()["diffusion_model.out.2.bias"])
    assert patched.add_patches({"diffusion_model.out.2.bias": ("diff", (weight,)), "unknown": ("diff", (weight,))}) == [
        "diffusion_model.out.2.bias"
    ]
    context = _context(store)
    plain = _sample(store, context, model=model)
    assert not torch.equal(plain, _sample(store, context, model=patched))
    assert torch.equal(plain, _sample(store, context, model=model))


def test_functions_of_nodes_reach_sampling(store: ModelStore) -> None:
    model = store.checkpoint("tiny.safetensors")[0].clone()
    seen: list[str] = []

    def saw(what: str, value: Any) -> Any:
        seen.append(what)
        return value

    model.set_model_unet_function_wrapper(
        lambda apply, call: saw("unet", apply(call["input"], call["timestep"], **call["c"]))
    )
    model.set_model_sampler_post_cfg_function(lambda args: saw("post", args["denoised"]))
    model.set_model_attn1_patch(lambda q, k, v, extra: saw("attn1", (q, k, v)))
    _sample(store, _context(store), model=model, steps=1)
    assert {"unet", "post", "attn1"} <= set(seen)
    assert store.checkpoint("tiny.safetensors")[0].model_options == {"transformer_options": {}}


def test_the_device_is_asked_for_room_once_a_run_and_again_in_the_next(store: ModelStore) -> None:
    class Asked(type(store.checkpoint("tiny.safetensors")[0])):  # type: ignore[misc]
        answers = [1.0, 1e12]
        batches: list[int] = []

        def free_bytes(self) -> float:
            return self.answers.pop(0)

        def begin_batch(self, shape: list[int], *, is_split: bool) -> None:
            self.batches.append(shape[0])
            super().begin_batch(shape, is_split=is_split)

    model = Asked(store.checkpoint("tiny.safetensors")[0].weights)
    for _ in range(2):
        _sample(store, _context(store), model=model, steps=2)
    assert Asked.batches == [1, 1, 1, 1, 2, 2] and Asked.answers == []


def test_clip_skip_changes_the_conditioning_of_the_clone_only(store: ModelStore) -> None:
    context = _context(store)
    clip = store.checkpoint("tiny.safetensors")[1]
    skipped = clip_set_last_layer(context, clip=clip, stop_at_clip_layer=-2)
    (plain, _), (deep, _) = (clip_text_encode(context, text="fox", clip=item)[0] for item in (clip, skipped))
    assert plain.shape == (1, 77, 64)
    assert not torch.equal(plain, deep)


def test_images_go_through_the_vae_and_back_at_their_size(store: ModelStore) -> None:
    vae = store.checkpoint("tiny.safetensors")[2]
    assert vae is not None
    latents = vae.encode(torch.rand(2, 67, 64, 3))
    assert latents.shape == (2, 4, 8, 8)
    images = vae.decode(latents)
    assert images.shape == (2, 64, 64, 3)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1


def test_random_checkpoints_repeat_by_seed(store: ModelStore) -> None:
    weights = [store.random_checkpoint("sd15", "small", seed)[0].model_state_dict() for seed in (1, 1, 2)]
    name = "diffusion_model.middle_block.0.in_layers.2.weight"
    assert torch.equal(weights[0][name], weights[1][name])
    assert not torch.equal(weights[0][name], weights[2][name])


def test_a_missing_file_is_named(store: ModelStore, tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match="gone.safetensors"):
        store.checkpoint("gone.safetensors")
