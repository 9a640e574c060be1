"""Draws of tokens by a language model's scores."""

from __future__ import annotations

import torch

from darkroom.engine.text.token_sampling import TokenSampling

SCORES = torch.tensor([[0.0, 3.0, 2.0, -1.0, 1.0]])


def test_without_a_seed_the_best_token_is_taken_each_time() -> None:
    sampling = TokenSampling(repetition_penalty=5.0)
    assert [sampling.draw(SCORES) for _ in range(3)] == [1, 1, 1]


def test_the_same_seed_draws_the_same_tokens() -> None:
    runs = [[sampling.draw(SCORES) for _ in range(20)] for sampling in (TokenSampling(seed=4), TokenSampling(seed=4))]
    assert runs[0] == runs[1] and len(set(runs[0])) > 1


def test_only_the_best_are_drawn_from() -> None:
    for limits in ({"top_k": 2}, {"min_p": 0.3}, {"top_p": 0.7}, {"top_k": 4, "min_p": 0.3}):
        sampling = TokenSampling(seed=1, **limits)
        assert {sampling.draw(SCORES) for _ in range(40)} <= {1, 2}


def test_tokens_that_were_drawn_are_less_likely() -> None:
    sampling = TokenSampling(seed=1, top_k=1, presence_penalty=1.5)
    assert [sampling.draw(SCORES) for _ in range(2)] == [1, 2]
    sampling = TokenSampling(seed=1, top_k=1, repetition_penalty=2.0)
    assert [sampling.draw(SCORES) for _ in range(2)] == [1, 2]
