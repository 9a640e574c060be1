"""Prompts of Z-Image Omni: templates by the number of images, and what becomes of each of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families.z_image.nodes.omni import text_encode_z_image_omni

CONTEXT: Any = None  # the node uses nothing of it


class Encoder:
    """A CLIP, a VAE and an image encoder which keep what they are given."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str | None]] = []
        self.encoded: list[tuple[int, ...]] = []

    def tokenize(self, text: str, llama_template: str | None = None) -> int:
        self.texts.append((text, llama_template))
        return len(self.texts)

    def encode_from_tokens_scheduled(self, tokens: int) -> list[list[Any]]:
        return [[torch.full((1, tokens, 4), float(tokens)), {}]]

    def encode(self, image: torch.Tensor) -> torch.Tensor:
        self.encoded.append(tuple(image.shape))
        return torch.zeros(1, 16, 2, 2)

    def encode_image(self, image: torch.Tensor) -> str:
        return f"seen {image.shape[1]}"


def encoded(**inputs: Any) -> tuple[Encoder, dict[str, Any]]:
    encoder = Encoder()
    given: Any = encoder
    named = {name: given if item == "encoder" else item for name, item in inputs.items()}
    ((_, options),) = text_encode_z_image_omni(CONTEXT, clip=given, prompt="a fox", **named)
    return encoder, options


def test_a_prompt_without_images_is_plain() -> None:
    encoder, options = encoded(vae="encoder", image_encoder="encoder")
    assert encoder.texts == [("a fox", None)] and options == {}


@pytest.mark.parametrize("num_images", [1, 2, 3])
def test_every_image_has_a_text_before_it_and_one_follows_all(num_images: int) -> None:
    images = {f"image{number}": torch.zeros(1, 8 * number, 16, 3) for number in range(1, num_images + 1)}
    encoder, options = encoded(vae="encoder", image_encoder="encoder", auto_resize_images=False, **images)
    template = "<|vision_end|>{}<|im_end|>\n<|im_start|>assistant\n<|vision_start|>"
    between = ["<|vision_end|><|vision_start|>"] * (num_images - 1)
    texts = ["<|im_start|>user\n<|vision_start|>", *between, "<|vision_end|><|im_end|>"]
    assert encoder.texts == [("a fox", template), *((text, "{}") for text in texts)]
    assert encoder.encoded == [(1, 8 * number, 16, 3) for number in range(1, num_images + 1)]
    assert options["clip_vision_outputs"] == [f"seen {8 * number}" for number in range(1, num_images + 1)]
    assert len(options["reference_latents"]) == num_images
    assert [text.shape[1] for text in options["reference_latents_text_embeds"]] == list(range(2, num_images + 3))


@pytest.mark.parametrize(
    ("size", "expected"), [((512, 512), (1024, 1024)), ((30, 60), (728, 1448)), ((1, 3000), (16, 56088))]
)
def test_references_get_about_a_megapixel_of_whole_cells(size: tuple[int, int], expected: tuple[int, int]) -> None:
    encoder, options = encoded(vae="encoder", image2=torch.zeros(1, *size, 3))
    assert encoder.encoded == [(1, *expected, 3)]
    assert "clip_vision_outputs" not in options


def test_without_a_vae_no_reference_is_added() -> None:
    _, options = encoded(image_encoder="encoder", image1=torch.zeros(1, 8, 8, 3))
    assert "reference_latents" not in options and options["clip_vision_outputs"] == ["seen 8"]
