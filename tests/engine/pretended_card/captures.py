"""Recorder in the place of CUDA graphs, which runs what would be captured by the rules of a capture."""

from __future__ import annotations

from collections.abc import Callable

import torch

from darkroom.engine.engine import Engine
from darkroom.engine.tuning.capture_rules import CaptureRefused, capture_rules
from darkroom.engine.tuning.strategies.cuda_graph import CudaGraph, Graphs
from darkroom.engine.tuning.strategies.step_graph import StepGraph
from tests.engine.pretended_card.card import PretendedCard


class Captures:
    """Recorder whose replays do nothing, as there are no numbers.

    `num_captures` counts what was recorded. `refused` has a line for each operation that a capture refuses: the first
    one by the rules, the others by the card's log.
    """

    def __init__(self, card: PretendedCard) -> None:
        self._card = card
        self.num_captures = 0
        self.refused: list[str] = []

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None], int]:
        try:
            with capture_rules(watches_numbers=True):
                out = work()
        except CaptureRefused as error:
            with self._card.log.capturing():
                work()
            self.refused += [str(error), *self._card.log.take_captured()]
            raise
        self.num_captures += 1
        return out, _replay, out.nbytes

    def wait(self) -> None:
        """Return at once: nothing is replayed."""

    def take(self) -> tuple[int, list[str]]:
        """Return the number of captures and what was refused since the last call."""
        found = self.num_captures, self.refused
        self.num_captures, self.refused = 0, []
        return found


def _replay() -> None:
    """Compute nothing."""


def capture_with(engine: Engine, card: PretendedCard) -> Captures:
    """Let an engine's strategies that capture graphs record on the card."""
    captures = Captures(card)
    graphs = Graphs(captures)
    engine.tuner.replace(CudaGraph(graphs), StepGraph(graphs))
    return captures
