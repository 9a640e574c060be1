"""LongCat-Image's prompts: quoted texts are read character by character, in a chunk of one length."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families.longcat_image.text import QWEN, LongCatEncoder, LongCatTokenizer, parts_of
from darkroom.engine.text.qwen_tokens import PAD_TOKEN, qwen_vocabulary


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("plain", [("plain", False)]),
        ('a "b c" d', [("a ", False), ('"b c"', True), (" d", False)]),
        ("don't say 'no' or it's", [("don't say ", False), ("'no'", True), (" or it's", False)]),
        ("“left” ‘right’", [("“left”", True), (" ", False), ("‘right’", True)]),
        ("'half", [("'half", False)]),
    ],
)
def test_quoted_parts_are_told_from_others(text: str, parts: list[tuple[str, bool]]) -> None:
    assert list(parts_of(text)) == parts


@pytest.fixture
def tokenizer() -> LongCatTokenizer:
    return LongCatTokenizer(None, slot="qwen25_7b", vocabulary=qwen_vocabulary, pad_token=PAD_TOKEN)


def numbers(tokenizer: LongCatTokenizer, text: str, **given: Any) -> list[Any]:
    return [token for token, _ in tokenizer.tokenize_with_weights(text, **given)["qwen25_7b"][0]]


def test_quoted_words_are_single_characters(tokenizer: LongCatTokenizer) -> None:
    encode = qwen_vocabulary().encode
    tokens = numbers(tokenizer, '<|im_start|>"word"')
    expected = [*encode("<|im_start|>"), *(token for letter in '"word"' for token in encode(letter))]
    assert tokens[: len(expected)] == expected and set(tokens[len(expected) :]) == {PAD_TOKEN}
    assert len(tokens) == 512


def test_prompts_have_one_length_between_their_turns(tokenizer: LongCatTokenizer) -> None:
    short, long = numbers(tokenizer, "a"), numbers(tokenizer, "word " * 900)
    assert len(short) == len(long) and PAD_TOKEN in short and PAD_TOKEN not in long
    assert numbers(tokenizer, "") == numbers(tokenizer, " ")


def test_an_image_stands_before_its_instruction(tokenizer: LongCatTokenizer) -> None:
    pixels = torch.zeros(1, 8, 8, 3)
    tokens = numbers(tokenizer, "make it red", images=[pixels])
    (image,) = [token for token in tokens if isinstance(token, dict)]
    assert image["data"] is pixels
    assert tokens.index(image) < tokens.index(qwen_vocabulary().encode("make")[0])


def test_states_of_the_turns_are_left_out(tokenizer: LongCatTokenizer) -> None:
    encoder: Any = object.__new__(LongCatEncoder)
    torch.nn.Module.__init__(encoder)
    encoder.encoding = QWEN.encoding
    encoder.encode = lambda tokens, layer: torch.arange(len(tokens), dtype=torch.float32)[None, :, None]
    chunks = tokenizer.tokenize_with_weights("a blue door")["qwen25_7b"]
    tokens = [token for token, _ in chunks[0]]
    cond = encoder.encode_weighted(chunks, layer_idx=None, project_pooled=False).cond
    assert cond.shape == (1, 512, 1)
    assert [tokens[int(row)] for row in cond[0, :3, 0]] == qwen_vocabulary().encode("a blue door")
