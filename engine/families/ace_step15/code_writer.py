"""Codes of a song's draft, written by a language model that continues a prompt (ACE-Step 1.5).

The model is asked with the prompt and with one to lead away from (Ho and Salimans 2022, arXiv 2207.12598). `B` prompts,
`T` tokens, `D` hidden size, `V` tokens that are codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from darkroom.engine.layers.language_model import DecoderStack, LanguageModelConfig

DEFAULT_GUIDANCE = 2.0
FIRST_CODE, CODES_END = 151669, 215669  # tokens that are codes


@dataclass(frozen=True, slots=True)
class CodeSampling:
    """The number of codes, and how they are drawn.

    Scores are led away from those of the negative prompt by `cfg_scale` (1: there is none). Only the `top_k` best are
    drawn from (0: all), of these only those with at least `min_p` times the probability of the best, of these the
    fewest that have a probability of `top_p` together. A `temperature` of 0 takes the best one.
    """

    num_codes: int
    seed: int = 0
    cfg_scale: float = DEFAULT_GUIDANCE
    temperature: float = 0.85
    top_p: float = 0.9
    top_k: int = 0
    min_p: float = 0.0


def filtered(scores: torch.Tensor, sampling: CodeSampling) -> torch.Tensor:
    """Return scores [1, V] with the least number for tokens that are not drawn from."""
    lowest = torch.finfo(scores.dtype).min
    if sampling.top_k > 0:
        worst = scores.topk(min(sampling.top_k, scores.shape[-1])).values[..., -1:]
        scores = scores.masked_fill(scores < worst, lowest)
    if sampling.min_p > 0.0:
        probabilities = scores.softmax(dim=-1)
        scores = scores.masked_fill(probabilities < sampling.min_p * probabilities.amax(dim=-1, keepdim=True), lowest)
    if sampling.top_p < 1.0:
        ordered, places = scores.sort(descending=True)
        before = functional.pad(ordered.softmax(dim=-1).cumsum(dim=-1), (1, -1))  # of all better ones
        is_left_out = before > sampling.top_p
        is_left_out[..., 0] = False
        scores = scores.masked_fill(torch.zeros_like(is_left_out).scatter(1, places, is_left_out), lowest)
    return scores


class CodeDraws:
    """Draws of codes, one after the other, among the tokens of the whole vocabulary."""

    def __init__(self, sampling: CodeSampling, num_tokens: int) -> None:
        self.sampling, self.num_tokens = sampling, num_tokens
        self._generator: torch.Generator | None = None

    def draw(self, scores: torch.Tensor) -> torch.Tensor:
        """Return a token [1] by the scores [B, V] of codes after the prompt and after the negative one."""
        sampling = self.sampling
        if sampling.cfg_scale != 1.0:
            scores = scores[1:] + sampling.cfg_scale * (scores[:1] - scores[1:])
        scores = filtered(scores, sampling)
        if sampling.temperature <= 0.0:
            return scores.argmax(dim=-1) + FIRST_CODE
        if self._generator is None:
            self._generator = torch.Generator(device=scores.device).manual_seed(sampling.seed)
        # Draws depend on the number of tokens: the others take part with a probability of 0.
        every = scores.new_full((1, self.num_tokens), torch.finfo(scores.dtype).min)
        every[:, FIRST_CODE:CODES_END] = scores / sampling.temperature
        return torch.multinomial(every.softmax(dim=-1), 1, generator=self._generator)[:, 0]


def cache_bytes(config: LanguageModelConfig, num_prompts: int, num_tokens: int) -> int:
    """Return the bytes of the keys and values of prompts with their codes in float32, in which the model computes.

    Those of one layer are there once more, repeated for each head that shares them.
    """
    heads = config.num_layers * config.key_heads + config.heads
    return 2 * num_prompts * num_tokens * heads * config.kind.head_width * torch.float32.itemsize


def written_codes(
    model: DecoderStack,
    rows: torch.Tensor,
    mask: torch.Tensor,
    sampling: CodeSampling,
    on_code: Callable[[int], None],
) -> list[int]:
    """Return the codes that a language model writes behind prompts.

    `rows` [B, T, D] are the prompts' embeddings, the negative one's second,
    `mask` [B, T] is 0 for padding. `on_code` is called with the number of each code before it is computed.
    """
    past = model.empty_past(rows.shape[1] + sampling.num_codes)
    table = model.embed_tokens.weight
    draws = CodeDraws(sampling, table.shape[0])
    tokens: list[torch.Tensor] = []
    for index in range(sampling.num_codes):
        on_code(index)
        *_, last = model.states(rows, mask, past=past)
        scores = functional.linear(model.norm(last[:, -1]), table[FIRST_CODE:CODES_END].to(last))
        token = draws.draw(scores)
        tokens.append(token)
        rows = model.embed_tokens(token)[:, None].to(last).expand(rows.shape[0], -1, -1)
        mask = functional.pad(mask, (0, 1), value=1)
    return (torch.cat(tokens) - FIRST_CODE).tolist() if tokens else []


def padded_before(prompts: Sequence[Sequence[Any]], pad_token: int) -> list[list[Any]]:
    """Return prompts as long as the longest one, with padding before them."""
    length = max(len(prompt) for prompt in prompts)
    return [[pad_token] * (length - len(prompt)) + list(prompt) for prompt in prompts]
