"""Prompts of MiniMax H3 as tokens, with what is seen before them, and the modality of each token."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families.minimax_h3.text import (
    QWEN,
    VISION_END,
    VISION_START,
    MiniMaxH3Tokenizer,
    fits,
    modalities,
)
from darkroom.engine.families.registry import family_named
from darkroom.engine.families.text.qwen3_vl import fits as fits_smaller
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.text.image_places import SeenImage
from darkroom.engine.text.language_tokens import qwen3
from darkroom.engine.text.qwen_encoding import PAIR
from darkroom.engine.text.qwen_tokens import PAD_TOKEN

IMAGE = torch.zeros(1, 8, 8, 3)


@pytest.fixture(scope="module")
def tokenizer() -> MiniMaxH3Tokenizer:
    return MiniMaxH3Tokenizer(slot="qwen3vl_32b", template="{}", image_template="{}", vocabulary=qwen3)


def tokens_of(tokenizer: MiniMaxH3Tokenizer, text: str, **kwargs: Any) -> list[Any]:
    (chunk,) = tokenizer.tokenize_with_weights(text, **kwargs)["qwen3vl_32b"]
    return [token[0] for token in chunk]


def written(tokenizer: MiniMaxH3Tokenizer, tokens: list[Any]) -> str:
    """Return tokens as a text, images as a star."""
    marked = {VISION_START: "[", VISION_END: "]"}
    parts = ["*" if isinstance(item, dict) else marked.get(item) or tokenizer.decode([item]) for item in tokens]
    return "".join(parts)


def test_a_prompt_has_no_template_and_brackets_are_text(tokenizer: MiniMaxH3Tokenizer) -> None:
    assert written(tokenizer, tokens_of(tokenizer, "a (red:1.2) fox")) == "a (red:1.2) fox"
    assert tokens_of(tokenizer, "") == [PAD_TOKEN]


def test_images_come_before_the_prompt_behind_their_numbers(tokenizer: MiniMaxH3Tokenizer) -> None:
    found = written(tokenizer, tokens_of(tokenizer, "walk", images=[IMAGE, IMAGE]))
    assert found == "<Picture 1>: [*]<Picture 2>: [*]walk"


def test_references_are_counted_by_kind_and_videos_seen_in_pairs(tokenizer: MiniMaxH3Tokenizer) -> None:
    items = [
        {"type": "image", "data": IMAGE}, {"type": "audio"},
        {"type": "video", "data": torch.arange(3.0).view(3, 1, 1, 1).expand(-1, 8, 8, 3), "timestamps": [0, 0.5, 1.0]},
        {"type": "audio"},
    ]  # fmt: skip
    tokens = tokens_of(tokenizer, "go", minimax_ref_items=items)
    assert written(tokenizer, tokens) == (
        "<Picture 1>: [*]<Audio 1>: <Video 1>: <0.2 seconds>[*]<1.0 seconds>[*]<Audio 2>: go"
    )
    pairs = [item["data"][:, 0, 0, 0].tolist() for item in tokens if isinstance(item, dict) and item.get(PAIR)]
    assert pairs == [[0, 1], [2, 2]]


def test_frames_without_times_are_half_a_second_apart(tokenizer: MiniMaxH3Tokenizer) -> None:
    items = [{"type": "video", "data": torch.zeros(4, 8, 8, 3)}]
    found = written(tokenizer, tokens_of(tokenizer, "", minimax_ref_items=items))
    assert found == "<Video 1>: <0.2 seconds>[*]<1.2 seconds>[*]"


def test_images_and_the_tokens_around_them_have_the_modality_of_the_video() -> None:
    assert modalities(9, [SeenImage(2, 1, 2)]).tolist() == [1, 0, 0, 0, 0, 1, 1, 1, 1]
    assert modalities(3, [SeenImage(0, 1, 3)]).tolist() == [0, 0, 0]


def test_its_file_is_told_from_smaller_models_by_its_layers() -> None:
    with unfilled():
        network = QWEN.network.build(QWEN.network.sizes["small"])
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    assert fits(shapes) and not fits_smaller(shapes, other_widths=())
    smaller = {name: shape for name, shape in shapes.items() if "model.layers.49." not in name}
    assert not fits(smaller)
    assert family_named("minimax_h3").text == (QWEN,)


def test_the_published_file_has_no_final_norm() -> None:
    assert QWEN.network.defaults["model.norm.weight"]((4,)).tolist() == [1, 1, 1, 1]
