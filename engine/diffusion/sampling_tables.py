"""The tables that one engine samples with: its samplers and schedules, and what custom nodes have replaced."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from darkroom.engine.diffusion.choices import Choices
from darkroom.engine.diffusion.ksampler import KSampler
from darkroom.engine.diffusion.sampling_run import SamplingRun, sampling_run


class SamplingTables:
    """Tables of one engine, a part of each of its runs. No other engine of the process has them.

    `replacements` has what custom nodes have put in the place of our functions and classes, by those; a function marked
    as replaceable is its own key.
    """

    def __init__(self) -> None:
        self.choices = Choices()
        self.replacements: dict[Hashable, object] = {}

    def of_run(self, run: SamplingRun) -> SamplingRun:
        """Return the run with these tables."""
        return replace(run, choices=self.choices, replacements=self.replacements)

    def active(self) -> AbstractContextManager[None]:
        """Return the context in which code samples with these tables, in its thread and in the tasks it starts."""
        return self.of_run(sampling_run()).current()

    def sampler_names(self) -> Sequence[str]:
        """Return the names that nodes offer: those of the class that replaces `KSampler`, if it has a list."""
        names: Sequence[str] = getattr(self.replacements.get(KSampler, KSampler), "SAMPLERS", self.choices.samplers)
        return names

    def schedule_names(self) -> Sequence[str]:
        names: Sequence[str] = getattr(self.replacements.get(KSampler, KSampler), "SCHEDULERS", self.choices.schedules)
        return names
