"""Prompts and images as tokens of Qwen2.5-VL, their places, and their encoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.layers.language_model import QWEN2, LanguageModelConfig
from darkroom.engine.layers.qwen25_vl_vision import Qwen25VlVisionConfig
from darkroom.engine.layers.vision_language_model import (
    VisionLanguageModel,
    VisionLanguageModelConfig,
    vision_language_model_config,
)
from darkroom.engine.text.image_places import SeenImage, places_among
from darkroom.engine.text.qwen_encoding import QwenEncoder, QwenEncoding, template_end
from darkroom.engine.text.qwen_tokens import IMAGE_TOKEN, PAD_TOKEN, START_TOKEN, QwenTokenizer

TEMPLATE = "<|im_start|>system\nX<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
IMAGE_TEMPLATE = "<|im_start|>system\nY<|im_end|>\n<|im_start|>user\n<|image_pad|>{}<|im_end|>\n"
ENCODING = QwenEncoding("qwen25_7b", TEMPLATE, IMAGE_TEMPLATE, embedding_width=16)
TOKENIZER = QwenTokenizer(slot="qwen25_7b", template=TEMPLATE, image_template=IMAGE_TEMPLATE)
LANGUAGE = LanguageModelConfig(
    kind=QWEN2, num_layers=2, width=16, heads=2, key_heads=1, inner_width=24, vocabulary_size=152064, has_biases=True
)
VISION = Qwen25VlVisionConfig(width=80, inner_width=24, num_blocks=8, out_width=16)


def chunk(text: str, **options: Any) -> list[Any]:
    (tokens,) = TOKENIZER.tokenize_with_weights(text, **options)["qwen25_7b"]
    return tokens


def ids(text: str, **options: Any) -> list[Any]:
    return [token for token, _ in chunk(text, **options)]


def encoder_with(vision: Qwen25VlVisionConfig | None) -> QwenEncoder:
    torch.manual_seed(0)
    made = QwenEncoder(VisionLanguageModel(VisionLanguageModelConfig(LANGUAGE, vision)), ENCODING)
    for name, weight in made.requires_grad_(False).named_parameters():
        if "norm" in name or "ln_q" in name:
            weight.fill_(1.0)
    return made


@pytest.fixture(scope="module")
def encoder() -> QwenEncoder:
    return encoder_with(VISION)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # as the transformers library's tokenizer of Qwen2.5 has them
        ("<|im_start|>user\n", [151644, 872, 198]),
        ("<|im_start|>a red fox, 12 don't", [151644, 64, 2518, 38835, 11, 220, 16, 17, 1513, 944]),
        ("<|im_start|>caf\u0065\u0301 \u4e2d\u6587", [151644, 924, 58858, 72858, 16744]),
    ],
)
def test_a_complete_prompt_has_the_tokens_of_qwens_vocabulary(text: str, expected: list[int]) -> None:
    assert ids(text) == expected


def test_a_template_surrounds_a_prompt_and_brackets_are_text() -> None:
    assert ids("a fox") == ids(TEMPLATE.format("a fox"))
    assert {weight for _, weight in chunk("a (red:1.3) fox")} == {1.0}
    assert ids("a \\(b\\)") == ids("a (b)") != ids("a b")
    assert ids("", tokenizer_options={"qwen25_7b_min_padding": 2})[-2:] == [PAD_TOKEN] * 2


def test_images_take_the_places_of_their_marks_in_order() -> None:
    images = [torch.zeros(1, 56, 56, 3), torch.ones(1, 56, 56, 3)]
    (taken,) = [token for token in ids("x", images=images[:1]) if isinstance(token, dict)]
    assert taken["type"] == "image" and taken["data"] is images[0]
    both = ids("<|image_pad|><|image_pad|><|image_pad|>", images=images, llama_template="{}")
    assert [item["data"] for item in both[:2]] == images and both[2] == IMAGE_TOKEN


def test_text_behind_an_image_goes_on_from_its_longer_side() -> None:
    places = places_among([SeenImage(2, 2, 3), SeenImage(9, 1, 2)], 12)
    assert places[:, :2].tolist() == [[0, 1]] * 3
    assert places[:, 2:8].tolist() == [[2] * 6, [2, 2, 2, 3, 3, 3], [2, 3, 4, 2, 3, 4]]
    assert places[:, 8].tolist() == [5, 5, 5]
    assert places[:, 9:11].tolist() == [[6, 6], [6, 6], [6, 7]]
    assert places[:, 11].tolist() == [8, 8, 8]


def test_output_begins_behind_the_second_turns_start() -> None:
    tokens = ids("a fox")
    _, start = (place for place, token in enumerate(tokens) if token == START_TOKEN)
    assert template_end(tokens, len(tokens)) == start + 3


@pytest.mark.parametrize(("text", "end"), [("<|im_start|>hello", 0), ("<|start_header_id|>x", -1)])
def test_output_of_a_prompt_without_two_turns_begins_at_the_last_start(text: str, end: int) -> None:
    tokens = ids(text)
    assert template_end(tokens, len(tokens)) == end


def test_a_prompt_is_encoded_without_its_template(encoder: QwenEncoder) -> None:
    encoded = encoder.encode_weighted([chunk("a fox")], layer_idx=None, project_pooled=True)
    assert encoded.pooled is None and encoded.cond.shape[2] == 16
    assert encoded.cond.shape[1] == len(ids("<|im_start|>a fox<|im_end|>\n")) - 1


def test_an_image_becomes_tokens_and_changes_what_follows(encoder: QwenEncoder) -> None:
    images = [torch.rand(1, 84, 112, 3), torch.rand(1, 84, 112, 3)]
    first, second = (
        encoder.encode_weighted([chunk("x", images=[item])], layer_idx=None, project_pooled=True).cond
        for item in images
    )
    plain = encoder.encode_weighted([chunk("x")], layer_idx=None, project_pooled=True).cond
    assert first.shape[1] == plain.shape[1] + 12
    assert not torch.allclose(first[:, -1], second[:, -1], atol=1e-5)


def test_padding_is_not_seen(encoder: QwenEncoder) -> None:
    padded = chunk("a", tokenizer_options={"qwen25_7b_min_padding": 3})
    plain = encoder.encode_weighted([chunk("a")], layer_idx=None, project_pooled=True).cond
    seen = encoder.encode_weighted([padded], layer_idx=None, project_pooled=True).cond
    torch.testing.assert_close(seen[:, : plain.shape[1]], plain)
    assert torch.isfinite(seen).all()


def test_a_layer_is_without_the_last_norm_and_one_beyond_the_first_is_the_output(encoder: QwenEncoder) -> None:
    last, inner, beyond = (encoder.encode(ids("a fox"), layer) for layer in (None, -1, -3))
    assert torch.equal(last, beyond) and not torch.allclose(last, inner)
    torch.testing.assert_close(encoder.transformer.model.norm(inner), last)


def test_a_file_without_an_image_encoder_refuses_images() -> None:
    blind = encoder_with(None)
    shapes = {name: tuple(item.shape) for name, item in blind.transformer.state_dict().items()}
    assert vision_language_model_config(shapes).vision is None
    with pytest.raises(ValueError, match="this file of the text encoder has no image encoder"):
        blind.encode_weighted([chunk("x", images=[torch.rand(1, 56, 56, 3)])], layer_idx=None, project_pooled=True)
