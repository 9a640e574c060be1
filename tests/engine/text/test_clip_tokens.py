"""CLIP's tokenizer and the weights of brackets against recorded tokens."""

from __future__ import annotations

import json
import random
import unicodedata

import pytest

from darkroom.engine.text.clip_tokens import END_TEXT, ClipTokenizer, clean
from darkroom.engine.text.prompt_weights import parse_weights
from tests.reference import REFERENCE

CLIP = REFERENCE / "clip"


@pytest.fixture(scope="module")
def tokenizer() -> ClipTokenizer:
    return ClipTokenizer()


def test_the_vocabulary_is_clips(tokenizer: ClipTokenizer) -> None:
    assert tokenizer.pairs.vocabulary == json.loads((CLIP / "vocab.json").read_text("utf-8"))


def test_prompts_give_the_reference_tokens_and_weights(tokenizer: ClipTokenizer) -> None:
    end = tokenizer.end_token
    checked = 0
    for line in (CLIP / "tokens.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        if any(isinstance(token, list) for chunk in record["chunks"] for token, _ in chunk):
            continue  # an embedding's vectors
        if "embedding:" in record["text"]:
            continue
        chunks = tokenizer.tokenize_with_weights(record["text"])["l"]
        assert len(chunks) == len(record["chunks"]), record["text"]
        for ours, theirs in zip(chunks, record["chunks"], strict=True):
            length = next(i for i, (token, _) in enumerate(ours) if token == end) + 1
            assert [token for token, _ in ours[:length]] == [token for token, _ in theirs], record["text"]
            assert [weight for _, weight in ours[:length]] == pytest.approx([weight for _, weight in theirs])
        checked += 1
    assert checked > 40


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a cat", [("a cat", 1.0)]),
        ("a (cat)", [("a ", 1.0), ("cat", 1.1)]),
        ("((cat))", [("cat", 1.21)]),
        ("(cat:1.5) dog", [("cat", 1.5), (" dog", 1.0)]),
        ("(cat:x)", [("cat:x", 1.1)]),
        (r"\(cat\)", [("(cat)", 1.0)]),
        ("(cat", [("(cat", 1.0)]),
    ],
)
def test_brackets_weigh_words(text: str, parts: list[tuple[str, float]]) -> None:
    found = parse_weights(text)
    assert [part for part, _ in found] == [part for part, _ in parts]
    assert [weight for _, weight in found] == pytest.approx([weight for _, weight in parts])


def test_every_chunk_has_77_tokens_and_ends_with_the_end_token(tokenizer: ClipTokenizer) -> None:
    chunks = tokenizer.tokenize_with_weights("red fox " * 60)["l"]
    assert [len(chunk) for chunk in chunks] == [77, 77]
    assert all(chunk[-1][0] == tokenizer.end_token for chunk in chunks)


def test_backslashes_before_brackets_are_no_text_with_or_without_weights(tokenizer: ClipTokenizer) -> None:
    plain = tokenizer.tokenize_with_weights("a \\(b\\)", disable_weights=True)
    assert plain == tokenizer.tokenize_with_weights("a \\(b\\)") != tokenizer.tokenize_with_weights("a b")


def test_special_tokens_in_a_prompt_stand_for_themselves(tokenizer: ClipTokenizer) -> None:
    assert tokenizer.pairs.encode(f"fox{END_TEXT}")[-1] == tokenizer.end_token


def test_a_long_word_is_cut_into_its_pieces(tokenizer: ClipTokenizer) -> None:
    letters = "".join(random.Random(4).choices("abcdefghijklmnopqrstuvwxyz", k=40_000))
    tokens = tokenizer.pairs.encode(letters)  # a quadratic merge would run into the suite's time limit
    assert "".join(tokenizer.pairs.piece(token) for token in tokens) == letters + "</w>"


def test_long_runs_of_combining_marks_are_put_in_order() -> None:
    assert clean("a" + "\u0315\u0300" * 100_000) == unicodedata.normalize("NFC", "a" + "\u0300" * 100_000) + (
        "\u0315" * 100_000
    )
