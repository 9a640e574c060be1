"""Prompts for language models: templates, weights, start tokens, padding, chosen layers, textual inversions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.layers.language_model import GEMMA2, LanguageModel, LanguageModelConfig
from darkroom.engine.text.chunk_encoding import TokenWeights
from darkroom.engine.text.language_encoding import LanguageEncoder, LanguageEncoding
from darkroom.engine.text.language_tokens import LanguageTokenizer, qwen2, qwen3
from darkroom.engine.text.sentence_pieces import byte_vocabulary, sentence_pieces

ENCODING = LanguageEncoding(slot="gemma", embedding_width=12, layer=-2, start_token=3)
CONFIG = LanguageModelConfig(
    kind=GEMMA2, num_layers=3, width=12, heads=2, key_heads=1, inner_width=16, vocabulary_size=300, norms_outputs=True
)


def encoder(encoding: LanguageEncoding = ENCODING) -> LanguageEncoder:
    torch.manual_seed(0)
    model = LanguageModel(CONFIG).requires_grad_(False)
    for weight in model.parameters():
        weight.normal_(0.0, 0.3)
    return LanguageEncoder(model, encoding)


def tokenizer(encoding: LanguageEncoding = ENCODING) -> LanguageTokenizer:
    return LanguageTokenizer(encoding=encoding, vocabulary=lambda: sentence_pieces(byte_vocabulary()))


def encoded(chunk: TokenWeights, layer: int | None = None) -> torch.Tensor:
    return encoder().encode_weighted([chunk], layer_idx=layer, project_pooled=True).cond


def test_a_chunk_starts_with_its_token_and_is_as_long_as_the_prompt() -> None:
    (chunk,) = tokenizer().tokenize_with_weights("ab (c:1.5)")["gemma"]
    assert chunk[0] == (3, 1.0)
    assert [weight for _, weight in chunk][-1] == 1.5
    assert len(tokenizer().tokenize_with_weights("")["gemma"][0]) == 1
    longer = replace(ENCODING, min_length=6)
    assert tokenizer(longer).tokenize_with_weights("")["gemma"] == [[(3, 1.0), *[(0, 1.0)] * 5]]


def test_a_template_surrounds_the_prompt_and_a_call_may_bring_another() -> None:
    made = tokenizer(replace(ENCODING, template="<{}>"))
    plain = tokenizer().tokenize_with_weights("<a>")["gemma"]
    assert made.tokenize_with_weights("a")["gemma"] == plain
    assert made.tokenize_with_weights("a>", llama_template="<{}")["gemma"] == plain


def test_brackets_are_text_where_a_model_takes_no_weights() -> None:
    made = tokenizer(replace(ENCODING, takes_weights=False))
    (chunk,) = made.tokenize_with_weights("(a:2) \\(b\\)")["gemma"]
    assert {weight for _, weight in chunk} == {1.0}
    assert made.tokenize_with_weights("(a:2) (b)")["gemma"] == [chunk]


def test_the_conditioning_is_that_of_the_layer_that_is_asked_for() -> None:
    made, chunk = encoder(), [(3, 1.0), (70, 1.0), (80, 1.0)]
    embeds = made.transformer.get_input_embeddings()(torch.tensor([[3, 70, 80]]))
    states = made.transformer.model.all_states(embeds)
    assert torch.equal(encoded(chunk), states[:, -2])  # the layer before the last
    assert torch.equal(encoded(chunk, -3), states[:, 1])
    assert torch.equal(encoded(chunk, -9), states[:, -1])  # beyond the first: the whole network


def test_the_mask_ends_before_the_padding_and_hides_it() -> None:
    result = encoder().encode_weighted(
        [[(3, 1.0), (70, 1.0), (0, 1.0), (80, 1.0)]], layer_idx=None, project_pooled=True
    )
    assert result.options["attention_mask"].tolist() == [[1, 1, 0, 0]]
    assert result.pooled is None
    torch.testing.assert_close(result.cond[:, :2], encoded([(3, 1.0), (70, 1.0)]), atol=1e-5, rtol=1e-5)


def test_weights_move_a_token_away_from_the_empty_prompt() -> None:
    plain = encoded([(3, 1.0), (70, 1.0), (80, 1.0)])
    empty = encoded([(3, 1.0), (0, 1.0), (0, 1.0)])
    moved = encoded([(3, 1.0), (70, 1.0), (80, 1.5)])
    torch.testing.assert_close(moved[:, :2], plain[:, :2], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(moved[:, 2], empty[:, 2] + 1.5 * (plain[:, 2] - empty[:, 2]), atol=1e-5, rtol=1e-5)


def test_embeddings_stand_for_themselves_and_padding_for_those_of_another_width(
    caplog: pytest.LogCaptureFixture,
) -> None:
    row = encoder().transformer.get_input_embeddings().weight[70] * 12**0.5  # rows of the table alone are scaled
    assert torch.equal(encoded([(3, 1.0), (row, 1.0)]), encoded([(3, 1.0), (70, 1.0)]))
    other = encoder().encode_weighted(
        [[(3, 1.0), (torch.zeros(5), 1.0), (70, 1.0)]], layer_idx=None, project_pooled=True
    )
    assert other.options["attention_mask"].tolist() == [[1, 1, 0]]
    assert "not of the text encoder's width 12" in caplog.text


def test_qwens_tokenizers_know_the_marks_of_a_chat() -> None:
    tokens = qwen2().encode("<|im_start|>user\nhello<|im_end|>\n")
    assert tokens == qwen3().encode("<|im_start|>user\nhello<|im_end|>\n") == [151644, 872, 198, 14990, 151645, 198]
    assert qwen2().piece(14990) == "hello"
    assert qwen3().encode("<think>") == [151667] != qwen2().encode("<think>")


def test_special_tokens_of_a_sentence_piece_vocabulary_stand_among_the_words() -> None:
    encoding = LanguageEncoding(slot="gemma2_2b", embedding_width=8, start_token=2)
    vocabulary = sentence_pieces(byte_vocabulary())
    tokenizer = LanguageTokenizer(encoding=encoding, vocabulary=lambda: vocabulary, special={"<end_of_turn>": 107})
    (chunk,) = tokenizer.tokenize_with_weights("ab<end_of_turn>c")["gemma2_2b"]
    words = [*vocabulary.encode("ab")[1:], 107, *vocabulary.encode("c")]  # the first counts as the start token
    assert [token for token, _ in chunk] == [2, *words]
    (parts,) = tokenizer.tokenize_with_weights("a embedding:b")["gemma2_2b"]
    kept = [*vocabulary.encode("a "), *vocabulary.encode("embedding:b")]
    assert [token for token, _ in parts] == [2, *kept]
