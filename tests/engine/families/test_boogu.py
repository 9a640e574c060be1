"""Boogu-Image: its references, and the template of empty prompts."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.boogu.denoiser import BooguDenoiser
from darkroom.engine.families.boogu.text import EMPTY_TEMPLATE, IMAGE_TEMPLATE, SLOT, TEMPLATE, BooguTokenizer
from darkroom.engine.families.boogu.transformer import BooguConfig, BooguTransformer
from darkroom.engine.text.language_tokens import qwen3

TINY = BooguConfig(
    width=120, heads=1, key_heads=1, inner_width=64, num_layers=1, context_dim=24, time_width=120, num_refiners=1,
    num_double=1, in_channels=4, num_references=2,
)  # fmt: skip


def _network() -> BooguTransformer:
    torch.manual_seed(0)
    network = BooguTransformer(TINY).requires_grad_(False).eval()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, 0, 0.05)
    return network


@torch.no_grad()
def test_a_reference_changes_the_image_whose_size_stays() -> None:
    network, x, times = _network(), torch.randn(1, 4, 5, 7), torch.tensor([0.4])
    text = torch.randn(1, 3, 24)
    alone, seen = network(x, times, text), network(x, times, text, ref_latents=[torch.randn(1, 4, 4, 4)])
    assert alone.shape == seen.shape == x.shape
    assert not torch.allclose(alone, seen, atol=1e-4)


@pytest.mark.parametrize(
    ("references", "message"),
    [([torch.zeros(1, 4, 2, 2)] * 3, "too many; got 3, expected at most 2"), ([torch.zeros(1, 16, 2, 2)], "VAE")],
)
def test_references_that_the_network_cannot_read_are_refused(references: list[torch.Tensor], message: str) -> None:
    denoiser = BooguDenoiser(_network())
    with pytest.raises(ValueError, match=message):
        denoiser.extra_conds(reference_latents=references, noise=torch.zeros(1, 4, 2, 2), device=torch.device("cpu"))


def test_an_empty_prompt_has_its_own_template() -> None:
    tokenizer = BooguTokenizer(slot=SLOT, template=TEMPLATE, image_template=IMAGE_TEMPLATE, vocabulary=qwen3)

    def text_of(prompt: str) -> str:
        (chunk,) = tokenizer.tokenize_with_weights(prompt)[SLOT]
        return tokenizer.decode([token[0] for token in chunk], skip_special_tokens=False)

    assert text_of(" ") == EMPTY_TEMPLATE.format(" ")
    assert text_of("a fox") == TEMPLATE.format("a fox")
