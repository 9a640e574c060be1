"""The tables that one engine samples with: its samplers and schedules, and what custom nodes have replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from engine.diffusion.choices import Choices
from engine.diffusion.ksampler import KSampler
from engine.diffusion.replacements import Replacements


class SamplingTables:
    """Tables of one engine, current while one of its runs is computed. No other engine of the process sees them."""

    def __init__(self) -> None:
        self.choices = Choices()
        self.replacements = Replacements()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Sample with these tables while the context is open, in its thread and in the tasks it starts."""
        with self.choices.active(), self.replacements.active():
            yield

    def sampler_names(self) -> Sequence[str]:
        """Return the names that nodes offer: those of the class that replaces `KSampler`, if it has a list."""
        names: Sequence[str] = getattr(self.replacements.get(KSampler), "SAMPLERS", self.choices.samplers)
        return names

    def schedule_names(self) -> Sequence[str]:
        names: Sequence[str] = getattr(self.replacements.get(KSampler), "SCHEDULERS", self.choices.schedules)
        return names
