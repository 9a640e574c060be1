"""Values that nodes receive have ComfyUI's members, with the meaning that they have there.

`comfyui_members.json` is a record of the members of ComfyUI's classes, read from its source; `without` are those that
this engine has no counterpart of: weights that packs move by hand, several devices, parts of networks it has not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.engine import Engine
from darkroom.engine.settings import EngineSettings
from tests.tiny_checkpoint import make_tiny_checkpoint

RECORD = json.loads(Path(__file__).with_name("comfyui_members.json").read_text("utf-8"))
TEXT = "a (red:1.5) fox"


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    base = tmp_path_factory.mktemp("members")
    (base / "models" / "checkpoints").mkdir(parents=True)
    make_tiny_checkpoint(base / "models" / "checkpoints")
    with Engine(EngineSettings(base_directory=base, cpu=True)) as engine:
        yield dict(zip(("model", "clip", "vae"), engine.models.checkpoint("tiny.safetensors"), strict=True))


@pytest.fixture
def clip(values: dict[str, Any]) -> Any:
    return values["clip"].clone()


@pytest.fixture
def model(values: dict[str, Any]) -> Any:
    return values["model"].clone()


@pytest.mark.parametrize("path", list(RECORD["members"]))
def test_a_value_has_the_members_that_comfyui_s_has(values: dict[str, Any], path: str) -> None:
    first, *parts = path.split(".")
    found = values[first]
    for part in parts:
        found = getattr(found, part)
    wanted = RECORD["members"][path].split()
    assert [name for name in wanted if name not in dir(found)] == []
    for name in wanted:
        getattr(found, name)  # none fails to be looked up


def test_a_tokenizer_says_how_it_cuts_and_pads(clip: Any) -> None:
    tokenizer = clip.tokenizer.clip_l
    assert (tokenizer.max_length, tokenizer.pad_to_max_length, tokenizer.pad_with_end) == (77, True, True)
    assert (tokenizer.tokens_start, tokenizer.start_token, tokenizer.end_token) == (1, 49406, 49407)
    (chunk,) = tokenizer.tokenize_with_weights(TEXT)
    assert len(chunk) == tokenizer.max_length and chunk[0] == (49406, 1.0)
    assert clip.tokenize(TEXT) == {clip.tokenizer.clip_name: [chunk]}
    assert [tokenizer.inv_vocab[token] for token, _ in chunk[1:4]] == ["a</w>", "red</w>", "fox</w>"]
    ids = tokenizer.tokenizer("red fox")["input_ids"]
    assert ids == [49406, chunk[2][0], chunk[3][0], 49407]
    assert tokenizer.decode(ids) == "red fox" and tokenizer.tokenizer.get_vocab()["fox</w>"] == chunk[3][0]
    words: list[Any] = []
    tokenizer.pad_tokens(words, 2)
    assert words == [(tokenizer.pad_token, 1.0, 0)] * 2


def test_what_is_set_on_a_tokenizer_of_a_set_holds_for_the_set(clip: Any) -> None:
    tokenizer = clip.tokenizer.clip_l
    try:
        tokenizer.pad_token = 5
        assert clip.tokenize("a")["l"][0][-1] == (5, 1.0)
    finally:
        tokenizer.pad_token = 49407


def test_an_encoder_encodes_by_itself_with_the_options_that_are_set(clip: Any) -> None:
    tokens = clip.tokenize(TEXT)
    encoder = clip.cond_stage_model.clip_l
    cond, pooled = encoder.encode_token_weights(tokens["l"])
    expected, expected_pooled = clip.encode_from_tokens(tokens, return_pooled=True)
    assert torch.equal(cond, expected) and torch.equal(pooled, expected_pooled)
    clip.clip_layer(-2)
    expected = clip.encode_from_tokens(tokens)
    encoder.set_clip_options({"layer": -2, "projected_pooled": False})
    try:
        assert (encoder.layer, encoder.layer_idx, encoder.return_projected_pooled) == ("hidden", -2, False)
        assert torch.equal(clip.cond_stage_model.encode_token_weights(tokens)[0], expected)
    finally:
        encoder.reset_clip_options()
    assert (encoder.layer, encoder.layer_idx, encoder.return_projected_pooled) == encoder.options_default


def test_rows_of_tokens_come_with_their_mask(clip: Any) -> None:
    encoder = clip.cond_stage_model.clip_l
    start, end = encoder.special_tokens["start"], encoder.special_tokens["end"]
    width = encoder.transformer.get_input_embeddings().embedding_dim
    rows, mask, num_tokens, embeds = encoder.process_tokens([[start, torch.ones(2, width), 320, end, end]], "cpu")
    assert rows.shape == (1, 6, width) and torch.equal(rows[0, 1:3], torch.ones(2, width))
    assert mask.tolist() == [[1, 1, 1, 1, 1, 0]] and num_tokens == [5]
    assert [(item["index"], item["size"]) for item in embeds] == [(1, 2)]


def test_a_function_in_the_place_of_an_encoder_s_encodes(clip: Any) -> None:
    """Packs for prompt weights put theirs there, and call the encoder's own with other weights."""
    tokens = clip.tokenize(TEXT)
    own = clip.patcher.get_model_object("clip_l.encode_token_weights")
    asked: list[Any] = []

    def unweighted(chunks: list[list[Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(clip.cond_stage_model.clip_l.layer_idx)
        cond, pooled = own([[(token, 1.0) for token, _ in chunk] for chunk in chunks])
        return cond, pooled

    changed = clip.clone()
    changed.patcher.add_object_patch("clip_l.encode_token_weights", unweighted)
    changed.clip_layer(-2)
    clip.clip_layer(-2)
    found = changed.encode_from_tokens(tokens)
    assert torch.equal(found, clip.encode_from_tokens(clip.tokenize("a red fox")))
    assert asked == [-2]
    assert not torch.equal(found, clip.encode_from_tokens(tokens))  # whose encoder is as it was


def test_a_weight_is_given_with_the_patches_of_its_clone(model: Any) -> None:
    key = "diffusion_model.time_embed.0.weight"
    weight = model.model.state_dict()[key].clone()
    model.add_patches({key: ("diff", (torch.ones_like(weight),))}, 0.5)
    torch.testing.assert_close(model.patch_weight_to_device(key, return_weight=True), weight + 0.5)
    model.add_weight_wrapper(key, lambda found: found * 2)
    torch.testing.assert_close(model.patch_weight_to_device(key), (weight + 0.5) * 2)
    torch.testing.assert_close(model.clone().patch_weight_to_device(key), (weight + 0.5) * 2)
    assert torch.equal(model.calculate_weight([], weight, key), weight) and not model.backup
    saved = model.state_dict_for_saving()
    torch.testing.assert_close(saved["model.diffusion_model.time_embed.0.weight"], (weight + 0.5) * 2)
    assert len(saved) == len(model.model.diffusion_model.state_dict())


def test_a_unet_describes_its_levels(model: Any) -> None:
    unet = model.model.diffusion_model
    assert (unet.model_channels, unet.channel_mult, unet.num_res_blocks) == (64, [1, 1, 2, 2], [1, 1, 1, 1])
    assert (unet.out_channels, unet.num_heads, unet.num_head_channels, unet.num_classes) == (4, 8, -1, None)


def test_a_property_that_no_configuration_has_is_none(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert model.model.model_config.unheard_of is None
    assert "a model's configuration has no unheard_of" in caplog.text
    assert not model.model.model_config.inpaint_model()


def test_a_vae_tells_what_its_work_takes_and_gives_tiles_with_channels_first(values: dict[str, Any]) -> None:
    vae = values["vae"]
    shape = (1, 4, 8, 8)
    assert vae.memory_used_decode(shape, torch.float16) * 2 == vae.memory_used_decode(shape, torch.float32) > 0
    assert vae.memory_used_encode((1, 3, 64, 64), torch.float32) > 0
    latent = torch.randn(shape)
    images = vae.decode_tiled_(latent)
    assert torch.equal(images.movedim(1, -1), vae.decode_tiled(latent, 64, 64, 16))
    assert vae.encode_tiled_(images).shape == shape
    assert (vae.upscale_index_formula, vae.not_video, vae.is_dynamic()) == (None, False, False)
