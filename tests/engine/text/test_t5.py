"""Prompts as tokens of T5, and their encoding with weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.layers.t5 import T5Config, T5Model
from darkroom.engine.text.t5_encoding import END_TOKEN, PAD_TOKEN, T5Encoder, T5Encoding
from darkroom.engine.text.t5_tokens import T5Tokenizer

ROWS = torch.rand(2, 16)
TOKENIZER = T5Tokenizer(lambda name: (ROWS, "") if name == "mine" else (None, name))


def ids(text: str, tokenizer: T5Tokenizer = TOKENIZER, **options: Any) -> list[Any]:
    (chunk,) = tokenizer.tokenize_with_weights(text, **options)["t5xxl"]
    return [token for token, _ in chunk]


@pytest.fixture(scope="module")
def encoder() -> T5Encoder:
    torch.manual_seed(0)
    made = T5Encoder(T5Model(T5Config(num_layers=2, width=16, heads=1, inner_width=24)), T5Encoding())
    return made.requires_grad_(False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # as the transformers library documents its tokenizer of T5
        (
            "studies have shown that owning a dog is good for you",
            [2116, 43, 2008, 24, 293, 53, 3, 9, 1782, 19, 207, 21, 25],
        ),
        ("The <extra_id_0> walks in <extra_id_1> park", [37, 32099, 10681, 16, 32098, 2447]),
        ("", []),
    ],
)
def test_a_text_has_the_tokens_of_googles_vocabulary(text: str, expected: list[int]) -> None:
    assert ids(text) == [*expected, END_TOKEN]


def test_a_chunk_is_as_long_as_its_prompt_and_padded_to_the_least_length() -> None:
    assert len(ids("word " * 300)) > 300
    short = ids("a fox", T5Tokenizer(encoding=T5Encoding(min_length=77)))
    assert len(short) == 77 and short[short.index(END_TOKEN) + 1 :] == [PAD_TOKEN] * (76 - short.index(END_TOKEN))
    plain = ids("a fox")
    assert ids("a fox", tokenizer_options={"t5xxl_min_padding": 3}) == [*plain, *[PAD_TOKEN] * 3]
    assert len(ids("a fox", tokenizer_options={"t5xxl_min_length": 12})) == 12


def test_brackets_are_weights_unless_they_are_disabled() -> None:
    (chunk,) = TOKENIZER.tokenize_with_weights("a (red:1.5) fox")["t5xxl"]
    assert {weight for _, weight in chunk} == {1.0, 1.5}
    (plain,) = TOKENIZER.tokenize_with_weights("a (red:1.5) fox", disable_weights=True)["t5xxl"]
    assert {weight for _, weight in plain} == {1.0} and len(plain) > len(chunk)


def test_backslashes_before_brackets_are_no_text_with_or_without_weights() -> None:
    assert ids("a \\(b\\)", disable_weights=True) == ids("a \\(b\\)") == ids("a (b)", disable_weights=True)
    assert ids("a \\(b\\)") != ids("a b")


def test_an_embedding_stands_between_the_words_and_an_unknown_one_is_text() -> None:
    found = ids("a fox embedding:mine")
    assert [torch.is_tensor(token) for token in found[-3:]] == [True, True, False]
    assert ids("a fox embedding:other") == [*ids("a fox")[:-1], *ids("other")]
    assert ids("a fox\tembedding:other") == [*ids("a fox")[:-1], *ids("other")]  # any white space will do
    assert ids("a foxembedding:other")[-6:-1] != ids("other")[:-1]


def test_words_are_numbered_and_tokens_read_back() -> None:
    (chunk,) = TOKENIZER.tokenize_with_weights("a (red:1.5) fox", return_word_ids=True)["t5xxl"]
    assert [number for _, _, number in chunk][-1] == 0 and max(number for _, _, number in chunk) == 3
    assert TOKENIZER.untokenize([(1782, 1.0)]) == [((1782, 1.0), "▁dog")]


def test_a_weighted_token_moves_along_the_line_from_the_empty_prompt(encoder: T5Encoder) -> None:
    tokens = [5, 6, END_TOKEN]
    (own, empty), _ = encoder.encode([tokens, [END_TOKEN, PAD_TOKEN, PAD_TOKEN]], None)
    chunk = [(5, 1.0), (6, 1.5), (END_TOKEN, 1.0)]
    (found,), pooled, options = encoder.encode_weighted([chunk], layer_idx=None, project_pooled=True)
    torch.testing.assert_close(found[1], empty[1] + 1.5 * (own[1] - empty[1]))
    torch.testing.assert_close(found[0], own[0])
    assert pooled is None and not options


def test_no_chunk_is_the_end_token_alone(encoder: T5Encoder) -> None:
    found = encoder.encode_weighted([], layer_idx=None, project_pooled=True).cond
    assert torch.equal(found, encoder.encode([[END_TOKEN]], None)[0])


def test_embeddings_of_another_width_become_padding(encoder: T5Encoder) -> None:
    found, mask = encoder.encode([[5, torch.rand(1, 8), END_TOKEN]], None)
    torch.testing.assert_close(found, encoder.encode([[5, END_TOKEN, PAD_TOKEN]], None)[0])
    assert mask.tolist() == [[1, 1, 0]]
    assert encoder.encode([[5, ROWS, END_TOKEN]], None)[0].shape == (1, 4, 16)


def test_padding_is_masked_and_its_output_zero_where_the_encoding_says_so() -> None:
    torch.manual_seed(0)
    network = T5Model(
        T5Config(num_layers=2, width=16, heads=2, inner_width=24, is_biased_everywhere=True, head_width=8)
    )
    encoding = T5Encoding(masks_padding=True, zeroes_padding=True, returns_mask=True)
    encoder = T5Encoder(network.requires_grad_(False), encoding)
    chunk = [(5, 1.0), (6, 1.0), (END_TOKEN, 1.0)]
    short = encoder.encode_weighted([chunk], layer_idx=None, project_pooled=True)
    padded = encoder.encode_weighted([[*chunk, (PAD_TOKEN, 1.0)]], layer_idx=None, project_pooled=True)
    torch.testing.assert_close(padded.cond[:, :3], short.cond)
    assert not padded.cond[:, 3:].any() and padded.options["attention_mask"].tolist() == [[1, 1, 1, 0]]


def test_the_empty_prompt_may_be_padding_alone(encoder: T5Encoder) -> None:
    other = T5Encoder(encoder.transformer, T5Encoding(empty_has_end=False))
    (own, empty), _ = other.encode([[5, END_TOKEN], [PAD_TOKEN, PAD_TOKEN]], None)
    (found,), _, _ = other.encode_weighted([[(5, 2.0), (END_TOKEN, 1.0)]], layer_idx=None, project_pooled=True)
    torch.testing.assert_close(found[0], empty[0] + 2.0 * (own[0] - empty[0]))
