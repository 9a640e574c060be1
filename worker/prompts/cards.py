"""Well-known graphics cards, by which a plan may name one, and the time of a run on them. Pure.

A run takes a fixed time for each call of a network, and a time for its operations, which a card's matrix units and the
bandwidth of its memory bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from darkroom.contract.graph.cost import SamplerWork

GIB: Final = 1 << 30
SHARE_OF_PEAK: Final = 0.9  # of the matrix units, that a network's layers reach
GB_PER_TFLOP: Final = 2.0  # that they move meanwhile
CALL_SECONDS: Final = 0.018  # of a call of a network whatever its size: launching kernels, the sampler


@dataclass(frozen=True, slots=True)
class Card:
    """A card as its maker's data sheet has it: memory, dense half-precision matrix rate, bandwidth of its memory.

    The rate of GeForce cards is that with sums in 32 bits, as PyTorch multiplies.
    """

    gib: int
    tflop_per_second: float
    gb_per_second: float

    @property
    def seconds_per_tflop(self) -> float:
        """Seconds of 10^12 operations of a denoising network in 16 bits."""
        return 1 / (SHARE_OF_PEAK * self.tflop_per_second) + GB_PER_TFLOP / self.gb_per_second


CARDS: Final[Mapping[str, Card]] = {
    "rtx2080ti": Card(11, 54.0, 616.0),
    "rtx3060": Card(12, 25.5, 360.0),
    "rtx3060ti": Card(8, 32.4, 448.0),
    "rtx3070": Card(8, 40.6, 448.0),
    "rtx3080": Card(10, 59.5, 760.0),
    "rtx3080ti": Card(12, 68.2, 912.0),
    "rtx3090": Card(24, 71.0, 936.0),
    "rtx4060": Card(8, 30.2, 272.0),
    "rtx4060ti": Card(16, 44.1, 288.0),
    "rtx4070": Card(12, 58.3, 504.0),
    "rtx4070ti": Card(12, 80.2, 504.0),
    "rtx4080": Card(16, 97.5, 717.0),
    "rtx4090": Card(24, 165.0, 1008.0),
    "rtx5070": Card(12, 61.7, 672.0),
    "rtx5080": Card(16, 112.6, 960.0),
    "rtx5090": Card(32, 209.5, 1792.0),
    "rtx6000ada": Card(48, 364.0, 960.0),
    "rtxpro6000": Card(96, 503.0, 1792.0),
    "t4": Card(16, 65.0, 320.0),
    "l4": Card(24, 121.0, 300.0),
    "l40": Card(48, 181.0, 864.0),
    "l40s": Card(48, 362.0, 864.0),
    "a10": Card(24, 125.0, 600.0),
    "a10g": Card(24, 70.0, 600.0),
    "a4000": Card(16, 76.7, 448.0),
    "a5000": Card(24, 111.0, 768.0),
    "a6000": Card(48, 155.0, 768.0),
    "a40": Card(48, 150.0, 696.0),
    "v100": Card(16, 125.0, 900.0),
    "a10040gb": Card(40, 312.0, 1555.0),
    "a10080gb": Card(80, 312.0, 2039.0),
    "a100": Card(80, 312.0, 2039.0),
    "h100": Card(80, 989.0, 3350.0),
    "h200": Card(141, 989.0, 4800.0),
    "b200": Card(180, 2250.0, 8000.0),
}
"""Cards by their names in lower case without their makers, blanks and dashes."""


def card_bytes(name: str) -> int | None:
    """Return the memory of a card, None for an unknown one."""
    key = _key(name)
    return CARDS[key].gib * GIB if key in CARDS else None


def card_named(name: str) -> Card | None:
    """Return the card of a name, None for an unknown one.

    >>> card_named("NVIDIA GeForce RTX 4090").gib, card_named("Voodoo 2")
    (24, None)
    """
    return CARDS.get(_key(name))


def seconds_on(card: Card, works: Sequence[SamplerWork]) -> float:
    """Return the estimated seconds of samplers on a card; within a factor of two of published ones.

    `benchmark/published_seconds.toml` has those that it is checked against. Raises ValueError for a sampler of unknown
    work.
    """
    return sum(work.num_calls * (CALL_SECONDS + _known(work) * card.seconds_per_tflop) for work in works)


def _known(work: SamplerWork) -> float:
    if work.tflop is None:
        raise ValueError(f"node {work.node_id}: its work is not known")
    return work.tflop


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]|nvidia|geforce|tesla", "", name.lower())
