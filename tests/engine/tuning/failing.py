"""Strategies that fail in a place of choice, under the names of real ones."""

from __future__ import annotations

from collections.abc import Callable

import torch

from darkroom.engine.diffusion.options import Options
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import (
    MachineFacts,
    SamplingUse,
    Strategy,
    Undo,
    replace_forwards,
    unchanged_layers,
)

WORDS = "no engine for this convolution"
PLACES = ("missing", "unfit", "apply", "half_applied", "forward", "settle", "undo")


class Failing(Strategy):
    """A strategy that changes every layer and raises `error` in the place, in the forward function at the call `at`."""

    name = "fused_qkv"
    quality = Quality.SAME
    about = "it fails"

    def __init__(self, place: str, error: Callable[[], Exception] = lambda: RuntimeError(WORDS), at: int = 1) -> None:
        self.place, self.error, self.at = place, error, at
        self.num_calls = self.num_applied = 0

    def _fail(self, *places: str) -> None:
        if self.place in places:
            raise self.error()

    def missing(self, machine: MachineFacts) -> str | None:
        self._fail("missing")
        return None

    def unfit(self, use: SamplingUse) -> str | None:
        self._fail("unfit")
        return None

    def apply(self, use: SamplingUse) -> Undo:
        self._fail("apply")
        self.num_applied += 1
        layers = unchanged_layers(use, (torch.nn.SiLU,))
        use.network.register_forward_pre_hook(lambda module, given: None)
        use.denoiser.__dict__["step_runner"] = None
        undo = replace_forwards([(layer, self._forward) for layer in layers])
        self._fail("half_applied")

        def undo_all() -> None:
            undo()
            self._fail("undo")

        return undo_all

    def settle(self, seconds: float) -> str | None:
        self._fail("settle")
        return None

    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        if self.num_calls >= self.at:
            self._fail("forward")
        return torch.nn.functional.silu(x)


class FailingOption(Strategy):
    """A strategy without a change of the network, whose option cannot be made."""

    name = "token_merging"
    quality = Quality.SAME
    about = "it fails"

    def options(self, use: SamplingUse) -> Options:
        raise RuntimeError(WORDS)
