"""`TextEncodeMageFlowEdit`: sizes of the result and of the images that encoder and VAE get, and their order."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families.mage_flow.nodes import text_encode_mage_flow_edit
from darkroom.engine.families.mage_flow.text import image_template


class Encoder:
    """A text encoder that keeps what it gets."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[tuple[int, int]]]] = []

    def tokenize(self, text: str, images: list[torch.Tensor]) -> str:
        self.asked.append((text, [(item.shape[1], item.shape[2]) for item in images]))
        return text

    def encode_from_tokens_scheduled(self, tokens: str) -> list[list[Any]]:
        return [[tokens, {}]]


class Vae:
    """A VAE whose latents are the sizes of images and their first number."""

    def encode(self, image: torch.Tensor) -> tuple[int, ...]:
        return (*image.shape[1:], int(image.flatten()[0]))


def encoded(images: dict[str, torch.Tensor], **given: Any) -> tuple[Encoder, Any, Any, torch.Tensor]:
    clip: Any = Encoder()
    context: Any = None
    positive, negative, latent = text_encode_mage_flow_edit(
        context, clip=clip, prompt="change it", images=images, **{"negative_prompt": "", **given}
    )
    return clip, positive, negative, latent["samples"]


def test_an_empty_prompt_to_keep_away_from_is_a_space() -> None:
    clip, _, _, latent = encoded({}, width=70, height=0, batch_size=3)
    assert [text for text, _ in clip.asked] == ["change it", " "]
    assert latent.shape == (3, 128, 64, 4)


def test_images_come_by_their_numbers_in_the_size_of_the_result() -> None:
    images = {"image_10": torch.full((1, 40, 400, 4), 10.0), "image_2": torch.full((1, 100, 50, 3), 2.0)}
    vae: Any = Vae()
    clip, positive, negative, latent = encoded(images, vae=vae, width=80)
    assert latent.shape == (1, 128, 6, 5)  # the height of the first image
    expected = [(96, 80, 3, 2), (96, 80, 3, 10)]
    assert positive[0][1]["reference_latents"] == negative[0][1]["reference_latents"] == expected
    assert clip.asked[0][1] == [(100, 50), (38, 384)]  # the longer side at most 384


def test_images_without_a_vae_are_for_the_text_encoder_alone() -> None:
    clip, positive, _, _ = encoded({"image_1": torch.zeros(1, 8, 8, 3)})
    assert clip.asked[0][1] == [(8, 8)] and positive == [["change it", {}]]


@pytest.mark.parametrize("count", [1, 3])
def test_a_template_numbers_its_images(count: int) -> None:
    template = image_template(count)
    assert template.count("<|image_pad|>") == count
    assert f"Image {count}: <|vision_start|><|image_pad|><|vision_end|>{{}}<|im_end|>" in template
