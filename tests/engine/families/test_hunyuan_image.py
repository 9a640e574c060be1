"""Tests of HunyuanImage 2.1: what ByT5 reads of a prompt, masks, and what its denoisers refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.hunyuan_image.text import GLYPH, GlyphTokenizer, prompt_and_glyphs
from darkroom.engine.families.hunyuan_image_refiner.vae_files import RefinerLatentFormat
from darkroom.engine.families.hunyuan_video.transformer import (
    HunyuanVideoConfig,
    HunyuanVideoTransformer,
    hunyuan_video_config,
    whole_patches,
)
from darkroom.engine.families.hunyuan_video.transformer_files import RENAMED, TRAINED, replaced
from darkroom.engine.text.byte_tokens import ByteVocabulary
from darkroom.engine.text.chunk_encoding import Encoded

CONFIG = HunyuanVideoConfig(
    width=128, num_double=1, num_single=1, context_dim=16, in_channels=4, out_channels=4, num_refiners=1
)


def shown(prompt: str) -> str | None:
    tokenizer = GlyphTokenizer(encoding=GLYPH.encoding, vocabulary=ByteVocabulary)
    chunks = tokenizer.tokenize_with_weights(prompt)
    if not chunks:
        return None
    return bytes(token - 3 for token, _ in chunks["byt5"][0][:-1]).decode()


def network(config: HunyuanVideoConfig = CONFIG) -> HunyuanVideoTransformer:
    torch.manual_seed(0)
    made = HunyuanVideoTransformer(config)
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return made


@torch.no_grad()
def drawn(made: HunyuanVideoTransformer, text: torch.Tensor, **inputs: Any) -> torch.Tensor:
    torch.manual_seed(1)
    out: torch.Tensor = made(torch.randn(2, 4, 3, 5), torch.tensor([500.0, 500.0]), text, **inputs)
    return out


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ("a cat", None),
        ('a sign "Open" and "Shut"', 'Text "Open". Text "Shut". '),
        ("“你好” on a door", 'Text "你好". '),
        ('a “b”, ‘c’ and "d"', 'Text "d". Text "c". Text "b". '),
    ],
)
def test_the_words_in_quotation_marks_are_read_by_bytes(prompt: str, sentence: str | None) -> None:
    assert shown(prompt) == sentence


def test_the_encoder_of_bytes_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="got ByT5 alone, expected Qwen2.5-VL"):
        prompt_and_glyphs({"byt5": Encoded(torch.zeros(1, 1, 8), None)})


def test_a_mask_of_the_text_changes_what_is_drawn() -> None:
    made = network()
    text = torch.randn(2, 4, 16)
    plain = drawn(made, text)
    masked = [drawn(made, text, attention_mask=torch.tensor([mask]).expand(2, -1)) for mask in ([1] * 4, [1, 1, 1, 0])]
    torch.testing.assert_close(masked[0], plain)
    assert torch.isfinite(masked[1]).all() and not torch.allclose(masked[1], plain)


def test_words_to_draw_are_read_beside_a_masked_prompt() -> None:
    made = network(replace(CONFIG, glyph_width=8, glyph_inner=8))
    text = torch.randn(2, 4, 16)
    mask = torch.tensor([[1, 1, 1, 0]]).expand(2, -1)
    words = torch.randn(2, 3, 8)
    assert not torch.allclose(
        drawn(made, text, attention_mask=mask), drawn(made, text, attention_mask=mask, txt_byt5=words)
    )


def test_the_time_that_a_step_ends_at_is_read_from_the_noise_levels() -> None:
    made = network(replace(CONFIG, has_end_time=True))
    text = torch.randn(2, 4, 16)
    levels = torch.tensor([1.0, 0.5, 0.25, 0.0])
    results = [
        drawn(made, text, transformer_options={"sigmas": now, "sample_sigmas": levels}, disable_time_r=is_disabled)
        for now, is_disabled in (
            (torch.tensor([0.5]), False), (torch.tensor([0.5]), True), (torch.tensor([0.3]), False),
            (torch.tensor([0.0]), False),
        )
    ]  # fmt: skip
    assert not torch.allclose(results[0], results[1])
    assert all(torch.equal(results[1], other) for other in results[2:])  # between levels, and at the last one


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, has_guidance=True, has_end_time=True, glyph_width=8, glyph_inner=12),
        replace(CONFIG, patch=(1, 2, 2), label_dim=24),
    ],
)
def test_its_configuration_is_read_from_its_weights(config: HunyuanVideoConfig) -> None:
    shapes = {name: tuple(item.shape) for name, item in HunyuanVideoTransformer(config).state_dict().items()}
    assert hunyuan_video_config(shapes) == config


def test_both_names_of_layers_are_the_networks() -> None:
    names = [
        name for name in HunyuanVideoTransformer(CONFIG).state_dict() if "blocks.0." in name and "norm" not in name
    ]
    assert [replaced(replaced(name, TRAINED), RENAMED) for name in names] == names


def test_a_latent_is_padded_to_whole_patches() -> None:
    assert whole_patches(torch.zeros(1, 4, 2, 3, 5), (1, 2, 2)).shape == (1, 4, 2, 4, 6)


def test_the_refiner_refuses_an_image_of_another_vae() -> None:
    refiner = registry.family_named("hunyuan_image_refiner")
    denoiser = refiner.denoiser_type(torch.nn.Identity())
    with pytest.raises(ValueError, match=r"concat_latent_image: it is not a latent of one image by the"):
        denoiser.concat_cond(
            noise=torch.zeros(1, 64, 1, 4, 4), device="cpu", concat_latent_image=torch.zeros(1, 16, 1, 4, 4)
        )


def test_the_refiner_packs_pairs_of_latent_frames_and_gives_the_frames_back() -> None:
    known = RefinerLatentFormat()
    latent = torch.randn(2, 32, 3, 4, 5)
    packed = known.process_in(latent)
    assert packed.shape == (2, 64, 2, 4, 5)
    torch.testing.assert_close(packed[:, :32, 0], packed[:, 32:, 0])  # the first frame stands twice
    torch.testing.assert_close(known.process_out(packed), latent)
    with pytest.raises(ValueError, match="latent: its frames do not make pairs; got 2 latent frames"):
        known.process_in(latent[:, :, :2])
