"""Relief steps for a node that ran out of memory: pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum


class ReliefStep(Enum):
    """Relief steps in the order in which they are taken. The node runs again after each."""

    CACHES = "caches"  # kept results, and what torch holds without using
    OTHER_MODELS = "other_models"  # every model that is not in use is evicted
    PARTIAL_LOAD = "partial_load"  # less of the models in use is on the device
    TILED_VAE = "tiled_vae"  # images are decoded and encoded in tiles
    ATTENTION_SLICES = "attention_slices"  # attention is computed for some queries at a time
    SPLIT_BATCH = "split_batch"  # by sampling itself: conditions are computed one after the other, not in one batch

    @property
    def changes_arithmetic(self) -> bool:
        """True where results may differ in their last digits from here on."""
        return self in (ReliefStep.TILED_VAE, ReliefStep.ATTENTION_SLICES, ReliefStep.SPLIT_BATCH)


@dataclass(frozen=True, slots=True)
class MemorySavings:
    """Memory savings under which a node runs.

    `weights_share` of the weights may be on the device; 0 is as few as possible.
    """

    weights_share: float = 1.0
    tiles: bool = False
    attention_slices: int = 1


@dataclass(frozen=True, slots=True)
class OomContext:
    """Models and stages that the node used before it ran out of memory."""

    has_other_models: bool
    loads_in_part: bool  # a model is in use of which less could be on the device
    used_vae: bool
    used_attention: bool


PARTIAL_SHARES = (0.5, 0.0)
SLICES = (4, 16)


def savings_by_step(oom_context: OomContext) -> Iterator[tuple[ReliefStep, MemorySavings]]:
    """Yield the steps worth taking, each with the savings after it. Later steps keep those of earlier ones."""
    memory_savings = MemorySavings()
    yield ReliefStep.CACHES, memory_savings
    if oom_context.has_other_models:
        yield ReliefStep.OTHER_MODELS, memory_savings
    for share in PARTIAL_SHARES if oom_context.loads_in_part else ():
        memory_savings = replace(memory_savings, weights_share=share)
        yield ReliefStep.PARTIAL_LOAD, memory_savings
    if oom_context.used_vae:
        memory_savings = replace(memory_savings, tiles=True)
        yield ReliefStep.TILED_VAE, memory_savings
    for slices in SLICES if oom_context.used_attention else ():
        memory_savings = replace(memory_savings, attention_slices=slices)
        yield ReliefStep.ATTENTION_SLICES, memory_savings
