"""Memory of well-known graphics cards, by which a plan may name one, and the time of a run on them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from benchmark.qualify.unit import UNIT_STEPS, UNIT_WORKLOAD

GIB: Final = 1 << 30
CARDS: Final[Mapping[str, int]] = {
    "rtx2080ti": 11, "rtx3060": 12, "rtx3070": 8, "rtx3080": 10, "rtx3090": 24, "rtx4060": 8, "rtx4060ti": 16,
    "rtx4070": 12, "rtx4080": 16, "rtx4090": 24, "rtx5070": 12, "rtx5080": 16, "rtx5090": 32, "rtx6000ada": 48,
    "rtxpro6000": 96, "t4": 16, "l4": 24, "l40": 48, "l40s": 48, "a10": 24, "a10g": 24, "a4000": 16, "a5000": 24,
    "a6000": 48, "a40": 48, "v100": 16, "a10040gb": 40, "a10080gb": 80, "a100": 80, "h100": 80, "h200": 141,
    "b200": 180,
}  # fmt: skip
"""Memory in GiB by the card's name in lower case without its maker, blanks and dashes."""


def card_bytes(name: str) -> int | None:
    """Return the memory of a card, None for an unknown one."""
    key = _key(name)
    return CARDS[key] * GIB if key in CARDS else None


def is_same_card(name: str, full_name: str) -> bool:
    """Return True if a driver's full name of a card, with its connector and memory, is that of a card asked for.

    >>> is_same_card("A100", "NVIDIA A100-SXM4-80GB"), is_same_card("A100-40GB", "NVIDIA A100-SXM4-80GB")
    (True, False)
    """
    key, found = _key(name), re.sub(r"sxm\d?(?=\d+gb$|$)|pcie", "", _key(full_name))
    return found in (key, f"{key}{CARDS.get(key, 0)}gb")


def seconds_on(cost: float, its_per_second: float) -> float:
    """Return the seconds of a run of `cost` units on a card that makes so many guided SD1.5 steps of 512x512 a second.

    The units compare families, so this is an estimate for each of them; see `benchmark/qualify/unit.py`.
    """
    return cost / UNIT_WORKLOAD * UNIT_STEPS / its_per_second


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]|nvidia|geforce|tesla", "", name.lower())
