"""Images in the place of words, on small files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from darkroom.engine.errors import BadModelFile
from darkroom.engine.models.kinds.clip_vision_value import StyleModel
from darkroom.engine.models.kinds.redux import Redux, ReduxConfig
from darkroom.engine.models.kinds.style_adapter import StyleAdapter, StyleAdapterConfig
from darkroom.engine.models.store import ModelStore
from darkroom.engine.nodes.library.conditioning.clip_vision import (
    clip_vision_encode,
    clip_vision_loader,
    style_model_apply,
    style_model_loader,
)
from tests.engine.models.kinds.test_load_clip_vision import CONFIG, random_weights
from tests.engine.nodes.small_store import node_context, small_store

NUM_WORDS = 3


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    for name in ("clip_vision", "style_models"):
        (folder / name).mkdir()
    save_file(random_weights(), folder / "clip_vision" / "v.safetensors")
    for name, width in (("s", CONFIG.width), ("wide", 64)):
        style = StyleAdapter(StyleAdapterConfig(width, 16, num_layers=2, num_words=NUM_WORDS))
        weights = {key: torch.randn(weight.shape) * 0.2 for key, weight in style.state_dict().items()}
        save_file(weights, folder / "style_models" / f"{name}.safetensors")
    projection = Redux(ReduxConfig(32, 16, 24)).state_dict()
    weights = {key: torch.randn(weight.shape) for key, weight in projection.items()}
    save_file(weights, folder / "style_models" / "redux.safetensors")
    save_file({"redux_down.weight": torch.zeros(1)}, folder / "style_models" / "flat.safetensors")
    save_file({"redux_down.weight": torch.zeros(16, 24)}, folder / "style_models" / "half.safetensors")
    return folder


@pytest.fixture
def store(models: Path) -> ModelStore:
    return small_store(models)


def _seen(store: ModelStore, images: int = 1) -> Any:
    context = node_context(store)
    vision = clip_vision_loader(context, clip_name="v.safetensors")
    torch.manual_seed(0)
    return clip_vision_encode(context, clip_vision=vision, image=torch.rand(images, 20, 24, 3), crop="center")


def test_an_image_is_encoded_from_weights_kept_as_float16(store: ModelStore) -> None:
    seen = _seen(store, 2)
    assert seen.image_embeds.shape == (2, CONFIG.projection_width)
    assert seen["last_hidden_state"].shape == seen.penultimate_hidden_states.shape == (2, CONFIG.num_tokens, 32)
    assert seen.image_embeds.dtype == torch.float32
    assert store.auxiliary.clip_vision("v.safetensors").dtype == torch.float16


def test_packs_may_call_the_network_itself(store: ModelStore) -> None:
    vision = store.auxiliary.clip_vision("v.safetensors")
    pixels = torch.rand(1, 3, 16, 16)
    last, before, embeds, _ = vision.model(pixel_values=pixels, intermediate_output=-2)
    assert last.shape == before.shape and embeds.dtype == torch.float32
    assert vision.model.vision_model is vision.patcher.model.vision_model


@pytest.mark.parametrize("images", [1, 2])
def test_the_words_of_all_images_stand_behind_the_prompts(store: ModelStore, images: int) -> None:
    context = node_context(store)
    style = style_model_loader(context, style_model_name="s.safetensors")
    prompt = torch.rand(1, 5, 16)
    given: list[list[Any]] = [[prompt, {"mask": 1}]]
    made = style_model_apply(
        context, conditioning=given, style_model=style, clip_vision_output=_seen(store, images), strength=0.5,
        strength_type="multiply",
    )  # fmt: skip
    tokens, options = made[0]
    assert tokens.shape == (1, 5 + NUM_WORDS * images, 16) and options == {"mask": 1}
    assert torch.equal(tokens[:, :5], prompt)
    words = style.get_cond(_seen(store, images)).reshape(1, -1, 16)
    assert torch.equal(tokens[:, 5:], words * 0.5)


def test_a_bias_of_attention_weighs_the_words_for_all_others_alone(store: ModelStore) -> None:
    context = node_context(store)
    style = style_model_loader(context, style_model_name="s.safetensors")
    conditioning: Any = [[torch.rand(1, 4, 16), {}]]
    for strength in (0.5, 2.0):  # the second style's mask grows out of the first's
        conditioning = style_model_apply(
            context, conditioning=conditioning, style_model=style, clip_vision_output=_seen(store), strength=strength,
            strength_type="attn_bias",
        )  # fmt: skip
    mask = conditioning[0][1]["attention_mask"][0].float()
    first, second, rest = slice(4, 7), slice(7, 10), [0, 1, 2, 3, 10]
    assert mask.shape == (11, 11)  # 4 tokens, twice 3 words, one cell of the image
    assert mask[rest, first].exp().unique().tolist() == pytest.approx([0.5], rel=1e-3)
    assert mask[:, second][[*rest, 4]].exp().unique().tolist() == pytest.approx([2.0], rel=1e-3)
    assert not mask[second].any() and not mask[first, first].any()


def test_a_style_model_for_another_image_encoder_says_so(store: ModelStore) -> None:
    with pytest.raises(ValueError, match="width 64, this one's is 32"):
        store.auxiliary.style_model("wide.safetensors").get_cond(_seen(store))


def test_a_projection_makes_a_word_of_every_token_of_the_image(store: ModelStore) -> None:
    seen = _seen(store)
    style = store.auxiliary.style_model("redux.safetensors")
    words = style.get_cond(seen)
    first = functional.silu(functional.linear(seen.last_hidden_state, *_layer(style, "redux_up")))
    torch.testing.assert_close(words, functional.linear(first, *_layer(style, "redux_down")))


def _layer(style: StyleModel, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    layer = style.model.get_submodule(name)
    return layer.weight, layer.bias


@pytest.mark.parametrize(("name", "found"), [("flat", "other shapes"), ("half", "no tensor 'redux_up.weight'")])
def test_a_file_that_is_no_whole_style_model_is_refused(store: ModelStore, name: str, found: str) -> None:
    with pytest.raises(BadModelFile, match=found):
        store.auxiliary.style_model(f"{name}.safetensors")
