"""PixelDiT: positions of patches and pixels, files with joined modulations, and prompts behind the instruction."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.families.pixeldit.config import PixelDiTConfig, pixeldit_config
from darkroom.engine.families.pixeldit.positions import patch_rotations, pixel_sinusoids
from darkroom.engine.families.pixeldit.text import (
    BEGINNING,
    GEMMA,
    INSTRUCTION,
    SPECIAL,
    PixelDiTEncoder,
    PixelDiTTokenizer,
)
from darkroom.engine.families.pixeldit.transformer import PixelDiTTransformer
from darkroom.engine.families.pixeldit.transformer_files import PREFIXES, pixel_layout
from darkroom.engine.formats.weight_file import ChangedTensors, composed
from darkroom.engine.layers.language_model import LanguageModel
from darkroom.engine.text.sentence_pieces import byte_vocabulary, sentence_pieces

CPU = torch.device("cpu")
TINY = PixelDiTConfig(
    hidden_size=32, head_dim=16, intermediate_size=24, num_layers=1, context_dim=8, max_text_tokens=4, pixel_size=4,
    pixel_attention_size=24, pixel_head_dim=12, num_pixel_layers=1,
)  # fmt: skip
NUM_INSTRUCTED = len(INSTRUCTION)  # tokens of the vocabulary of bytes


def tiny_network() -> PixelDiTTransformer:
    torch.manual_seed(0)
    network = PixelDiTTransformer(TINY).requires_grad_(False).eval()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, 0, 0.2)
    return network


def angles(rotations: torch.Tensor) -> torch.Tensor:
    """Return the angles [T, pairs] of rotations [1, T, 1, pairs, 2, 2]."""
    return torch.atan2(rotations[0, :, 0, :, 1, 0], rotations[0, :, 0, :, 0, 0])


def test_pairs_turn_by_column_and_by_row_in_turns_over_a_fixed_range() -> None:
    found = angles(patch_rotations(2, 3, 8, {}, CPU))
    slow = 10000.0**-0.5
    assert found.shape == (6, 4)
    torch.testing.assert_close(found[:, 2], torch.tensor([0.0, 8.0, 16.0, 0.0, 8.0, 16.0]) * slow)
    torch.testing.assert_close(found[:, 3], torch.tensor([0.0, 0.0, 0.0, 16.0, 16.0, 16.0]) * slow)


def test_options_scale_and_shift_the_range() -> None:
    options = {"rope_options": {"scale_x": 0.5, "shift_x": 1.0, "scale_y": 1.0, "shift_y": 0.0}}
    found = angles(patch_rotations(1, 2, 8, options, CPU))
    torch.testing.assert_close(found[:, 2], torch.tensor([1.0, 9.0]) / 100)


def test_angles_grow_slower_along_sides_longer_than_those_of_training() -> None:
    found = angles(patch_rotations(2, 4, 8, {}, CPU, trained_side=2))
    theta = 10000.0 * 2.0**2
    torch.testing.assert_close(found[3, 2], torch.tensor(16.0 * theta**-0.5))
    torch.testing.assert_close(found[4, 3], torch.tensor(16.0 / 100))


def test_a_pixel_has_the_sines_of_its_position_first() -> None:
    found = pixel_sinusoids(3, 4, CPU)
    torch.testing.assert_close(found[2], torch.tensor([2.0, 0.02, 2.0, 0.02]).sin().where(
        torch.tensor([True, True, False, False]), torch.tensor([2.0, 0.02, 2.0, 0.02]).cos()
    ))  # fmt: skip


@torch.no_grad()
def test_images_that_are_no_whole_patches_keep_their_size() -> None:
    x, times, text = torch.randn(2, 3, 20, 33), torch.tensor([500.0, 20.0]), torch.randn(2, 6, 8)
    network = tiny_network()
    found = network(x, times, text)
    assert found.shape == x.shape and found.isfinite().all()
    assert torch.equal(found, network(x, times, text[:, :4]))  # no further tokens have positions
    assert not torch.allclose(found, network(x, times, text.flip(1)), atol=1e-4)


def joined_file(weights: dict[str, torch.Tensor], prefix: str) -> ChangedTensors:
    """Return weights as published files have them, modulations of pixels in one layer, each pixel's together."""
    tensors: dict[str, torch.Tensor] = {f"{prefix}_repa_projector.weight": torch.zeros(2)}
    for name, tensor in weights.items():
        if "adaLN_modulation_msa" not in name and "adaLN_modulation_mlp" not in name:
            tensors[f"{prefix}core.{name}"] = tensor
            continue
        other = weights[name.replace("_msa", "_mlp")]
        parts = [half.reshape(256, 3, TINY.pixel_size, -1) for half in (tensor, other)]
        joined = torch.cat(parts, dim=1).reshape(-1, *tensor.shape[1:])
        if "_msa" in name:
            tensors[f"{prefix}core.{name.replace('_msa.', '.0.')}"] = joined
    return ChangedTensors(Path("pixeldit.safetensors"), tensors, {})


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_joined_modulations_of_files_are_taken_apart(prefix: str) -> None:
    weights = tiny_network().state_dict()
    file = joined_file(weights, prefix)
    names = pixel_layout(PREFIXES)(file.shapes)
    assert names is not None and names.keys() == weights.keys()
    found = dict(composed(file, names))
    assert len(found) == 4
    for name, tensor in found.items():
        assert torch.equal(tensor, weights[name]), name
    assert pixeldit_config({name: tuple(tensor.shape) for name, tensor in weights.items()}) == TINY


