"""Codes that a language model writes: filters of scores, draws, guidance, prompts of different lengths."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from darkroom.engine.families.ace_step15.code_writer import (
    CODES_END,
    FIRST_CODE,
    CodeDraws,
    CodeSampling,
    cache_bytes,
    filtered,
    padded_before,
    written_codes,
)
from darkroom.engine.families.ace_step15.text import CODES_2B, CODES_SLOT, NEGATIVE_SLOT, SETTINGS_SLOT, CodeEncoder
from darkroom.engine.layers.keys_values import KeysValues
from darkroom.engine.layers.language_model import QWEN3, LanguageModel, LanguageModelConfig
from darkroom.engine.models.clip import Clip
from darkroom.engine.text.clip_encoding import TextEncoderSet

NUM_TOKENS = CODES_END + 3
SCORES = torch.tensor([[3.0, 2.0, 1.0, 0.0, -4.0]])


def drawn_from(sampling: CodeSampling) -> list[int]:
    """The scores that are drawn from."""
    return (filtered(SCORES.clone(), sampling) > -1e30).nonzero()[:, 1].tolist()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"top_p": 1.0}, [0, 1, 2, 3, 4]),
        ({"top_k": 2, "top_p": 1.0}, [0, 1]),
        ({"top_k": 90, "top_p": 1.0}, [0, 1, 2, 3, 4]),
        ({"min_p": 0.1, "top_p": 1.0}, [0, 1, 2]),
        ({"top_p": 0.5}, [0]),
        ({"top_p": 0.7}, [0, 1]),
        ({"top_p": 0.0}, [0]),
        ({"top_k": 4, "min_p": 0.04, "top_p": 0.95}, [0, 1, 2]),
    ],
)
def test_the_best_are_kept(given: dict[str, Any], kept: list[int]) -> None:
    assert drawn_from(CodeSampling(1, **given)) == kept


def scores_of(best: int, other: int, lead: float = 9.0) -> torch.Tensor:
    made = torch.zeros(2, CODES_END - FIRST_CODE)
    made[0, best] = made[1, other] = lead
    return made


def test_no_temperature_takes_the_best_code() -> None:
    draws = CodeDraws(CodeSampling(1, temperature=0.0, cfg_scale=1.0), NUM_TOKENS)
    assert draws.draw(scores_of(40, 7)[:1]).tolist() == [FIRST_CODE + 40]


def test_guidance_leads_away_from_the_negative_prompt() -> None:
    scores = torch.zeros(2, CODES_END - FIRST_CODE)
    scores[:, 3], scores[0, 5] = 4.0, 3.0  # the third is as good after both prompts, the fifth after the first alone
    for cfg_scale, best in ((1.0, 3), (2.0, 5)):
        sampling = CodeSampling(1, temperature=0.0, cfg_scale=cfg_scale)
        given = scores[:1] if cfg_scale == 1.0 else scores
        assert CodeDraws(sampling, NUM_TOKENS).draw(given).tolist() == [FIRST_CODE + best]


def test_a_seed_draws_the_same_codes_again() -> None:
    flat = torch.zeros(1, CODES_END - FIRST_CODE)

    def drawn(seed: int) -> list[int]:
        draws = CodeDraws(CodeSampling(1, seed=seed, cfg_scale=1.0, top_p=1.0), NUM_TOKENS)
        return [int(draws.draw(flat)) for _ in range(3)]

    first = drawn(2**64 - 1)
    assert first == drawn(2**64 - 1) != drawn(1)
    assert all(FIRST_CODE <= token < CODES_END for token in first) and len(set(first)) == 3


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = LanguageModelConfig(
        kind=QWEN3,
        num_layers=2,
        width=16,
        heads=1,
        key_heads=1,
        inner_width=16,
        vocabulary_size=NUM_TOKENS,
        norms_queries=True,
    )
    return LanguageModel(config).requires_grad_(False).model


def codes_of(model: Any, prompts: list[list[int]], num_codes: int = 4, cfg_scale: float = 2.0) -> list[int]:
    padded = padded_before(prompts, 0)
    rows = torch.stack([model.embed_tokens(torch.tensor(prompt)) for prompt in padded])
    mask = torch.tensor([[int(token != 0) for token in prompt] for prompt in padded])
    called: list[int] = []
    sampling = CodeSampling(num_codes, temperature=0.0, cfg_scale=cfg_scale)
    codes = written_codes(model, rows, mask, sampling, called.append)
    assert called == list(range(num_codes))
    return codes


def test_the_cache_of_the_longest_song_is_six_gigabytes() -> None:
    config = LanguageModelConfig(
        kind=QWEN3, num_layers=36, width=2560, heads=32, key_heads=8, inner_width=9728, vocabulary_size=217204
    )
    assert cache_bytes(config, 2, 5 * 2000 + 300) == pytest.approx(6.7e9, rel=0.05)
    assert cache_bytes(config, 1, 5) * 2 == cache_bytes(config, 2, 5) == cache_bytes(config, 1, 10)


def test_the_cache_of_a_text_encoder_s_codes_is_part_of_its_working_memory(model: Any) -> None:
    prompts: dict[str, Any] = {CODES_SLOT: [[(1, 1.0)] * 4], NEGATIVE_SLOT: [[(1, 1.0)] * 6]}
    settings = {"generate_audio_codes": True, "min_tokens": 10, "cfg_scale": 2.0}
    encoder = CodeEncoder(LanguageModel(model.config), CODES_2B.encoding)
    asked: list[int] = []

    class Weights:
        model = TextEncoderSet(cast("Any", [encoder]))
        forced_hooks = None

        def in_use(self, *, working_bytes: int) -> Any:
            asked.append(working_bytes)
            raise StopIteration

    clip = Clip.__new__(Clip)
    clip.patcher = cast("Any", Weights())
    for tokens in (
        {**prompts, SETTINGS_SLOT: settings},
        {**prompts, SETTINGS_SLOT: {**settings, "cfg_scale": 1.0}},
        {**prompts, SETTINGS_SLOT: {**settings, "generate_audio_codes": False}},
        prompts,
    ):
        with pytest.raises(StopIteration):
            clip.encode_from_tokens(tokens)
    config = model.config
    assert asked == [cache_bytes(config, 2, 16), cache_bytes(config, 1, 14), 0, 0]


def test_as_many_codes_as_asked_for_are_written(model: Any) -> None:
    codes = codes_of(model, [[5, 6, 7], [5, 9, 11]])
    assert len(codes) == 4 and all(0 <= code < CODES_END - FIRST_CODE for code in codes)
    assert codes_of(model, [[5, 6, 7]], 0, 1.0) == []


def test_padding_before_a_prompt_changes_nothing(model: Any) -> None:
    short, long = [5, 6, 7], [5, 6, 7, 8, 9, 10, 11]
    plain = codes_of(model, [short], cfg_scale=1.0)
    padded = padded_before([short, long], 0)[0]
    assert padded == [0, 0, 0, 0, 5, 6, 7]
    rows, mask = model.embed_tokens(torch.tensor([padded])), torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    sampling = CodeSampling(4, temperature=0.0, cfg_scale=1.0)
    assert written_codes(model, rows, mask, sampling, lambda index: None) == plain


def test_a_code_reads_those_before_it(model: Any) -> None:
    codes = codes_of(model, [[5, 6, 7]], cfg_scale=1.0)
    longer = codes_of(model, [[5, 6, 7, FIRST_CODE + codes[0]]], num_codes=3, cfg_scale=1.0)
    assert longer == codes[1:]


def test_room_for_tokens_holds_what_growing_ones_hold() -> None:
    growing, roomy = KeysValues(), KeysValues(3)
    for length in (2, 1, 2):  # the last ones are beyond the room
        keys, values = torch.randn(2, 1, 1, length, 4)
        for ours, theirs in zip(growing.extended(keys, values), roomy.extended(keys, values), strict=True):
            assert torch.equal(ours, theirs)
        assert growing.num_tokens == roomy.num_tokens
