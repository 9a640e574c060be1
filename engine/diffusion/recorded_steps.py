"""The point at which evaluations of a sampling run are recorded, and given again to a run that resumes.

A sampler is a function of its start, its levels, the network's answers and the random numbers it draws. Given the same
answers again it makes the same steps, whatever it remembers between them. So the answers are what is recorded, and
every sampler resumes to the bit, those of node packs among them. `engine/runtime/resume` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class SamplingStart:
    """Start of a sampling run: unit noise and the scaled latent `[B, C, h, w]`, levels `[steps + 1]`.

    `obstacle` is the reason why its evaluations cannot be answered from a record, empty if they can.
    """

    noise: torch.Tensor
    latent_image: torch.Tensor
    sigmas: torch.Tensor
    denoise_mask: torch.Tensor | None
    seed: int | None
    sampler: str
    obstacle: str = ""


class EvaluationRecord(Protocol):
    """Record of one sampling run."""

    def evaluate(
        self, sides: Sequence[object], x: torch.Tensor, compute: Callable[[], list[torch.Tensor]]
    ) -> list[torch.Tensor]:
        """Return the recorded answer to this evaluation, else what `compute` returns, which is then recorded.

        Of `sides` those that are None have the answer 0.
        """
        ...


class RunRecording(Protocol):
    """Records of the sampling runs of one prompt."""

    def sampling(self, start: SamplingStart) -> AbstractContextManager[EvaluationRecord | None]:
        """Return the context in which a run samples; it yields None for a run that is not recorded."""
        ...