def test_joined_modulations_of_other_patches_are_refused() -> None:
    shapes = {"core.pixel_embedder.proj.weight": (4, 3), "core.pixel_blocks.0.adaLN_modulation.0.bias": (6 * 255,)}
    with pytest.raises(ValueError, match=r"adaLN_modulation.0.bias: got shape \[1530\], expected rows for 256 pixels"):
        pixel_layout(PREFIXES)(shapes)


def tokens_of(text: str) -> list[int]:
    tokenizer = PixelDiTTokenizer(
        None, encoding=GEMMA.encoding, vocabulary=lambda: sentence_pieces(byte_vocabulary()), special=SPECIAL
    )
    (chunk,) = tokenizer.tokenize_with_weights(text)["gemma2_2b"]
    assert {weight for _, weight in chunk} == {1.0}
    return [number for number, _ in chunk]


def test_a_prompt_is_padded_behind_the_instruction() -> None:
    tokens = tokens_of("(fox:1.2)")
    assert len(tokens) == NUM_INSTRUCTED + 299
    assert tokens.index(0) == NUM_INSTRUCTED + 11 and not any(tokens[NUM_INSTRUCTED + 11 :])  # start, space, 9 letters


def test_a_long_prompt_is_cut_and_one_with_an_instruction_has_no_second() -> None:
    assert len(tokens_of("snow " * 200)) == NUM_INSTRUCTED + 299
    own = tokens_of(f"{BEGINNING} of a fox")
    assert own.index(0) == 2 + len(BEGINNING) + len(" of a fox")


def test_special_tokens_take_the_place_of_the_first() -> None:
    turned, plain = tokens_of("a<end_of_turn>c"), tokens_of("a c")
    assert turned.count(107) == plain.count(107) + 1 and turned[:2] == [2, plain[2]]


def test_an_empty_prompt_has_no_instruction() -> None:
    assert tokens_of(" \n") == [2] + [0] * 299


@torch.no_grad()
def test_the_conditioning_has_the_start_token_and_the_last_299() -> None:
    torch.manual_seed(0)
    network = LanguageModel(GEMMA.network.sizes["small"]).requires_grad_(False)
    encoder = PixelDiTEncoder(network, GEMMA.encoding)
    chunk = [(2, 1.0), *((5 + number % 250, 1.0) for number in range(330)), (0, 1.0)]
    found = encoder.encode_weighted([chunk], layer_idx=None, project_pooled=False)
    assert found.cond.shape == (1, 300, 64) and found.options["attention_mask"].tolist() == [[1] * 299 + [0]]
    short = encoder.encode_weighted([chunk[:9]], layer_idx=None, project_pooled=False)
    assert short.cond.shape == (1, 9, 64)
    torch.testing.assert_close(found.cond[:, 0], short.cond[:, 0])
