"""Drawing of the next token by a language model's scores."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.nn import functional


@dataclass(slots=True)
class TokenSampling:
    """Draws of tokens, one after the other.

    Only the `top_k` best are drawn from (0: all), of these only those with at least `min_p` times the probability of
    the best, and the fewest that have a probability of `top_p` together (Holtzman et al. 2020, arXiv 1904.09751).
    Scores of tokens that were drawn before are divided by `repetition_penalty` (multiplied where negative), then
    lowered by `presence_penalty`. `seed` None takes the best token each time.
    """

    seed: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    _drawn: list[int] = field(default_factory=list)
    _generator: torch.Generator | None = None

    def draw(self, scores: torch.Tensor) -> int:
        """Return a token by the scores [1, V]."""
        token = int(scores.argmax()) if self.seed is None else self._random(scores, self.seed)
        self._drawn.append(token)
        return token

    def _random(self, scores: torch.Tensor, seed: int) -> int:
        if self._generator is None:
            self._generator = torch.Generator(device=scores.device).manual_seed(seed)
        scores = self._penalised(scores) / self.temperature
        tokens = None
        if self.top_k > 0:
            scores, tokens = scores.topk(min(self.top_k, scores.shape[-1]))
        lowest = torch.finfo(scores.dtype).min
        if self.min_p > 0.0:
            chances = scores.softmax(dim=-1)
            scores = scores.masked_fill(chances < self.min_p * chances.max(dim=-1, keepdim=True).values, lowest)
        if self.top_p < 1.0:
            ordered, places = scores.sort(descending=True)
            is_left_out = ordered.softmax(dim=-1).cumsum(dim=-1) > self.top_p
            is_left_out[..., 0] = False
            scores = scores.masked_fill(torch.zeros_like(is_left_out).scatter(1, places, is_left_out), lowest)
        place = torch.multinomial(functional.softmax(scores, dim=-1), 1, generator=self._generator)
        return int(place if tokens is None else tokens.gather(1, place))

    def _penalised(self, scores: torch.Tensor) -> torch.Tensor:
        if not self._drawn or (self.repetition_penalty == 1.0 and self.presence_penalty == 0.0):
            return scores
        tokens = torch.tensor(sorted(set(self._drawn)), device=scores.device)
        found = scores[:, tokens]
        found = torch.where(found < 0, found * self.repetition_penalty, found / self.repetition_penalty)
        return scores.index_copy(1, tokens, found - self.presence_penalty)
