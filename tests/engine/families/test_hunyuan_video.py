"""Tests of HunyuanVideo: which rows of a template are the prompt, images in it, and the first frames of a video."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.hunyuan_video.text import LLAMA, PromptEncoder, prompt_rows

FAMILY = registry.family_named("hunyuan_video")
HEADER, USER, HEADER_END, TWO_LINES, TURN_END = 128006, 882, 128007, 271, 128009


def image(num_rows: int, step: int) -> dict[str, Any]:
    return {"type": "embedding", "data": torch.zeros(num_rows, 8), "original_type": "image", "image_interleave": step}


def test_the_prompt_is_what_the_user_says() -> None:
    tokens = [7, 8, TURN_END, HEADER, USER, HEADER_END, TWO_LINES, 64, 65, TURN_END]
    rows, images = prompt_rows(tokens, len(tokens))
    assert list(range(len(tokens)))[rows] == [7, 8, 9] and not images


def test_images_of_the_template_move_the_prompt_and_are_thinned_out() -> None:
    tokens = [7, image(6, 2), TURN_END, HEADER, USER, HEADER_END, TWO_LINES, 64, TURN_END, HEADER]
    rows, images = prompt_rows(tokens, 15)
    assert list(range(15))[rows] == [12, 13] and images == [(1, 7, 2)]


def test_an_image_of_another_encoder_than_llavas_is_refused() -> None:
    encoder: Any = PromptEncoder(SimpleNamespace(
        config=None, num_layers=1, get_input_embeddings=lambda: SimpleNamespace(embedding_dim=16)
    ), LLAMA.encoding)  # fmt: skip
    with pytest.raises(ValueError, match=r"clip_vision_output: .* got tokens of width 8, expected 16 \(llava_llama3"):
        encoder.encode_weighted([[(7, 1.0), (image(6, 2), 1.0)]], layer_idx=None, project_pooled=False)


def test_a_prompt_without_turns_is_read_from_the_first_row_on() -> None:
    assert prompt_rows([5, 6, 7], 3)[0] == slice(0, 3)


@pytest.mark.parametrize(("variant", "channels"), [("", None), ("skyreels", 16), ("image", 17)])
def test_a_network_from_images_sees_them_in_time_and_where_they_are(variant: str, channels: int | None) -> None:
    kind = FAMILY.variant_types.get(variant, FAMILY.denoiser_type)
    denoiser = kind(torch.nn.Identity(), concat_keys=FAMILY.variants[variant])
    mask = torch.ones(1, 1, 3, 6, 8)
    mask[:, :, :1] = 0
    seen = denoiser.concat_cond(
        noise=torch.zeros(2, 16, 3, 6, 8), device="cpu", concat_latent_image=torch.ones(1, 16, 1, 12, 16),
        concat_mask=mask, latent_image=torch.zeros(2, 16, 3, 6, 8),
    )  # fmt: skip
    if channels is None:
        assert seen is None
        return
    assert seen is not None and seen.shape == (2, channels, 3, 6, 8)
    assert (seen[:, :16, 0] == 1).all() and (seen[:, :16, 1:] == 0).all()
    assert (seen[:, 16:, 0] == 1).all() and (seen[:, 16:, 1:] == 0).all()
