"""What is done, one step after the other, when memory ran out while a node ran: pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum


class ReliefStep(Enum):
    """In the order in which they are taken. The node runs again after each."""

    CACHES = "caches"  # kept results, and what torch holds without using
    OTHER_MODELS = "other_models"  # every model that is not in use leaves
    PARTIAL_LOAD = "partial_load"  # less of the models in use lies on the device
    TILED_VAE = "tiled_vae"  # pictures are decoded and encoded in tiles
    ATTENTION_SLICES = "attention_slices"  # attention is computed for some queries at a time
    SPLIT_BATCH = "split_batch"  # by sampling itself: conditions are computed one after the other, not in one batch

    @property
    def changes_arithmetic(self) -> bool:
        """Whether results may differ in their last digits from here on."""
        return self in (ReliefStep.TILED_VAE, ReliefStep.ATTENTION_SLICES, ReliefStep.SPLIT_BATCH)


@dataclass(frozen=True, slots=True)
class Economy:
    """How sparingly a node runs. `weights_share` of the weights may be on the device; 0 is as few as possible."""

    weights_share: float = 1.0
    tiles: bool = False
    attention_slices: int = 1


@dataclass(frozen=True, slots=True)
class Situation:
    """What the node that ran out of memory has used."""

    has_other_models: bool
    loads_in_part: bool  # a model is in use of which less could lie on the device
    used_vae: bool
    used_attention: bool


PARTIAL_SHARES = (0.5, 0.0)
SLICES = (4, 16)


def economies(situation: Situation) -> Iterator[tuple[ReliefStep, Economy]]:
    """The steps worth taking, each with how the node runs after it. What one step saves, later ones keep."""
    economy = Economy()
    yield ReliefStep.CACHES, economy
    if situation.has_other_models:
        yield ReliefStep.OTHER_MODELS, economy
    for share in PARTIAL_SHARES if situation.loads_in_part else ():
        economy = replace(economy, weights_share=share)
        yield ReliefStep.PARTIAL_LOAD, economy
    if situation.used_vae:
        economy = replace(economy, tiles=True)
        yield ReliefStep.TILED_VAE, economy
    for slices in SLICES if situation.used_attention else ():
        economy = replace(economy, attention_slices=slices)
        yield ReliefStep.ATTENTION_SLICES, economy
